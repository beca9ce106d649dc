"""One test that asks many questions of one thing which takes long to make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

Question = Callable[[], None]


def ask(*questions: Question) -> None:
    """Asks all of them, also after one has failed; the failure names each that did and says why."""
    failed: list[str] = []
    for question in questions:
        try:
            question()
        except Exception as error:
            failed.append(f"{_name(question)}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)


def _name(question: Question) -> str:
    function = question.func if isinstance(question, partial) else question
    return function.__name__.replace("_", " ")
