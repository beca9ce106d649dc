"""Prints the `dev` group of pyproject.toml as requirements: older pips cannot read dependency groups."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
print("\n".join(project["dependency-groups"]["dev"]))
