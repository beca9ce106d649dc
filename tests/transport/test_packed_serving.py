"""The real model over two ranks whose frames are packed: the text of one rank."""

from __future__ import annotations

from pathlib import Path

from tests.support.server import ChorusServer

TEXT = "The river rises in the hills, turns the old mill, and reaches the sea after three days. " * 4
PROMPTS = [TEXT + "It begins", "def fibonacci(n):\n" * 12, "1, 2, 3, 4, 5, " * 20]


def tokens(server: ChorusServer) -> list[list[int]]:
    answers = [server.complete(prompt, max_tokens=8, return_token_ids=True) for prompt in PROMPTS]
    return [answer["choices"][0]["token_ids"] for answer in answers]


def traffic(server: ChorusServer) -> tuple[int, int]:
    sender = server.get("/cluster/status")["ranks"][1]
    return sender["tensor_bytes"], sender["sent_bytes"]


def test_packed_activations_give_the_same_text_and_on_one_machine_only_when_asked(tmp_path: Path) -> None:
    with ChorusServer("smollm2-135m", [], tmp_path) as alone:
        expected = tokens(alone)
    ranks = ["--ranks", "2", "--transport", "grpc", "--threads", "1"]
    with ChorusServer("smollm2-135m", [*ranks, "--compression", "on"], tmp_path) as packed:
        assert tokens(packed) == expected
        plain, sent = traffic(packed)
        assert plain / sent > 1.1
    with ChorusServer("smollm2-135m", ranks, tmp_path) as left:
        assert tokens(left) == expected
        plain, sent = traffic(left)
        assert plain == sent > 0
