"""The engine leader as a process: `python -m chorus.engine SPEC.json`, or `-` for standard input. Started by the
supervisor, not by hand.
"""

from __future__ import annotations

import logging
import os
import sys

from chorus import platform
from chorus.config.engine import EngineSpec
from chorus.errors import ChorusError
from chorus.platform.accelerator.mlx_import import explain
from chorus.platform.process import beats, lifeline, logs
from chorus.platform.process.exits import EXIT_CANNOT_START, cannot_start
from chorus.platform.process.losses import cause_of, exit_code
from chorus.platform.storage.files import read_told
from chorus.rank.upstream import lean
from chorus.telemetry import telling


def main() -> int:
    lifeline.hold()
    beats.begin()
    spec = EngineSpec.model_validate_json(read_told(sys.argv[1]))
    logs.setup(spec.log_level, spec.log_json)
    telling.begin(spec.events)
    try:
        platform.prepare(spec.threads, most=spec.most_threads)
        # Only now may MLX be imported: its BLAS has been taken over.
        lean.install()
        from chorus.engine.lifecycle.process import run
    except ImportError as error:
        return cannot_start(explain(str(error)), spec.failure_file)
    except ChorusError as error:
        return cannot_start(f"rank 0: {error}", spec.failure_file)
    try:
        code = run(spec)
    except Exception as error:
        logging.getLogger("chorus.engine").critical("the engine failed", exc_info=True)
        code = exit_code(cause_of(error))
    telling.end()
    if code not in (0, EXIT_CANNOT_START):
        logging.shutdown()
        # Leaving in order might wait in a collective's own ending for the rank that is gone.
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
