"""`chorus serve FOLDER` of a folder that cannot be served: one line with what is wrong, where, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chorus.rank.load import LoadError, load_shard
from tests.support.tiny_model import write_tiny_model

HERE = "error: {folder}"
AGAIN = "fetch the model again."


def change(folder: Path, **changes: Any) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


def remove(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.unlink()


def rename_weights(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    remove(folder, "model*.json")


def nothing(folder: Path) -> None:
    remove(folder, "*")


def no_folder(folder: Path) -> None:
    nothing(folder)
    folder.rmdir()


def nearly_another_name(folder: Path) -> None:
    folder.rename(folder.with_name("modell"))


def a_file(folder: Path) -> None:
    no_folder(folder)
    folder.write_text("notes")


def a_folder_of_models(folder: Path) -> None:
    inside = folder.with_name("inside")
    folder.rename(inside)
    folder.mkdir()
    inside.rename(folder / "llama")


def an_adapter(folder: Path) -> None:
    nothing(folder)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapters.safetensors").touch()


def only_gguf(folder: Path) -> None:
    nothing(folder)
    (folder / "tiny.gguf").touch()


def no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()


def a_broken_configuration(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def a_list_for_a_configuration(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def no_type(folder: Path) -> None:
    change(folder, model_type=None)


def an_unknown_type(folder: Path) -> None:
    change(folder, model_type="tomorrow", architectures=["TomorrowForCausalLM"])


def no_weights(folder: Path) -> None:
    remove(folder, "model*")


def pytorch_weights(folder: Path) -> None:
    rename_weights(folder, "pytorch_model.bin")


def weights_by_another_name(folder: Path) -> None:
    rename_weights(folder, "consolidated.safetensors")


def gguf_beside_a_configuration(folder: Path) -> None:
    rename_weights(folder, "tiny.gguf")


def weights_cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def a_link_to_nowhere(folder: Path) -> None:
    """As a cache of Hugging Face that somebody tidied up."""
    remove(folder, "model*")
    (folder / "model.safetensors").symlink_to(folder / "blobs" / "gone")


def a_broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{")


def no_tokenizer(folder: Path) -> None:
    remove(folder, "tokenizer*")


TABLE: list[tuple[Callable[[Path], None], str]] = [
    (no_folder, "error: There is no folder or file {folder}; check the path."),
    (nearly_another_name, "error: There is no folder or file {folder}; perhaps you mean {folder}l."),
    (a_file, f"{HERE} is neither a folder nor a .gguf file; give one of these."),
    (nothing, f"{HERE} has no config.json and is no model folder; give a folder in Hugging Face form."),
    (a_folder_of_models, f"{HERE} has no config.json and is no model folder; perhaps you mean {{folder}}/llama."),
    (an_adapter, f"{HERE} has no config.json and is no model folder; it holds an adapter: join that with its model "),
    (only_gguf, f"{HERE} has no config.json and is no model folder; give its .gguf file itself, {{folder}}/tiny.gguf."),
    (no_configuration, f"{HERE} has no config.json and is no model folder; give a folder in Hugging Face form."),
    (a_broken_configuration, "error: Cannot read {folder}/config.json, which is no JSON (Expecting value: "),
    (a_list_for_a_configuration, f"{HERE}/config.json is not a JSON object; {AGAIN}"),
    (no_type, f"{HERE}/config.json names no model_type, so the architecture is unknown; {AGAIN}"),
    (
        an_unknown_type,
        f"{HERE}: the installed mlx-lm does not know model type 'tomorrow' (TomorrowForCausalLM): use a newer Chorus "
        'or another model; if it is a known architecture under another name, give that as "model_type" in config.json.',
    ),
    (no_weights, f"{HERE} holds no model*.safetensors; give a folder in Hugging Face form, or a .gguf file."),
    (pytorch_weights, f"{HERE} holds no model*.safetensors but pytorch_model.bin: choose a copy of the model in "),
    (weights_by_another_name, f"{HERE} holds no model*.safetensors but consolidated.safetensors: choose a copy of "),
    (
        gguf_beside_a_configuration,
        f"{HERE} holds no model*.safetensors: give its .gguf file itself, {{folder}}/tiny.gguf.",
    ),
    (weights_cut_off, f"{HERE}/model.safetensors is truncated: tensor "),
    (a_link_to_nowhere, "error: Cannot read {folder}/model.safetensors: No such file or directory; check that it is "),
    (a_broken_index, "error: Cannot read {folder}/model.safetensors.index.json, which is no JSON (Expecting property "),
    (no_tokenizer, f"{HERE} has no tokenizer: put the tokenizer.json and tokenizer_config.json of the model "),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def folder(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that could be served, as ./model."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in whole.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return copy


@pytest.mark.parametrize(("spoil", "line"), TABLE, ids=[spoil.__name__ for spoil, _ in TABLE])
def test_a_folder_that_cannot_be_served_is_told_in_one_line(
    spoil: Callable[[Path], None], line: str, folder: Path, refusal: Callable[..., str]
) -> None:
    spoil(folder)
    assert refusal("serve", "./model", "--port", "0").startswith(line.format(folder=folder))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "error: There is no folder or file {file}; check the path."),
        (b"", "error: {name} is not a GGUF file; give a file that a GGUF converter wrote."),
        (b"PK\x03\x04 something else", "error: {name} is not a GGUF file; give a file that a GGUF converter wrote."),
        (b"GGUF\x03\0\0\0" + b"\x01" * 16, "error: {name} is truncated: "),
    ],
    ids=["missing", "empty", "another kind", "cut off"],
)
def test_a_gguf_file_that_cannot_be_read_is_told_in_one_line(
    content: bytes | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tiny.gguf"
    if content is not None:
        file.write_bytes(content)
    assert refusal("serve", "./tiny.gguf", "--port", "0").startswith(line.format(file=file, name="tiny.gguf"))


@pytest.mark.parametrize(
    "odd",
    [{"hidden_size": "big"}, {"num_hidden_layers": {}}, {"num_attention_heads": 0}, {"rms_norm_eps": []}],
    ids=str,
)
def test_a_value_that_mlx_lm_cannot_use_is_told_with_the_folder_and_the_remedy(folder: Path, odd: Any) -> None:
    change(folder, **odd)
    with pytest.raises(LoadError) as told:
        load_shard(folder, range)
    assert str(told.value).startswith(f"cannot load the model in {folder}: mlx-lm cannot use its config.json (")
    assert str(told.value).endswith("; fetch it again")
