"""python -m chorus.api --settings FILE.json"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chorus.api.server import ListenError, run
from chorus.api.settings import SettingsError, load_settings
from chorus.platform import lifeline, logs
from chorus.text.errors import TokenizerError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chorus.api", description="Serve HTTP for a running engine.")
    parser.add_argument("--settings", type=Path, required=True, help="JSON file with the front end's settings")
    arguments = parser.parse_args()
    try:
        settings = load_settings(arguments.settings)
        logs.setup(settings.log_level, settings.log_json)
        lifeline.hold()
        run(settings)
    except (SettingsError, ListenError, TokenizerError) as error:
        sys.exit(f"chorus.api: {error}")


if __name__ == "__main__":
    main()
