"""Kernels that are missing or broken: one clear line and float32, nothing else."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorus.platform.cpu.products import REMEDY
from chorus.rank.load import load_shard
from chorus.rank.products import kernels, usable
from tests.support.tiny_model import write_tiny_model

tried_again = usable.usable.__wrapped__
"""What is remembered for the whole process is left alone."""


@pytest.fixture(autouse=True)
def same_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given once in a process."""
    monkeypatch.setattr(kernels, "start", lambda threads: None)


def test_working_kernels_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert tried_again()
    assert not caplog.records


def test_missing_ones_are_no_fault(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(usable, "installed", lambda: False)
    assert not tried_again()
    assert not caplog.records


def fails(*_: Any) -> Any:
    raise OSError("libonnxruntime.so: cannot open shared object file\nand a second line")


def says_nothing(*_: Any) -> Any:
    raise KeyError


def wrong(matrices: Any) -> Any:
    return lambda rows: [np.ones((len(rows), 24), np.float32)]


def no_numbers(matrices: Any) -> Any:
    return lambda rows: [np.full((len(rows), 24), np.nan, np.float32)]


def other_shapes(matrices: Any) -> Any:
    return lambda rows: [np.ones((len(rows), 7), np.float32)]


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (fails, "libonnxruntime.so: cannot open shared object file"),
        (says_nothing, "KeyError"),
        (wrong, "products of 2 bits are wrong by"),
        (no_numbers, "products of 2 bits are wrong by nan"),
        (other_shapes, "operands could not be broadcast"),
    ],
)
def test_broken_ones_say_one_line(
    broken: Any, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "linears", broken)
    assert not tried_again()
    (line,) = caplog.messages
    assert line.startswith(f"packed products do not work here ({why}")
    assert "\n" not in line
    assert line.endswith(REMEDY)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_one_width_that_is_wrong_is_enough(
    width: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = kernels.linears

    def one_wrong(matrices: Any) -> Any:
        kernel = right(matrices)
        if matrices[0].weights.bits != width:
            return kernel
        # Only where there are several rows.
        return lambda rows: kernel(rows) if len(rows) == 1 else [kernel(rows)[0] * 2]

    monkeypatch.setattr(kernels, "linears", one_wrong)
    assert not tried_again()
    assert f"products of {width} bits" in caplog.text


LOADS = """
import logging, sys
from pathlib import Path
from chorus import platform
platform.prepare(1)
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
from chorus.rank.load import load_shard
for _ in range(2):
    shard = load_shard(Path(sys.argv[1]), range)
print(shard.policy.name, "|", shard.policy.reason)
"""


def test_a_rank_with_a_broken_onnxruntime_computes_in_float32(tmp_path: Path) -> None:
    """A package of that name that fails as it is imported, in a process of its own."""
    model = write_tiny_model(tmp_path / "model", "qwen2", quantize={"bits": 4, "group_size": 32}, tokenizer=False)
    package = tmp_path / "broken" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('DLL load failed: illegal instruction')\n")
    paths = os.pathsep.join([str(package.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(model)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    said = "packed products do not work here (DLL load failed: illegal instruction), so float32 it is"
    assert line == f"WARNING {said}; {REMEDY}"
    name, _, reason = done.stdout.strip().partition(" | ")
    assert name == "float32, unpacked"
    assert reason.endswith(REMEDY)


def test_who_has_no_use_for_the_kernels_does_not_import_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("chorus.rank.load.usable", lambda: not asked.append(True))
    plain = write_tiny_model(tmp_path / "plain", "qwen2", tokenizer=False)
    quantized = write_tiny_model(tmp_path / "quantized", "qwen2", quantize={"bits": 4}, tokenizer=False)
    assert load_shard(plain, range).policy.name == "float32"
    assert load_shard(plain, range, policy="float32").policy.name == "float32"
    assert load_shard(quantized, range, cpu_products="float32").policy.name == "float32, unpacked"
    assert not asked
    assert load_shard(quantized, range).policy.name == "float32, packed"
    assert load_shard(quantized, range, policy="float32, packed").policy.name == "float32, packed"
    assert len(asked) == 2


def test_the_kernels_leave_no_trace_of_this_machine_among_temporary_files(tmp_path: Path) -> None:
    code = "import chorus.rank.products.kernels"
    environment = {**os.environ, "TMPDIR": str(tmp_path)} | {"ORT_DISABLE_TELEMETRY": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []
