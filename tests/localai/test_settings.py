"""The settings that `chorus serve` reads hold behind LocalAI too, or are named as those that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from chorus.config.sources import load
from chorus.localai.settings import without_effect
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
