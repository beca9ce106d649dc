from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from chorus.messages.proto import engine_pb2 as pb
from chorus.serving.models.embedding import NoEmbeddings, embedding_of
from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL_ID, ApiProcess
from tests.api.scripted_engine import DEADLINE, ScriptedEngine
from tests.support.scrape import scrape


def write_modules(folder: Path, pooling: dict[str, bool] | None = None, normalize: bool = True) -> None:
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    modules.append({"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    if normalize:
        modules.append({"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))


def test_a_model_not_meant_for_it_says_so(http: httpx.Client) -> None:
    response = http.post("/v1/embeddings", json={"input": "x"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("model", "embeddings_not_supported")
    assert "embeddings: true" in error["message"]


def test_embeddings_through_the_official_client(
    engine: ScriptedEngine, start_api: Callable[..., ApiProcess], tokenizer: Tokenizer
) -> None:
    api = start_api(embeddings=True)
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="x", max_retries=0, timeout=DEADLINE) as client:
        texts = ["one", "The capital of France"]
        for options in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(model=MODEL_ID, input=texts, **options)
            assert [entry.index for entry in answer.data] == [0, 1]
            for text, entry in zip(texts, answer.data, strict=True):
                third = len(tokenizer.encode(text))
                length = (9 + 16 + third**2) ** 0.5
                assert entry.embedding == pytest.approx([3 / length, 4 / length, third / length])
            assert answer.usage.prompt_tokens == sum(len(tokenizer.encode(text)) for text in texts)
        found = scrape(api.url)
        assert found.value("chorus_prompt_tokens_total") == 2 * answer.usage.prompt_tokens
        assert found.value("chorus_request_success_total", finished_reason="stop") == 2
        short = client.embeddings.create(model=MODEL_ID, input=[5, 6, 7], dimensions=2)
        assert short.data[0].embedding == pytest.approx([0.6, 0.8])
        assert list(engine.embedded[-1].prompt) == [5, 6, 7]
        assert engine.embedded[-1].pooling == pb.EmbedRequest.LAST
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=MODEL_ID, input="x", dimensions=4)
        assert caught.value.param == "dimensions"
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(model=MODEL_ID, input=[5] * 300)


def test_the_models_files_say_how_it_is_done(tmp_path: Path) -> None:
    write_modules(tmp_path, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False})
    embedding = embedding_of(tmp_path, None)
    assert (embedding.pooling, embedding.normalized) == ("last", True)


def test_the_mean_is_pooled_unless_the_files_say_otherwise(tmp_path: Path) -> None:
    write_modules(tmp_path, normalize=False)
    embedding = embedding_of(tmp_path, None)
    assert (embedding.pooling, embedding.normalized) == ("mean", False)


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, None), (None, False)],
)
def test_what_cannot_be_done_or_is_switched_off_is_refused(tmp_path: Path, pooling: Any, wanted: bool | None) -> None:
    write_modules(tmp_path, pooling)
    with pytest.raises(NoEmbeddings):
        embedding_of(tmp_path, wanted)


def test_what_comes_behind_the_pooling_and_is_not_supported_is_named(tmp_path: Path) -> None:
    write_modules(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.insert(2, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(NoEmbeddings, match="asks for Dense, and only Transformer, Pooling and Normalize are supported"):
        embedding_of(tmp_path, None)
