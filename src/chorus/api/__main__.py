"""python -m chorus.api --settings FILE.json, or - for standard input"""

from __future__ import annotations

import argparse
import os
import sys

from chorus.api.settings import SettingsError, load_settings
from chorus.platform import lifeline, logs
from chorus.text.errors import TokenizerError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chorus.api", description="Serve HTTP for a running engine.")
    parser.add_argument("--settings", required=True, help="JSON file with the front end's settings, or -")
    arguments = parser.parse_args()
    spare_grpc_threads()
    from chorus.api.server import ListenError, run

    try:
        settings = load_settings(arguments.settings)
        logs.setup(settings.log_level, settings.log_json)
        lifeline.hold()
        run(settings)
    except (SettingsError, ListenError, TokenizerError) as error:
        sys.exit(f"chorus.api: {error}")


def spare_grpc_threads() -> None:
    """Call it before gRPC is imported, which is when it reads its environment.

    Its newer way to read sockets passes every message through a pool of threads that look for work, a third of what a
    token costs this process. The older one reads in the one thread that waits anyway. Tried on Linux only.
    """
    if sys.platform == "linux":
        os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")


if __name__ == "__main__":
    main()
