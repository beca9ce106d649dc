from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorus.text.stops import Stops


def search(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the earliest start wins, then the longest stop string."""
    starts = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
    if not starts:
        return text, None
    start, _, stop = min(starts)
    return text[:start], stop


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = Stops(stops).matcher()
    emitted = ""
    for piece in pieces:
        safe, stop = matcher.push(piece)
        emitted += safe
        if stop is not None:
            assert matcher.matched == stop
            return emitted, stop
    return emitted + matcher.flush(), matcher.matched


few_letters = st.text(alphabet="ab\n€", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab\n€", min_size=1, max_size=6), max_size=4)


@given(pieces=st.lists(st.text(alphabet="ab\n€", max_size=6), max_size=15), stops=stop_lists)
def test_text_in_pieces_stops_where_the_whole_text_would(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == search("".join(pieces), stops)


@given(text=few_letters, stops=stop_lists)
def test_single_characters_stop_where_the_whole_text_would(text: str, stops: list[str]) -> None:
    assert run(list(text), stops) == search(text, stops)


@given(text=few_letters, stops=stop_lists.filter(bool))
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = Stops(stops).matcher()
    emitted, stop = matcher.push(text)
    if stop is None:
        held = text[len(emitted) :]
        assert held == "" or any(len(held) < len(stop) and stop.startswith(held) for stop in stops)


def test_a_partial_stop_string_is_released_when_it_fails() -> None:
    matcher = Stops(["END"]).matcher()
    assert matcher.push("the E") == ("the ", None)
    assert matcher.push("N") == ("", None)
    assert matcher.push("TRY") == ("ENTRY", None)
    assert matcher.flush() == ""


def test_a_stop_string_over_three_pieces_is_found() -> None:
    matcher = Stops(["\n\nUser:"]).matcher()
    assert matcher.push("yes\n") == ("yes", None)
    assert matcher.push("\nUs") == ("", None)
    assert matcher.push("er: more") == ("", "\n\nUser:")


def test_nothing_is_emitted_after_a_match() -> None:
    matcher = Stops(["x"]).matcher()
    assert matcher.push("a x b") == ("a ", "x")
    assert matcher.push("more") == ("", None)
    assert matcher.flush() == ""
    assert matcher.matched == "x"


def test_a_match_waits_for_a_longer_stop_string_that_starts_with_it() -> None:
    matcher = Stops(["ab", "abc"]).matcher()
    assert matcher.push("-ab") == ("-", None)
    assert matcher.push("c") == ("", "abc")


def test_the_end_of_the_text_settles_a_waiting_match() -> None:
    matcher = Stops(["ab", "abc"]).matcher()
    assert matcher.push("-ab") == ("-", None)
    assert matcher.flush() == ""
    assert matcher.matched == "ab"


def test_without_stop_strings_text_passes_unchanged() -> None:
    matcher = Stops([]).matcher()
    assert matcher.push("anything") == ("anything", None)
    assert matcher.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="stop string is empty"):
        Stops(["ok", ""])
