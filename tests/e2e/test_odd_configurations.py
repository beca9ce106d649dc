"""Models whose config.json transformers refuses or does not know are served like any other: mlx-lm runs them, and the
tokenizer is in files of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.alone import text_alone
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model
from tests.support.tiny_tokenizer import write_sentencepiece_model

PROMPT, COUNT = "The capital of France is", 8

NULLS: dict[str, Any] = dict.fromkeys(
    ("max_position_embeddings", "rope_scaling", "sliding_window", "head_dim", "architectures", "text_config")
)


def with_config(model: Path, folder: Path, **changes: Any) -> Path:
    """The same weights and tokenizer beside a changed configuration."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("architecture", "plain", "odd"),
    [
        ("llama", {}, NULLS),
        ("llama", {"rope_theta": 10000.0}, {"rope_theta": 10000}),
        ("llama", {}, {"model_type": "iquestcoder"}),
        ("mamba2", {"time_step_limit": [0.0, 100.0]}, {"time_step_limit": [0, 100], "max_position_embeddings": None}),
    ],
    ids=["nulls", "ints for floats", "another name", "ints in a list"],
)
def test_a_model_says_the_same_whatever_the_form_of_its_configuration(
    tmp_path: Path, architecture: str, plain: dict[str, Any], odd: dict[str, Any]
) -> None:
    usual = write_tiny_model(tmp_path / "usual", architecture, **plain)
    assert text_alone(with_config(usual, tmp_path / "odd", **odd), PROMPT, COUNT) == text_alone(usual, PROMPT, COUNT)


def test_a_server_of_two_ranks_serves_such_a_model_with_a_tokenizer_of_sentencepiece(tmp_path: Path) -> None:
    usual = write_tiny_model(tmp_path / "usual", vocab_size=512, rope_theta=10000.0, tokenizer=False)
    write_sentencepiece_model(usual, tokenizer_class="LlamaTokenizer")
    odd = with_config(usual, tmp_path / "odd", **NULLS, rope_theta=10000, model_type="xverse")
    with ChorusServer(odd, ["--ranks", "2", "--context", "3000"], tmp_path) as server:
        assert server.text(PROMPT, max_tokens=COUNT) == text_alone(usual, PROMPT, COUNT)
        answer = server.client().chat.completions.create(
            model="odd", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 0
        assert server.get("/v1/models")["data"][0]["context_length"] == 3000
        assert server.get("/model/info")["architecture"] == "xverse"
