"""Documents that keep to a schema, drawn hot, over two ranks."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import jsonschema
import llguidance.hf
import pytest
from llguidance import LLMatcher
from transformers import AutoTokenizer

from chorus.serving.requests.grammar import tidy
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model

Schema = dict[str, Any]

TOGETHER = 32
"""As many as share a step."""
PATIENT = {"CHORUS_ENGINE__GRAMMAR_COMPILE_SECONDS": "120", "CHORUS_ENGINE__GRAMMAR_MASK_SECONDS": "120"}
"""As many processes follow their grammars: what is asked here is what they allow, and not how soon."""


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer for each rank: what is asked of them is which tokens they choose."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    return write_tiny_model(folder, "llama", vocab_size=512, max_position_embeddings=4096, num_hidden_layers=2)


def random_schema(random: Random, depth: int = 0) -> Schema:
    """Nested objects, arrays, enums, references, patterns, numbers with bounds."""
    simple = [
        lambda: {"type": "string", "maxLength": random.randint(1, 8)},
        lambda: {"type": "string", "pattern": random.choice(["^[a-c]{1,4}$", "^(yes|no)$", "^[0-9]{2}-[A-Z]$"])},
        lambda: {"type": "integer", "minimum": random.randint(-9, 0), "maximum": random.randint(1, 99)},
        lambda: {"type": "number", "minimum": 0, "maximum": 10},
        lambda: {"type": "boolean"},
        lambda: {"enum": random.sample(["red", "green", 3, None, True], 3)},
        lambda: {"$ref": "#/$defs/word"},
    ]
    if depth >= 2 or random.random() < 0.5:
        return random.choice(simple)()
    if random.random() < 0.4:
        return {"type": "array", "items": random_schema(random, depth + 1), "minItems": 0, "maxItems": 3}
    return random_object(random, depth)


def random_object(random: Random, depth: int = 0) -> Schema:
    names = random.sample(["name", "kind", "size", "tags", "inner", "note"], random.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: random_schema(random, depth + 1) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def whole_schema(seed: int) -> Schema:
    return {**random_object(Random(seed)), "$defs": {"word": {"type": "string", "enum": ["north", "south"]}}}


def ask(server: ChorusServer, seed: int, tokens: int) -> tuple[Schema, dict[str, Any]]:
    schema = whole_schema(seed)
    body = {
        "messages": [{"role": "user", "content": "Give me an example."}],
        "temperature": 1.5,
        "seed": seed,
        "max_tokens": tokens,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
        "return_token_ids": True,
    }
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=500)
    assert answer.status_code == 200, answer.text
    return schema, answer.json()["choices"][0]


def check(model: Path, answers: list[tuple[Schema, dict[str, Any]]]) -> int:
    """Finished documents are valid, cut ones valid beginnings; returns how many were finished."""
    tokenizer = llguidance.hf.from_tokenizer(AutoTokenizer.from_pretrained(model))
    finished = 0
    for schema, choice in answers:
        text = choice["message"]["content"]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(text), schema)
            finished += 1
        else:
            assert choice["finish_reason"] == "length"
            matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(tidy(schema))))
            assert matcher.try_consume_tokens(choice["token_ids"]) == len(choice["token_ids"]), text
    return finished


def documents_keep_to_their_schemas(server: ChorusServer, model: Path, count: int, tokens: int) -> None:
    """Of which at least half are whole."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        answers = list(pool.map(lambda seed: ask(server, seed, tokens), range(count)))
    assert check(model, answers) >= count // 2


def test_hot_documents_keep_to_their_schemas_over_two_ranks(tiny_model: Path, tmp_path: Path) -> None:
    with ChorusServer(tiny_model, ["--ranks", "2"], tmp_path, PATIENT) as server:
        documents_keep_to_their_schemas(server, tiny_model, 180, 160)
