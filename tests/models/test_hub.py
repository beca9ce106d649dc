from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from chorus.models import ModelError, Progress, fetch_files, files_holding, resolve, tensor_index, weight_map
from chorus.models.hub.cache import cached_models, remove_cached
from chorus.models.hub.files import choose_weights, description_files
from tests.models.hub_server import HubServer, Repo

CONFIG = json.dumps({"model_type": "llama"}).encode()
ONE = save({"a": np.ones((256, 1024), np.float32)})
TWO = save({"b": np.zeros(3, np.float32)})
NOT_WANTED = [
    "README.md",
    "modeling.py",
    "pytorch_model.bin",
    "consolidated.00.pth",
    "onnx/model.onnx",
    "onnx/config.json",
]


def single_file_repo() -> Repo:
    files = {"config.json": CONFIG, "tokenizer.json": b"{}", "chat_template.jinja": b"x", "model.safetensors": ONE}
    return Repo(files | dict.fromkeys(NOT_WANTED, b"not wanted"))


def sharded_repo() -> Repo:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    return Repo(
        {
            "config.json": CONFIG,
            "model.safetensors.index.json": json.dumps(index).encode(),
            "model-00001-of-00002.safetensors": ONE,
            "model-00002-of-00002.safetensors": TWO,
            "model.fp16.safetensors": ONE,
        }
    )


