"""On Linux MLX's backend is a wheel of its own: whoever has none is told so in one line, by whatever they type."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chorus.platform import system
from chorus.platform.accelerator import device, mlx_import
from chorus.platform.accelerator.mlx_import import NoMlx, explain, remedy, require_mlx
from chorus.platform.process.exits import EXIT_CANNOT_START

NO_BACKEND = "ImportError: libmlx.so: cannot open shared object file: No such file or directory"
NO_DRIVER = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture
def no_backend(tmp_path: Path) -> Path:
    """For PYTHONPATH: MLX as `pip install mlx` leaves it on Linux."""
    core = importlib.util.find_spec("mlx.core")
    assert core is not None
    assert core.origin is not None
    (tmp_path / "mlx").mkdir()
    shutil.copy(core.origin, tmp_path / "mlx")
    return tmp_path


def without_driver(folder: Path) -> Path:
    """MLX as its CUDA wheel leaves it where there is no NVIDIA driver; the error is the linker's own."""
    (folder / "mlx" / "lib").mkdir(parents=True)
    (folder / "mlx" / "lib" / "libmlx.so").touch()
    (folder / "mlx" / "core.py").write_text(f"raise ImportError({NO_DRIVER.partition(': ')[2]!r})\n")
    (folder / "mlx_cuda_13-0.32.4.dist-info").mkdir()
    (folder / "mlx_cuda_13-0.32.4.dist-info" / "METADATA").write_text("Name: mlx-cuda-13\nVersion: 0.32.4\n")
    return folder


def chorus(shim: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(shim), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", "from chorus.cli import main; main()", *words],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "500"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.linux("MLX's backend is a wheel of its own there")
def test_serve_without_a_backend_says_once_what_to_install(no_backend: Path) -> None:
    done = chorus(no_backend, "serve", "smollm2-135m", "--port", "0")
    assert done.returncode == 1
    (line,) = filter(None, done.stderr.splitlines())
    assert line.startswith("error: MLX has no backend on this machine (libmlx.so: cannot open shared object file")
    assert "'.[cpu]'" in line
    assert "'.[cuda13]'" in line


@pytest.mark.linux("MLX's backend is a wheel of its own there")
def test_serve_with_the_wheel_for_cuda_and_no_driver_says_once_what_to_do(tmp_path: Path) -> None:
    done = chorus(without_driver(tmp_path), "serve", "smollm2-135m", "--port", "0")
    assert done.returncode == 1
    (line,) = filter(None, done.stderr.splitlines())
    assert "the CUDA backend of MLX cannot be loaded, which needs an NVIDIA GPU and its driver" in line
    assert "pip uninstall mlx-cpu mlx-cuda-13, then in a checkout of Chorus: pip install '.[cpu]'" in line


@pytest.mark.parametrize(
    "words",
    [
        "serve smollm2-135m --port 0",
        "serve smollm2-135m --port 0 --cluster --nodes 0",
        "worker mlx-distributed --hostfile {hosts} --rank 1",
        "worker mlx-distributed --hostfile {hosts} --rank 0 --model smollm2-135m",
        "worker mlx-distributed --hostfile {hosts} --rank 0",
        "localai --addr 127.0.0.1:50051",
        "doctor --parity smollm2-135m",
    ],
)
def test_every_command_that_starts_a_rank_says_so_before_it_starts_anything(
    words: str, tmp_path: Path, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlx_import, "_looks_whole", lambda: False)
    monkeypatch.setattr(mlx_import, "_try_import", lambda: NO_BACKEND)
    hosts = tmp_path / "hosts.json"
    hosts.write_text('["127.0.0.1:5998", "127.0.0.1:5999"]')
    assert "error: MLX has no backend on this machine (libmlx.so" in refusal(*words.format(hosts=hosts).split())


def test_an_mlx_that_looks_strange_and_works_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_import, "_looks_whole", lambda: False)
    require_mlx()
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(NoMlx, match="exit code 1"):
        require_mlx()


def test_the_remedy_fits_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"mlx-cuda-13": "0.32.4"}
    monkeypatch.setattr(device, "installed", installed.get)
    assert "pip uninstall mlx-cuda-13, then" in remedy(NO_DRIVER)
    assert "--force-reinstall" in remedy(NO_BACKEND)
    installed.clear()
    assert "pip install '.[cpu]'" in remedy(NO_BACKEND)
    assert explain("ModuleNotFoundError: No module named 'mlx'").startswith("MLX is not installed (No module named")
    assert explain("ImportError: libz.so.1: not found").startswith("a library cannot be loaded (libz.so.1: not found):")


def test_a_mac_needs_no_wheel_besides_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "name", lambda: system.MAC)
    monkeypatch.setattr(mlx_import, "libmlx", lambda: None)
    monkeypatch.setattr(mlx_import, "_try_import", lambda: pytest.fail("it is there"))
    require_mlx()


@pytest.mark.linux("only there is a BLAS taken over, and a backend of its own")
@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"CHORUS_BLAS": "fast"}, "rank 1: CHORUS_BLAS=fast is unknown: use auto, system"),
        ({"PYTHONPATH": "{no_backend}"}, "MLX has no backend on this machine (libmlx.so: cannot open"),
    ],
    ids=["BLAS", "backend"],
)
def test_a_rank_that_cannot_have_mlx_leaves_the_reason_and_is_not_tried_again(
    variables: dict[str, str], told: str, no_backend: Path
) -> None:
    reason = no_backend / "reason"
    given = {name: value.format(no_backend=no_backend) for name, value in variables.items()}
    path = os.pathsep.join([given.get("PYTHONPATH", ""), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "chorus.rank", "--rank", "1", "--listen", "unix:nowhere", "--failure-file", str(reason)],
        env={**os.environ, **given, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == EXIT_CANNOT_START
    assert "Traceback" not in done.stderr
    assert reason.read_text().startswith(told)
