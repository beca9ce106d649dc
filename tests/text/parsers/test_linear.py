"""A client can make a model write nearly anything: no text takes long to read, or ends in an error."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import chorus
from chorus.text.parsers import choose
from tests.text.parsers.samples import SAMPLES, TOOLS, Sample

MANY = 2000
ROWS = ("[", '{"a":', '{"function":', "1", " ", '"', "<", "/ ", "-", "<tool_call>", "<parameter=x>[")
PACKAGES = ("api", "frontend", "text", "localai")


def read(sample: Sample, beginning: str, row: str, times: int) -> float:
    """How long it took, in seconds of the processor."""
    parser = choose("", sample.family).new(tools=TOOLS, thinks=True, starts_in_reasoning=False, id_factory=lambda: "id")
    began = time.process_time()
    parser.push(beginning)
    for _ in range(times):
        parser.push(row)
    parser.flush()
    return time.process_time() - began


def calling(family: str) -> Sample:
    return next(sample for sample in SAMPLES if sample.family == family and sample.calls)


@pytest.mark.parametrize("family", sorted({sample.family for sample in SAMPLES if sample.calls}))
def test_what_goes_on_with_rows_of_marks_is_read_to_its_end(family: str) -> None:
    sample = calling(family)
    for part in (3, 6):
        for row in ROWS:
            read(sample, sample.text[: len(sample.text) * part // 8], row, MANY)


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder", "minimax"])
@pytest.mark.parametrize("row", ["[", "1", " ", "/"])
def test_twice_the_text_takes_twice_the_time(family: str, row: str) -> None:
    sample = calling(family)
    begun = sample.text[: len(sample.text) // 2]
    once = min(read(sample, begun, row, 5 * MANY) for _ in range(2))
    assert min(read(sample, begun, row, 20 * MANY) for _ in range(2)) < 10 * once + 0.1


def patterns() -> Iterator[tuple[str, str]]:
    """Every regular expression in the packages that see what clients and models wrote, with the place it stands."""
    for package in PACKAGES:
        for file in sorted((Path(chorus.__file__).parent / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func
                of_re = called and isinstance(called.value, ast.Name) and called.value.id == "re"
                if isinstance(node, ast.Call) and of_re and node.args and (pattern := spelled(node.args[0])):
                    yield f"{package}/{file.name}:{node.lineno}", pattern


def spelled(node: ast.expr) -> str:
    """The text of a pattern; what is filled in when it is used is a word here."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(raw)):
            return raw.decode()
        case ast.JoinedStr(values=values):
            return "".join(spelled(value) if isinstance(value, ast.Constant) else "word" for value in values)
    return ""


@pytest.mark.parametrize(("place", "pattern"), list(patterns()))
def test_a_regular_expression_is_linear(place: str, pattern: str) -> None:
    compiled = re.compile(pattern, re.DOTALL | re.MULTILINE)
    letters = sorted(set(re.sub(r"[\\()\[\]?*+|^$]", "", pattern)) | set(" \n0a-./\"'"))
    for row in [*letters, *(first + second for first in letters for second in " \n")]:
        for last in ("", "\0"):
            once = searched(compiled, row * 2000 + last)
            assert searched(compiled, row * 20_000 + last) < 30 * once + 0.1, (place, row)


def searched(pattern: re.Pattern[str], text: str) -> float:
    began = time.process_time()
    pattern.search(text)
    pattern.fullmatch(text)
    pattern.sub("", text)
    return time.process_time() - began
