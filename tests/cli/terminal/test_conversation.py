"""What a chat keeps, writes and reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chorus.cli.chat.conversation import MOST_FILE_BYTES, Conversation, NoConversation


def test_parameters_are_what_was_typed_and_none_of_the_chats_own() -> None:
    talk = Conversation("m")
    for typed in ("temperature 0.5", "stop word", 'logit_bias {"2": -100}', "seed 7"):
        talk.set(*typed.split(" ", 1))
    talk.set("seed", "")
    assert talk.parameters == {"temperature": 0.5, "stop": "word", "logit_bias": {"2": -100}}
    for name in ("messages", "model", "stream", "../x", ""):
        with pytest.raises(NoConversation, match="is not a parameter"):
            talk.set(name, "1")


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity", '[1, {"a": [1e400]}]'])
def test_numbers_that_cannot_be_sent_are_no_parameters(number: str) -> None:
    talk = Conversation("m", parameters={"temperature": 0.5})
    with pytest.raises(NoConversation, match="temperature: no request can hold that: Out of range float values"):
        talk.set("temperature", number)
    assert talk.parameters == {"temperature": 0.5}
    talk.set("stop", "[" * 100_000)
    assert talk.parameters["stop"] == "[" * 100_000


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    talk = Conversation("m", "Be brief.", {"temperature": 0.0})
    talk.ask("Hello")
    talk.answered("Hi\x1b[2J")
    talk.save(tmp_path / "talk.json")
    talk.save(tmp_path / "talk.md")
    again = Conversation("other")
    again.load(tmp_path / "talk.json")
    assert (again.messages, again.system, again.parameters) == (talk.messages, talk.system, talk.parameters)
    assert again.question == "Hello"
    assert "\x1b" not in (tmp_path / "talk.md").read_text()
    with pytest.raises(NoConversation, match=r"call it NAME\.md"):
        talk.save(tmp_path / "talk.txt")
    with pytest.raises(NoConversation, match="cannot be written"):
        talk.save(tmp_path / "talk.md" / "below.md")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b'{"messages": 1}',
        b'{"messages": [{"role": "root", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": 1}]}',
        b'{"messages": [], "parameters": 7}',
        b'{"messages": [], "parameters": {"temperature": NaN}}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b" " * (MOST_FILE_BYTES + 1),
    ],
    ids=range(12),
)
def test_what_is_no_conversation_is_refused_and_changes_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.json").write_bytes(data)
    talk = Conversation("m", "kept", messages=[{"role": "user", "content": "kept"}])
    with pytest.raises(NoConversation):
        talk.load(tmp_path / "x.json")
    assert (talk.system, len(talk.messages)) == ("kept", 1)


def test_a_file_cannot_decide_what_the_chat_decides(tmp_path: Path) -> None:
    told = {"messages": [], "parameters": {"stream": False, "model": "x", "top_p": 0.5}}
    (tmp_path / "x.json").write_text(json.dumps(told))
    talk = Conversation("m")
    talk.load(tmp_path / "x.json")
    assert talk.body()["stream"] is True
    assert talk.parameters == {"top_p": 0.5}
