"""Asks pip which packages a Mac would install, without installing any: one that has no wheel there is seen.

`python scripts/mac_dependencies.py` needs a package index and no Mac.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
# pip reads markers such as `sys_platform == 'darwin'` with the system that it runs on, whatever --platform says.
AS_A_MAC = """
import sys
from pip._vendor.packaging import markers
ours = markers.default_environment
mac = dict(os_name="posix", sys_platform="darwin", platform_system="Darwin", platform_machine="arm64")
markers.default_environment = lambda: {**ours(), **mac}
from pip._internal.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
# What only a Mac installs: a report without it was not made for one.
SIGN = "mlx-metal"


def resolve(wanted: list[str], platform: str, python: str) -> dict[str, str]:
    """Names and versions that pip would install on that Mac, wheels only; raises CalledProcessError where it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-c", AS_A_MAC, "install", "--dry-run", "--ignore-installed", "-qq"]
        command += ["--disable-pip-version-check", "--target", folder, "--report", str(report)]
        command += ["--only-binary", ":all:", "--platform", platform, "--python-version", python]
        # Constraints are what this system has, and some of it is only for this system.
        environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
        subprocess.run([*command, *wanted], check=True, timeout=600, env=environment)
        found = json.loads(report.read_text())["install"]
    return {package["metadata"]["name"]: package["metadata"]["version"] for package in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="macosx_14_0_arm64")
    parser.add_argument("--python", default="3.11")
    chosen = parser.parse_args()
    try:
        wanted = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
        found = resolve(wanted, chosen.platform, chosen.python)
    except subprocess.CalledProcessError:
        print(f"some package has no wheel for {chosen.platform}: pip says above which", file=sys.stderr)
        return 1
    if SIGN not in found:
        print(f"this pip took no notice of the other system: no {SIGN} in {len(found)} packages", file=sys.stderr)
        return 1
    print(f"{len(found)} packages, all with wheels for {chosen.platform} and Python {chosen.python}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
