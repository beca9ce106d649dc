"""Whoever copies a command from the documentation finds that it exists, with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:console|sh|bash)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?:[\w-]*[$#] *)?(?:[\w./~]*/)?chorus (.*)")
END = {"|", "||", "&", "&&", ">", ";", "<"}


def commands_in(text: str) -> Iterator[list[str]]:
    """The words behind `chorus` of each command in a block, as a shell reads them."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if found := LINE.match(line.strip()):
                words = shlex.split(found[1], comments=True)
                end = next((place for place, word in enumerate(words) if word in END), len(words))
                yield words[:end]


def helps() -> dict[str, str]:
    """The help of each command, by its name, as it is written down."""
    parts = re.split(
        r"^\$ chorus(.*) --help\n", (ROOT / "tests" / "surface" / "help.txt").read_text(), flags=re.MULTILINE
    )
    return {name.strip(): text for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def fault(words: list[str], known: dict[str, str]) -> str | None:
    """What of a command there is not."""
    name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in known), None)
    if name is None:
        return f"there is no command {' '.join(words[:2])}"
    options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    unknown = sorted(options - set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", known[name])))
    return f"{name} has no {', '.join(unknown)}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists(page: Path) -> None:
    found = [(" ".join(words), fault(words, helps())) for words in commands_in(page.read_text())]
    assert [(command, wrong) for command, wrong in found if wrong] == []


def test_a_command_that_is_not_there_is_seen() -> None:
    text = "```console\nfirst$ chorus nothing\n$ chorus serve M --no-such | cat\n./bin/chorus models pull M  # --x\n```"
    words = list(commands_in(text))
    assert [fault(some, helps()) for some in words] == ["there is no command nothing", "serve has no --no-such", None]
