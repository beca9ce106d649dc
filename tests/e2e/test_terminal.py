"""A real server, a chat with it in one terminal and `chorus top` in another."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.screen import CTRL_C, CTRL_D, ENTER, Terminal
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model

NO_END = '{"0": -100, "2": -100}'
"""Answers go on until their most tokens, or until somebody stops them."""
TOKENS = 60_000
"""Far more than there is time for."""


@pytest.fixture(scope="module")
def state() -> Iterator[str]:
    """Where the server leaves word of itself for whoever types a command; so short that sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="state-", dir="/tmp") as folder:
        yield folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, state: str) -> Iterator[ChorusServer]:
    folder = tmp_path_factory.mktemp("serve")
    model = write_tiny_model(folder / "tiny", "llama", vocab_size=512, max_position_embeddings=TOKENS + 4096)
    arguments = ["--ranks", "2", "--transport", "grpc"]
    with ChorusServer(model, arguments, folder, {"CHORUS_STATE": state}) as server:
        yield server


def test_what_a_chat_asks_is_seen_and_cancelled_from_another_terminal(
    server: ChorusServer, state: str, tmp_path: Path
) -> None:
    environment = {"CHORUS_STATE": state}
    with (
        Terminal(["chat", "--max-tokens", str(TOKENS)], tmp_path, environment) as chat,
        Terminal(["top", "--every", "0.3"], tmp_path, environment) as top,
        Terminal(["status", "--watch", "0.5"], tmp_path, environment) as status,
    ):
        shown = top.wait_for(lambda shown: "no request is running" in shown and "q quit" in shown)
        assert re.search(r"tiny  ready  0 running  http://127", shown)
        assert re.search(r"^0 .* 4-6 .*ready", shown, re.MULTILINE), "rank 0 holds the last layers"
        assert re.search(r"^1 .* 0-3 .*ready", shown, re.MULTILINE)
        status.wait_for("tiny")
        chat.wait_for("a new conversation")
        chat.type(f"/set logit_bias {NO_END}{ENTER}")
        chat.wait_for(f"max_tokens {TOKENS}, logit_bias")
        chat.type(f"Speak for a long time{ENTER}")
        top.wait_for(lambda shown: re.search(r"\n\w{12} +tiny +- +(?:decode|running|\w+)", shown) is not None)
        top.wait_for(lambda shown: re.search(r"^[1-9]\d*\.\d tok/s  1 running", shown, re.MULTILINE) is not None)
        status.wait_for(lambda shown: re.search(r"│ 0 .*│ [1-9]\d* +│", shown) is not None)
        top.type("cy")
        top.wait_for("is cancelled")
        chat.wait_for("cancelled")
        # What was drawn last may still be of the request that was cancelled.
        top.wait_for(lambda shown: "no request is running" in shown and "1 running" not in shown)
        chat.type(f"Once more{ENTER}")
        top.wait_for("1 running")
        chat.type(CTRL_C)
        chat.wait_for("stopped, ")
        top.wait_for("no request is running")
        chat.type(CTRL_D)
        top.type("q")
        status.type("q")
        assert [each.wait_for_end() for each in (chat, top, status)] == [0, 0, 0]
