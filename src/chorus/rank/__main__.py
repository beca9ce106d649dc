"""A following rank as a process: `python -m chorus.rank --rank 1 --listen ADDRESS`. Started by the supervisor."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from chorus import platform
from chorus.errors import ChorusError
from chorus.platform.accelerator.mlx_import import explain
from chorus.platform.process import beats, lifeline, logs
from chorus.platform.process.exits import cannot_start
from chorus.platform.process.losses import cause_of, exit_code
from chorus.rank.model_finder import model_finder
from chorus.rank.upstream import lean
from chorus.transport.security import security_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chorus.rank", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--listen", required=True, help="control address: host:port or unix:/path")
    parser.add_argument("--address-file", type=Path, help="where to leave that address, once somebody answers there")
    parser.add_argument("--group", default="", help="the group that it is for: refuse leaders of others, end with it")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--identity", type=Path, help="folder with this node's certificate: mutual TLS")
    parser.add_argument("--insecure", action="store_true", help="allow plain text on addresses that others can reach")
    parser.add_argument("--model-path", type=Path, help="load from this folder, whatever the leader's is")
    parser.add_argument("--own-store", action="store_true", help="load only what this machine's store has by name")
    parser.add_argument("--own-model", type=Path, action="append", default=[], help="or from this folder of its own")
    parser.add_argument("--trust-remote-code", action="store_true", help="let models of that store run their own code")
    parser.add_argument("--failure-file", type=Path, help="where to leave the reason when this rank cannot start")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-json", action="store_true")
    chosen = parser.parse_args()
    lifeline.hold()
    beats.begin()
    logs.setup(chosen.log_level, chosen.log_json)
    try:
        platform.prepare(chosen.threads)
        # Only now may MLX be imported: its BLAS has been taken over.
        lean.install()
        from chorus.rank.worker import Worker

        security = security_of(chosen.identity, chosen.insecure)
        find_model = model_finder(chosen.model_path, chosen.own_store, chosen.trust_remote_code, chosen.own_model)
        worker = Worker(chosen.rank, chosen.listen, find_model, security, chosen.group)
    except ImportError as error:
        return cannot_start(explain(str(error)), chosen.failure_file)
    except (ChorusError, OSError) as error:
        return cannot_start(f"rank {chosen.rank}: {error}", chosen.failure_file)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    try:
        return worker.serve(chosen.address_file)
    except Exception as error:
        logging.getLogger("chorus.rank").critical("rank %d failed", chosen.rank, exc_info=True)
        logging.shutdown()
        # Leaving in order would wait in MPI's own ending for ranks that wait for this one.
        os._exit(exit_code(cause_of(error)))


if __name__ == "__main__":
    sys.exit(main())
