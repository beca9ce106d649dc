"""Where kernels of a GPU are kept."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from chorus import platform
from chorus.platform.accelerator import device, kernels


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ours, on a machine with an NVIDIA GPU."""
    monkeypatch.setattr(device, "backend", lambda: "cuda")
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    # Whatever is set meanwhile goes again.
    for name in (kernels.VARIABLE, *platform.blas_library.THREAD_VARIABLES):
        monkeypatch.setenv(name, "")
    monkeypatch.delenv(kernels.VARIABLE)
    return tmp_path / "cache"


def test_they_outlive_a_restart_and_are_apart_for_each_release_and_nobody_elses(cache: Path) -> None:
    platform.prepare(threads=1)
    kept = cache / "kernels" / metadata.version("mlx")
    assert os.environ[kernels.VARIABLE] == str(kept)
    assert kept.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_the_user_names_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "/somewhere")
    platform.prepare(threads=1)
    assert os.environ[kernels.VARIABLE] == "/somewhere"
    assert not cache.exists()


def test_where_there_is_no_room_for_them_mlx_decides(cache: Path) -> None:
    cache.write_text("no folder")
    platform.prepare(threads=1)
    assert kernels.VARIABLE not in os.environ
