from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from chorus.models import LocalModel, ModelError, resolve
from chorus.models.imports import import_gguf
from chorus.models.resolve import name_elsewhere, split_hub_id
from tests.models.gguf_files import TinyModel, write_tiny_gguf


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file({"a": np.ones(3, np.float32)}, path / "model.safetensors")
    return path


def test_a_folder_is_used_where_it_lies(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "my-model")
    model = resolve(str(folder))
    assert (model.name, model.id, model.path) == (str(folder), "my-model", folder)


def test_a_gguf_file_is_imported_once_and_found_again(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, TinyModel(layers=1))
    first = resolve(str(file))
    stamp = (first.path / "model.safetensors").stat().st_mtime_ns
    assert first.id == "tiny"
    assert resolve(str(file)) == first
    assert (first.path / "model.safetensors").stat().st_mtime_ns == stamp


def test_an_imported_model_goes_by_its_name_even_without_its_file(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, TinyModel(layers=1))
    entry = import_gguf(file, "mine")
    file.unlink()
    assert resolve("mine").path == entry.path


def test_a_folder_of_the_form_of_a_hub_id_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_folder(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name").path == tmp_path / "org" / "name"


def test_a_store_entry_that_was_damaged_says_how_to_get_it_back(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, TinyModel(layers=1))
    weights = resolve(str(file)).path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"truncated: tensor .*chorus models rm tiny"):
        resolve("tiny")
    assert resolve("tiny", weights=False).id == "tiny"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "Cannot read .*config.json"),
        (lambda folder: (folder / "config.json").write_text("{}"), "names no model_type"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"holds no model\*.safetensors"),
    ],
)
def test_a_folder_that_is_no_model_says_why(tmp_path: Path, spoil: object, message: str) -> None:
    folder = model_folder(tmp_path / "model")
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(ModelError, match=message):
        resolve(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135", "perhaps you mean smollm2-135m"),
        ("no/such/folder", r"There is no folder or file /.*/no/such/folder; check the path"),
        ("./nowhere", r"There is no folder or file /.*/nowhere; check the path"),
        ("~nobody-at-all/model", r"There is no folder or file /.*/~nobody-at-all/model"),
        ("./" + "long" * 100, "Cannot read .*: File name too long; check the path"),
        ("missing.gguf", r"There is no folder or file /.*/missing\.gguf"),
        ("", "There is no model"),
    ],
)
def test_a_name_that_means_nothing_is_answered_with_a_hint(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("org/name", ("org/name", None)),
        ("org/name-1.5@v1", ("org/name-1.5", "v1")),
        ("org/name@refs/pr/1", ("org/name", "refs/pr/1")),
        ("name", None),
        ("./org", None),
        ("../org", None),
        ("/abs/path", None),
        ("~/models", None),
        ("a/b/c", None),
        ("org/name@", None),
    ],
)
def test_hub_ids_are_told_from_paths(name: str, parsed: tuple[str, str | None] | None) -> None:
    assert split_hub_id(name) == parsed


def test_the_model_store_does_not_import_mlx() -> None:
    code = "import sys, chorus.models; sys.exit(any(name.split('.')[0] in ('mlx', 'mlx_lm') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (LocalModel("smollm2-135m", "smollm2-135m", Path("/x")), "smollm2-135m"),
        (LocalModel("org/model@v2", "org/model", Path("/x")), "org/model@v2"),
        (LocalModel("./my-tune", "my-tune", Path("/x/my-tune")), "my-tune"),
        (LocalModel("models/my-tune", "my-tune", Path("/x/models/my-tune")), "my-tune"),
        (LocalModel("/x/Some.Q4.gguf", "Some.Q4", Path("/x")), "Some.Q4"),
    ],
)
def test_other_machines_are_told_a_name_and_never_a_path(model: LocalModel, name: str) -> None:
    assert name_elsewhere(model) == name