def names_in(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_a_pull_fetches_what_is_needed_and_nothing_else(hub: HubServer) -> None:
    hub.repos["org/tiny"] = single_file_repo()
    model = resolve("org/tiny")
    assert (model.name, model.id) == ("org/tiny", "org/tiny")
    assert names_in(model.path) == {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    assert not set(hub.downloaded()) & {name.rsplit("/", 1)[-1] for name in NOT_WANTED if name != "onnx/config.json"}
    assert tensor_index(model.path)["a"].shape == (256, 1024)


def test_a_second_pull_downloads_nothing(hub: HubServer) -> None:
    hub.repos["org/tiny"] = single_file_repo()
    first = resolve("org/tiny")
    hub.requests.clear()
    assert resolve("org/tiny").path == first.path
    assert hub.downloaded() == []


def test_of_a_sharded_model_only_files_of_the_index_are_fetched(hub: HubServer) -> None:
    hub.repos["org/big"] = sharded_repo()
    path = resolve("org/big").path
    assert "model.fp16.safetensors" not in names_in(path)
    assert set(tensor_index(path)) == {"a", "b"}


def test_a_rank_fetches_only_the_files_that_hold_its_tensors(hub: HubServer) -> None:
    hub.repos["org/big"] = sharded_repo()
    described = resolve("org/big", weights=False)
    assert names_in(described.path) == {"config.json", "model.safetensors.index.json"}
    path = fetch_files("org/big", described.path.name, files_holding(["b"], weight_map(described.path)))
    assert path == described.path
    assert names_in(path) == {"config.json", "model.safetensors.index.json", "model-00002-of-00002.safetensors"}
    assert fetch_files("org/big", None, ["model-00002-of-00002.safetensors"], offline=True) == path
    with pytest.raises(ModelError, match="model-00001-of-00002"):
        fetch_files("org/big", None, ["model-00001-of-00002.safetensors"], offline=True)
    with pytest.raises(ModelError, match="no file nothing"):
        fetch_files("org/big", None, ["nothing.safetensors"])


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    hub.repos["org/tiny"] = single_file_repo()
    hub.cut["model.safetensors"] = 300_000
    path = resolve("org/tiny").path
    assert (path / "model.safetensors").read_bytes() == ONE
    ranges = [asked for method, where, asked in hub.requests if method == "GET" and where.endswith("model.safetensors")]
    assert ranges[0] is None
    assert ranges[1] is not None
    assert 0 < int(ranges[1].removeprefix("bytes=").rstrip("-")) <= 300_000


def test_progress_never_goes_back_and_ends_at_the_total(hub: HubServer) -> None:
    hub.repos["org/tiny"] = single_file_repo()
    seen: list[Progress] = []
    resolve("org/tiny", progress=seen.append)
    weights = [step for step in seen if step.total == len(ONE)]
    assert [step.done for step in weights] == sorted(step.done for step in weights)
    assert weights[-1].done == len(ONE)


def test_offline_uses_the_cache_and_asks_nobody(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["org/tiny"] = single_file_repo()
    path = resolve("org/tiny").path
    hub.requests.clear()
    assert resolve("org/tiny", offline=True).path == path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve("org/tiny").path == path
    assert hub.requests == []


def test_offline_without_a_copy_says_so(hub: HubServer) -> None:
    hub.repos["org/tiny"] = single_file_repo()
    with pytest.raises(ModelError, match=r"org/tiny is not.*offline.*online"):
        resolve("org/tiny", offline=True)


def test_offline_with_half_a_copy_names_what_is_missing(hub: HubServer) -> None:
    hub.repos["org/big"] = sharded_repo()
    resolve("org/big", weights=False)
    with pytest.raises(ModelError, match=r"lacks model-00001-of-00002\.safetensors"):
        resolve("org/big", offline=True)


def test_a_hub_that_is_down_is_no_harm_to_a_model_that_is_here(hub: HubServer) -> None:
    hub.repos["org/tiny"] = single_file_repo()
    path = resolve("org/tiny").path
    hub.status = 500
    assert resolve("org/tiny").path == path


def test_a_hub_that_is_down_is_named_when_the_model_is_not_here(hub: HubServer) -> None:
    hub.status = 501
    with pytest.raises(ModelError, match=r"Cannot get org/tiny from http://127.0.0.1:\d+ \(status 501\)"):
        resolve("org/tiny")


def test_nobody_at_the_endpoint_is_one_clear_line() -> None:
    with pytest.raises(ModelError, match=r"Cannot get org/tiny from http://127\.0\.0\.1:9"):
        resolve("org/tiny")


def test_a_model_that_does_not_exist_is_named(hub: HubServer) -> None:
    with pytest.raises(ModelError, match="no model org/none"):
        resolve("org/none")


def test_a_gated_model_says_where_to_accept_the_terms(hub: HubServer) -> None:
    hub.repos["org/gated"] = Repo({"config.json": CONFIG}, gated=True)
    with pytest.raises(ModelError, match=r"accepted.*org/gated.*HF_TOKEN"):
        resolve("org/gated")


def test_a_revision_is_chosen_after_an_at_sign(hub: HubServer) -> None:
    repo = single_file_repo()
    repo.branches = ("main", "v1")
    hub.repos["org/tiny"] = repo
    model = resolve("org/tiny@v1")
    assert (model.id, model.path.name) == ("org/tiny", repo.commit)
    with pytest.raises(ModelError, match="no revision v2"):
        resolve("org/tiny@v2")


def test_a_truncated_upload_is_found_before_loading(hub: HubServer) -> None:
    hub.repos["org/tiny"] = Repo({"config.json": CONFIG, "model.safetensors": ONE[:-10]})
    with pytest.raises(ModelError, match=r"model.safetensors is truncated: tensor a"):
        resolve("org/tiny")


def test_a_repository_that_is_no_model_is_refused(hub: HubServer) -> None:
    hub.repos["org/data"] = Repo({"data.json": b"{}"})
    with pytest.raises(ModelError, match=r"no config.json"):
        resolve("org/data")


def test_pickles_are_never_chosen_as_weights() -> None:
    with pytest.raises(ModelError, match="no model"):
        choose_weights("org/old", ["pytorch_model.bin", "consolidated.00.pth", "adapter.safetensors"], {})


def test_a_repository_of_gguf_files_says_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"only GGUF.*x-Q4_0.gguf.*chorus models import"):
        choose_weights("org/x-GGUF", ["x-Q4_0.gguf", "config.json"], {})


def test_descriptions_leave_out_subfolders_and_code() -> None:
    names = ["config.json", "tokenizer.model", "qwen.tiktoken", "merges.txt", "original/params.json", "x.py", "big.bin"]
    assert description_files(names) == ["config.json", "merges.txt", "qwen.tiktoken", "tokenizer.model"]


def test_a_cached_model_is_listed_and_removed(hub: HubServer) -> None:
    hub.repos["org/tiny"] = single_file_repo()
    hub.repos["org/other"] = sharded_repo()
    resolve("org/tiny")
    other = resolve("org/other").path
    assert [model.id for model in cached_models()] == ["org/other", "org/tiny"]
    assert remove_cached("org/tiny") >= len(ONE)
    assert [model.id for model in cached_models()] == ["org/other"]
    assert other.is_dir()
    with pytest.raises(ModelError, match="not in the Hugging Face cache"):
        remove_cached("org/tiny")
