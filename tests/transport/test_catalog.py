"""What is said of transports stands in the catalog, and nowhere else."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import chorus
from chorus.platform.accelerator import mpi
from chorus.transport import catalog
from chorus.transport.auto import auto, choose_transport
from chorus.transport.catalog import Transport

SOURCE = Path(chorus.__file__).parent
ROWS = {row.name: row for row in catalog.rows()}
GRPC_THE_LIBRARY = {"deploy/ssh/hosts.py", "platform/process/logs.py"}
"""Where "grpc" is a Python package: one that must be installed, and one that logs."""


def texts(module: ast.Module) -> Iterator[ast.Constant]:
    """Every string that is no docstring."""
    spoken = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            yield node


def test_no_transport_is_named_outside_its_package() -> None:
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE).as_posix()
        if place.startswith(("transport/", "messages/proto/")) or place in GRPC_THE_LIBRARY:
            continue
        for text in texts(ast.parse(file.read_text(encoding="utf-8"))):
            words = set(text.value.replace(":", " ").replace(",", " ").replace(".", " ").split())
            if (words & (ROWS.keys() - {"grpc"})) or text.value == "grpc":
                found.append(f"{place}:{text.lineno}: {text.value!r}")
    assert found == []


def test_reading_the_catalog_needs_no_library() -> None:
    code = "import sys, chorus.transport.catalog; print(*{'mlx', 'grpc', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("row", catalog.rows(), ids=lambda row: row.name)
def test_what_a_row_names_is_there(row: Transport) -> None:
    for reference in filter(None, (row.opens, row.launcher)):
        assert callable(catalog.resolve(reference))
    assert row.stages or row.sums
    assert (row.call_seconds is not None) == row.stages
    assert (row.sum_seconds is not None) == row.sums


@pytest.mark.parametrize("parallel", ["pipeline", "tensor", "hybrid"])
@pytest.mark.parametrize("name", [*ROWS])
def test_whoever_is_refused_is_told_what_works(name: str, parallel: str) -> None:
    refusal = ROWS[name].refusal(parallel)
    assert (refusal is None) == ROWS[name].carries(parallel)
    if refusal is not None:
        assert name in refusal
        assert any(f"--transport {other}" in refusal for other in catalog.carrying(parallel))


def test_a_transport_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="there is no transport smoke: use grpc, ring, mpi, jaccl or nccl"):
        catalog.get("smoke")


def test_one_rank_is_not_a_choice() -> None:
    assert catalog.get("local") is catalog.LOCAL
    assert "local" not in catalog.names()


def test_auto_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto("pipeline").transport == "grpc"
    assert auto("hybrid").transport == "mpi"
    monkeypatch.setattr(mpi, "launcher", lambda: None)
    assert auto("tensor").transport == "ring"
    assert "mpi is not installed" in auto("tensor").why
    monkeypatch.setattr(mpi, "launcher", lambda: Path("mpirun"))
    monkeypatch.setattr(mpi, "library", lambda: Path("libmpi.so"))
    assert auto("tensor").transport == "mpi"
    assert choose_transport("jaccl", "tensor") == "jaccl"


SMOKE = Transport("smoke", opens="nowhere:at_all", stages=True)
TAKEN = Transport("ring", opens="nowhere:at_all")


def test_a_package_outside_adds_its_own_and_cannot_take_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        EntryPoint("smoke", f"{__name__}:SMOKE", catalog.ENTRY_POINTS),
        EntryPoint("ring", f"{__name__}:TAKEN", catalog.ENTRY_POINTS),
        EntryPoint("broken", "no_such_module:row", catalog.ENTRY_POINTS),
    ]
    monkeypatch.setattr(catalog.importlib.metadata, "entry_points", lambda group: EntryPoints(found))
    rows = catalog._with_extensions(catalog.rows())
    assert rows["smoke"] == SMOKE
    assert [*rows] == [*ROWS, "smoke"]
    assert rows["ring"] == ROWS["ring"]
