"""Writes the table of packages in docs/architecture.md from what each package says of itself; `--check` compares.

The order is that of the layers in pyproject.toml: a package may import those below it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- packages: written by scripts/package_table.py -->\n", "<!-- end of packages -->\n"


def layers() -> list[list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (contract for contract in contracts if contract["type"] == "layers")
    return [[name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]]


def summary(module: Path) -> str:
    """The first sentence that a module, or a package, says of itself."""
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    words = ast.get_docstring(ast.parse(file.read_text()))
    assert words, f"{file} says nothing of itself"
    return words.split("\n\n")[0].replace("\n", " ")


def parts(package: Path) -> str:
    folders = sorted(init.parent for init in package.glob("*/__init__.py"))
    return "".join(f"<br>`{folder.name}/` {summary(folder)}" for folder in folders)


def table() -> str:
    source = ROOT / "src" / "chorus"
    rows = ["| | package | what it is |", "| --- | --- | --- |"]
    for number, layer in enumerate(layers(), 1):
        for name in layer:
            path = source / name
            if not path.is_dir() and not path.with_suffix(".py").exists():
                continue  # an optional layer that is not there yet
            shown = f"{name}/" if path.is_dir() else f"{name}.py"
            rows.append(f"| {number} | `{shown}` | {summary(path)}{parts(path)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    page = PAGE.read_text()
    new = re.sub(f"(?s){re.escape(BEGIN)}.*{re.escape(END)}", lambda _: BEGIN + table() + END, page)
    if "--check" not in sys.argv:
        PAGE.write_text(new)
    elif new != page:
        sys.exit("docs/architecture.md: the table of packages is old; python scripts/package_table.py writes it anew")


if __name__ == "__main__":
    main()
