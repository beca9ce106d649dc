"""The real model over several ranks, by HTTP: the text of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from chorus.messages.engine import Sampling
from chorus.text.tokenizer import Tokenizer
from tests.support.margins import explain_difference, load_reference
from tests.support.server import ChorusServer

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a forest",
    "Water boils at",
    "The three primary colours are",
    "To bake bread you need",
    "In 1969, people first",
    "The opposite of hot is",
    "A haiku about the sea:",
    "SELECT name FROM users WHERE",
    "The largest planet is",
    "My favourite season is",
    "Two plus two equals",
    "Dear Sir or Madam,",
    "The recipe begins with",
    "A triangle has",
    "Light travels at",
    "The cat sat on",
    "Photosynthesis is the process",
    "1, 1, 2, 3, 5, 8,",
]
TOKENS = 10


@pytest.fixture(scope="session")
def one_rank(smollm2_server: ChorusServer) -> list[list[int]]:
    return [tokens(smollm2_server, prompt) for prompt in PROMPTS]


def tokens(server: ChorusServer, prompt: str) -> list[int]:
    answer = server.complete(prompt, max_tokens=TOKENS, return_token_ids=True)
    return list(answer["choices"][0]["token_ids"])


@pytest.mark.parametrize("transport", ["grpc", "ring", "mpi"])
def test_three_unequal_stages_say_exactly_what_one_rank_says(
    transport: str, one_rank: list[list[int]], tmp_path: Path
) -> None:
    arguments = ["--ranks", "3", "--split", "20,7,3", "--transport", transport, "--threads", "1"]
    with ChorusServer("smollm2-135m", arguments, tmp_path) as server:
        held = [rank["layers"] for rank in server.get("/model/info")["ranks"]]
        assert held == [[10, 30], [3, 10], [0, 3]]
        assert [tokens(server, prompt) for prompt in PROMPTS] == one_rank


@pytest.mark.parametrize("weights", ["2,1", "1,1,1"])
def test_slices_of_unequal_weight_say_what_one_rank_says(
    weights: str, one_rank: list[list[int]], smollm2: Path, tmp_path: Path
) -> None:
    ranks = str(len(weights.split(",")))
    arguments = ["--ranks", ranks, "--parallel", "tensor", "--weights", weights, "--threads", "1"]
    tokenizer, reference = Tokenizer.load(smollm2), load_reference(smollm2)
    with ChorusServer("smollm2-135m", arguments, tmp_path) as server:
        assert server.get("/model/info")["parallel"] == "tensor"
        for prompt, lone in zip(PROMPTS, one_rank, strict=True):
            other = tokens(server, prompt)
            assert explain_difference(reference, tokenizer.encode(prompt), lone, other, Sampling()) is None, prompt
