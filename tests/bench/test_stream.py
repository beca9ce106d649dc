from __future__ import annotations

from typing import Any

import orjson
import pytest

from chorus.bench.stream import NoEvents, Usage, event_data, event_text, event_usage, lines, read


def event(**data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def piece(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"delta": {"content": text}, "finish_reason": finish}])


def test_only_data_events_are_read() -> None:
    assert event_data('data: {"a": 1}') == event_data(b'data:{"a": 1}') == {"a": 1}
    assert [event_data(line) for line in ("", ": keepalive", "event: x", "data: [DONE]")] == [None] * 4


@pytest.mark.parametrize("line", ["data: <html>", "data: [1]", "data: null", b"data: \xff"])
def test_an_event_that_is_none_is_told(line: str | bytes) -> None:
    with pytest.raises(NoEvents):
        event_data(line)


def test_the_text_of_chats_and_of_completions_is_read_alike_and_thoughts_too() -> None:
    assert event_text({"choices": [{"text": "a"}]}) == "a"
    assert event_text({"choices": [{"delta": {"content": "b"}}]}) == "b"
    assert event_text({"choices": [{"delta": {"content": None, "reasoning_content": "c"}}]}) == "c"
    assert event_text({"choices": [{"delta": {"role": "assistant", "content": None}}]}) == ""


@pytest.mark.parametrize("data", [{}, {"usage": {}}, {"choices": 1}, {"choices": [1, {"delta": 2}, {"text": 3}]}])
def test_an_event_of_another_shape_has_no_text(data: dict[str, Any]) -> None:
    assert event_text(data) == ""


@pytest.mark.parametrize(
    ("told", "read_as"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, Usage(3, 2, None)),
        (
            {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
            Usage(3, 2, 1),
        ),
        ({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(3, 2, None)),
        ({"prompt_tokens": -3, "completion_tokens": 2}, None),
        ({"prompt_tokens": True, "completion_tokens": 2}, None),
        ({"prompt_tokens": 3, "completion_tokens": 10**12}, None),
        ("many", None),
    ],
)
def test_usage_counts_where_it_is_numbers_that_can_be(told: Any, read_as: Usage | None) -> None:
    assert event_usage({"usage": told}) == read_as


def test_a_line_has_the_moment_at_which_it_was_whole() -> None:
    chunks = [(1.0, b"a"), (2.0, b"b\r\nc\nd"), (3.0, b""), (4.0, b"e")]
    assert list(lines(chunks)) == [(2.0, b"ab"), (2.0, b"c"), (4.0, b"de")]


def test_a_stream_has_its_pieces_in_time_its_usage_and_its_end() -> None:
    usage = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 2})
    found = read([(1.0, piece("Hel")), (2.0, piece("lo") + piece("", "stop")), (3.0, usage + b"data: [DONE]\n\n")])
    assert (found.arrivals, found.text, found.usage, found.finished) == ((1.0, 2.0), "Hello", Usage(5, 2, None), True)


def test_a_stream_that_stops_has_not_finished_and_one_that_fails_says_why() -> None:
    assert not read([(1.0, piece("Hel"))]).finished
    assert read([(1.0, piece("Hel")), (2.0, event(error={"message": "no room"}))]).error == "no room"


@pytest.mark.parametrize("body", [b"", b"<html>hello</html>", b'{"choices": []}'])
def test_what_is_no_stream_is_told(body: bytes) -> None:
    with pytest.raises(NoEvents):
        read([(1.0, body)])
