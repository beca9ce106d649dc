"""Which part of a growing Markdown text can be printed for good."""

from __future__ import annotations

import pytest

from chorus.cli.chat.blocks import MOST_LETTERS, Block, split_finished


def split(text: str, most_lines: int = 20) -> tuple[list[str], str]:
    finished, rest = split_finished(Block(text), most_lines)
    return [block.text for block in finished], rest.text


@pytest.mark.parametrize(
    ("text", "finished", "rest"),
    [
        ("one", [], "one"),
        ("one\n\n", [], "one\n\n"),
        ("one\n\ntwo", ["one"], "two"),
        ("one\ntwo\n\nthree\n\nfour", ["one\ntwo", "three"], "four"),
        ("- a\n\n  still a\n\nnext", ["- a\n\n  still a"], "next"),
        ("```\na\n\nb\n", [], "```\na\n\nb\n"),
        ("```\na\n\nb\n```\n\nafter", ["```\na\n\nb\n```"], "after"),
        ("````\n```\n\n```\n````\n\nafter", ["````\n```\n\n```\n````"], "after"),
        ("~~~\n```\n\nx\n~~~\n\nafter", ["~~~\n```\n\nx\n~~~"], "after"),
    ],
)
def test_a_block_is_finished_when_nothing_can_change_it(text: str, finished: list[str], rest: str) -> None:
    assert split(text) == (finished, rest)


def test_long_code_is_finished_in_parts_that_are_code_each() -> None:
    text = "```python\n" + "".join(f"x = {number}\n" for number in range(10))
    finished, rest = split_finished(Block(text), 4)
    assert [block.goes_on for block in finished] == [False, True]
    assert finished[0].text == "```python\nx = 0\nx = 1\nx = 2\nx = 3\n```"
    assert (rest.goes_on, rest.text) == (True, "```python\nx = 8\nx = 9\n")


def test_a_long_list_is_finished_between_its_entries() -> None:
    finished, rest = split_finished(Block("".join(f"{number}. entry\n" for number in range(1, 8))), 4)
    assert finished[0].text == "1. entry\n2. entry\n3. entry\n4. entry"
    assert (rest.goes_on, rest.text) == (True, "5. entry\n6. entry\n7. entry\n")


def test_a_paragraph_without_an_end_is_finished_between_words() -> None:
    finished, rest = split("word " * MOST_LETTERS)
    assert len(rest) <= MOST_LETTERS
    assert "".join(finished).split() + rest.split() == ["word"] * MOST_LETTERS


@pytest.mark.parametrize("step", [1, 3, 7])
def test_however_a_text_comes_the_same_is_printed(step: int) -> None:
    text = "# Title\n\nSome text.\n\n- a\n- b\n\n```\ncode\n\nmore\n```\n\n| a |\n|---|\n| 1 |\n\nThe end."
    growing, printed = Block(""), []
    for place in range(0, len(text), step):
        finished, growing = split_finished(Block(growing.text + text[place : place + step], growing.goes_on), 20)
        printed += finished
    whole, rest = split_finished(Block(text), 20)
    assert [*printed, growing] == [*whole, rest]
