"""What the sources ask of MLX is there on a Mac too: they were written on Linux, whose wheel has other parts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER, *LINES = (Path(__file__).parent / "mac_names.txt").read_text().splitlines()
NAMES = set(LINES)
MODULES = {name.partition(".")[0] for name in NAMES if "." in name}


def asked_of_mlx(source: str) -> Iterator[tuple[int, str]]:
    """Every `mx.…`, as far as MLX's own modules reach, with its line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        match node:
            case ast.Attribute(value=ast.Name(id="mx"), attr=name) if name not in MODULES:
                yield node.lineno, name
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="mx"), attr=module), attr=name) if (
                module in MODULES
            ):
                yield node.lineno, f"{module}.{name}"


def missing_from(source: str) -> list[tuple[int, str]]:
    return [(line, name) for line, name in asked_of_mlx(source) if name not in NAMES]


def test_every_name_of_mlx_that_the_sources_use_is_in_the_macos_wheel() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    found = {str(file.relative_to(ROOT)): missing_from(file.read_text()) for file in files}
    assert {file: names for file, names in found.items() if names} == {}
    assert sum(len(list(asked_of_mlx(file.read_text()))) for file in files) > 100


@pytest.mark.parametrize("line", ["mx.no_such_name(1)", "x = mx.distributed.nothing", "mx.metal.start(mx.cuda.stop())"])
def test_a_name_that_is_missing_there_is_seen(line: str) -> None:
    assert missing_from(line)


def test_the_names_are_those_of_the_version_that_is_pinned() -> None:
    pinned = re.search(r'"mlx==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned
    assert HEADER.startswith(f"# mlx {pinned[1]},"), "run `python scripts/mac_names.py`"
