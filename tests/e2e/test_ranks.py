"""The real model over several ranks, by HTTP, packed frames between them too: the text of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chorus.messages.engine import Sampling
from chorus.text.tokenizer import Tokenizer
from tests.e2e.test_schemas import PATIENT, documents_keep_to_their_schemas
from tests.support.margins import Reference, explain_difference, load_reference
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
ALONE = 2
"""So many prompts are also asked one after the other; all of them at once, as one batch."""

TEXT = "The river rises in the hills, turns the old mill, and reaches the sea after three days. " * 4
LONG_PROMPTS = [TEXT + "It begins", "def fibonacci(n):\n" * 12, "1, 2, 3, 4, 5, " * 20]


@dataclass(frozen=True)
class Said:
    alone: list[list[int]]
    together: list[list[int]]


def said_by(server: ChorusServer) -> Said:
    return Said([tokens(server, prompt) for prompt in PROMPTS[:ALONE]], batch_tokens(server))


@pytest.fixture(scope="session")
def reference(smollm2: Path) -> Reference:
    return load_reference(smollm2)


@pytest.fixture(scope="session")
def one_rank(smollm2_server: ChorusServer, reference: Reference, smollm2: Path) -> Said:
    """What one rank says to each prompt, asked alone or with the others."""
    said = said_by(smollm2_server)
    part_only_at_near_ties(smollm2, reference, said.alone, said.together[:ALONE])
    return said


def part_only_at_near_ties(
    model: Path, reference: Reference, said: list[list[int]], other: list[list[int]], prompts: list[str] = PROMPTS
) -> None:
    """Batches differ in what has come together, and a CPU's kernels round what a sum in another order has moved."""
    tokenizer = Tokenizer.load(model)
    for prompt, lone, answer in zip(prompts, said, other, strict=False):
        assert explain_difference(reference, tokenizer.encode(prompt), lone, answer, Sampling()) is None, prompt


def tokens(server: ChorusServer, prompt: str, count: int = TOKENS) -> list[int]:
    answer = server.complete(prompt, max_tokens=count, return_token_ids=True)
    return list(answer["choices"][0]["token_ids"])


def batch_tokens(server: ChorusServer) -> list[list[int]]:
    """What it says to all prompts of one request, which run together: a step then reads the weights once for all."""
    answer = server.complete(PROMPTS, max_tokens=TOKENS, return_token_ids=True)
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    return [list(choice["token_ids"]) for choice in choices]


def traffic(server: ChorusServer) -> tuple[int, int]:
    sender = server.get("/cluster/status")["ranks"][1]
    return sender["tensor_bytes"], sender["sent_bytes"]


@pytest.mark.parametrize("transport", ["grpc", "ring", "mpi"])
def test_three_unequal_stages_say_exactly_what_one_rank_says(
    transport: str, one_rank: Said, reference: Reference, smollm2: Path, tmp_path: Path
) -> None:
    arguments = ["--ranks", "3", "--split", "20,7,3", "--transport", transport, "--threads", "1"]
    with ChorusServer("smollm2-135m", arguments, tmp_path) as server:
        held = [rank["layers"] for rank in server.get("/model/info")["ranks"]]
        assert held == ["10-29", "3-9", "0-2"]
        said = said_by(server)
        # Alone, stages do the very same as one rank.
        assert said.alone == one_rank.alone
        part_only_at_near_ties(smollm2, reference, one_rank.together, said.together)
        if transport == "grpc":
            # Frames are packed on one machine only when asked.
            plain, sent = traffic(server)
            assert plain == sent > 0


@pytest.mark.parametrize("weights", ["2,1", "1,1,1"])
def test_slices_of_unequal_weight_say_what_one_rank_says(
    weights: str, one_rank: Said, reference: Reference, smollm2: Path, tmp_path: Path
) -> None:
    ranks = str(len(weights.split(",")))
    arguments = ["--ranks", ranks, "--parallel", "tensor", "--weights", weights, "--threads", "1"]
    with ChorusServer("smollm2-135m", arguments, tmp_path) as server:
        assert server.get("/model/info")["parallel"] == "tensor"
        said = said_by(server)
    part_only_at_near_ties(smollm2, reference, one_rank.alone, said.alone)
    part_only_at_near_ties(smollm2, reference, one_rank.together, said.together)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    """Two ranks whose frames are packed."""
    arguments = ["--ranks", "2", "--transport", "grpc", "--threads", "1", "--compression", "on"]
    with ChorusServer("smollm2-135m", arguments, tmp_path_factory.mktemp("packed"), PATIENT) as server:
        yield server


def test_packed_activations_give_the_same_text(
    smollm2_server: ChorusServer, packed: ChorusServer, reference: Reference, smollm2: Path
) -> None:
    """The one rank reads less of a prompt, whose first tokens it has met before, with as many threads as it likes."""
    expected = [tokens(smollm2_server, prompt, 8) for prompt in LONG_PROMPTS]
    said = [tokens(packed, prompt, 8) for prompt in LONG_PROMPTS]
    part_only_at_near_ties(smollm2, reference, expected, said, LONG_PROMPTS)
    plain, sent = traffic(packed)
    assert plain / sent > 1.1


def test_hot_documents_of_the_real_model_keep_to_their_schemas(packed: ChorusServer, smollm2: Path) -> None:
    documents_keep_to_their_schemas(packed, smollm2, 20, 64)
