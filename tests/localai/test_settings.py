"""The settings that `chorus serve` reads hold behind LocalAI too, or are named as those that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from chorus.config.sources import load
from chorus.localai.division import divided
from chorus.localai.errors import LoadFailed, in_options
from chorus.localai.plan import LoadPlan, plan_load
from chorus.localai.settings import without_effect
from chorus.messages.proto import localai_pb2 as wire
from chorus.models import LocalModel
from chorus.models.preshard.write import write_preshard
from tests.localai.process import Backend
from tests.support.tiny_model import write_store_entry


def test_settings_that_cannot_hold_behind_localai_are_named_with_where_they_were_given(tmp_path: Path) -> None:
    (tmp_path / "chorus.yaml").write_text("api: {port: 9000, max_tokens: 7}\nsampling: {temperature: 0.5, top_k: 3}\n")
    environment = {"CHORUS_API__HTTPS": "true", "CHORUS_CACHE__PER_KEY": "true", "CHORUS_WATCH__SILENCE_SECONDS": "9"}
    http, temperature, per_key = without_effect(load(None, {}, environment, tmp_path))
    assert http.startswith("api.port (")
    assert (
        "chorus.yaml), api.https (environment: CHORUS_API__HTTPS) have no effect: LocalAI is served over gRPC" in http
    )
    assert "option temperature" in temperature
    assert "cache_salt" in per_key
    assert list(without_effect(load(None, {}, {}, tmp_path / "elsewhere"))) == []


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LocalModel:
    return LocalModel("tiny", "tiny", tiny_model)


def asked(folder: Path, settings: str, *options: str) -> LoadPlan:
    (folder / "chorus.yaml").write_text(settings)
    return plan_load(wire.ModelOptions(Model="tiny", Options=options), {}, {}, folder)


def test_proportions_in_the_settings_divide_the_layers(tmp_path: Path, model: LocalModel) -> None:
    shares = "engine: {ranks: 2}\nsharding: {custom_proportions: [0.7, 0.3]}\n"
    engine = divided(asked(tmp_path, shares), model).settings.engine
    assert (engine.ranks, engine.split) == (2, (4, 2))
    with pytest.raises(LoadFailed, match=r"custom_proportions divides layers: .* --weights") as caught:
        divided(asked(tmp_path, shares, "parallel:tensor"), model)
    assert in_options(str(caught.value)).endswith("give option weights")
    seven = "engine: {ranks: 7}\nsharding: {custom_proportions: [0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]}\n"
    with pytest.raises(LoadFailed, match="7 ranks cannot share 6 layers"):
        divided(asked(tmp_path, seven), model)


def test_a_presharded_folder_says_itself_how_it_is_divided(tmp_path: Path, model: LocalModel) -> None:
    """As in `chorus serve ./parts`; another division is refused with what the folder was made for."""
    write_preshard(model, (4, 2), tmp_path / "parts")
    parts = LocalModel("parts", "tiny", tmp_path / "parts")
    engine = divided(asked(tmp_path, "{}"), parts).settings.engine
    assert (engine.ranks, engine.split) == (2, (4, 2))
    with pytest.raises(LoadFailed, match="was made for"):
        divided(asked(tmp_path, "{}", "split:3,3"), parts)


def test_the_file_the_variables_and_dotenv_of_serve_hold_behind_localai(tmp_path: Path, tiny_model: Path) -> None:
    """What the model's file says goes over them."""
    write_store_entry(tmp_path / "store", "tiny-by-name", tiny_model)
    (tmp_path / "mine.yaml").write_text(
        f"cache_dir: {tmp_path}/store\n"
        "api: {port: 9000, max_tokens: 5, embeddings: true, pooling: mean}\n"
        "cache: {enabled: false}\n"
        "sampling: {top_k: 1}\n"
        "engine: {context: 48, ranks: 2, split: '4,2'}\n"
        "cluster: {env: {OF_EVERY_RANK: '1'}}\n"
    )
    (tmp_path / ".env").write_text("CHORUS_ENGINE__CONTEXT=32\nCHORUS_ENGINE__STEP_LOG=steps.jsonl\n")
    environment = {"CHORUS_LOG__JSON_LINES": "true", "CHORUS_CACHE": "", "HF_HUB_OFFLINE": "1"}
    with Backend(tmp_path, "-c", str(tmp_path / "mine.yaml"), environment=environment) as backend:
        backend.load("tiny-by-name", ContextSize=4096)
        reply = backend.client.Predict(Prompt="The quick brown fox", IgnoreEOS=True)
        assert reply.tokens == 5
        assert len(backend.client.Status().memory.breakdown) == 2
        with pytest.raises(grpc.RpcError, match="context holds 32 tokens"):
            backend.client.Predict(Prompt="The quick brown fox " * 20)
        bold = {"Temperature": 2.0, "Tokens": 12, "IgnoreEOS": True}
        assert len({backend.text(Seed=seed, **bold) for seed in (1, 2, 3)}) == 1
        assert backend.client.Embedding(Embeddings="Many machines").dim > 0
        ranks = [child for child in backend.children() if child.cmdline()[2] in ("chorus.engine", "chorus.rank")]
        assert [child.environ().get("OF_EVERY_RANK") for child in ranks] == ["1", "1"]
        said = [json.loads(line) for line in backend.log.splitlines()]
        assert any("api.port" in entry["message"] and "no effect" in entry["message"] for entry in said)
        assert (tmp_path / "steps.jsonl").exists()
        backend.load("tiny-by-name", "context:16", "ranks:1", "split:6", "top_k:0")
        assert len(backend.client.Status().memory.breakdown) == 1
        assert len({backend.text(Seed=seed, **bold) for seed in (1, 2, 3)}) > 1
