"""python -m chorus.api --settings FILE.json, or - for standard input"""

from __future__ import annotations

import argparse
import logging
import sys

from chorus.config.front_end import ApiSettings, SettingsError, read_settings
from chorus.errors import ChorusError
from chorus.platform.network import grpc_tuning
from chorus.platform.process import beats, lifeline, logs
from chorus.platform.process.exits import cannot_start
from chorus.telemetry import telling

log = logging.getLogger(__name__)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chorus.api", description="Serve HTTP for a running engine.")
    parser.add_argument("--settings", required=True, help="JSON file with the front end's settings, or -")
    arguments = parser.parse_args()
    try:
        settings = read_settings(arguments.settings)
    except SettingsError as error:
        return cannot_start(str(error))
    logs.setup(settings.log_level, settings.log_json)
    lifeline.hold()
    beats.begin()
    grpc_tuning.spare_threads()
    telling.begin(settings.events)
    try:
        return serve(settings)
    finally:
        telling.end()


def serve(settings: ApiSettings) -> int:
    """Whatever stops it before it serves would do so again: that is told once, and not tried six times."""
    try:
        from chorus.api.process import run
    except ImportError as error:
        return cannot_start(f"the front end: {error}", settings.failure_file)
    try:
        run(settings)
    except ChorusError as error:
        return cannot_start(f"the front end: {error}", settings.failure_file)
    except Exception as error:
        log.exception("the front end failed")
        return cannot_start(f"the front end: {type(error).__name__}: {error}", settings.failure_file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
