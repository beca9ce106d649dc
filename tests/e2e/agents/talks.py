"""What the clients are asked to do, and what the model says to it: thoughts, calls as models write them, answers.

Clients send calls back rewritten: other spaces, another order, other numbers, arguments that nobody gave. What they
read on the way is little each time, and together more than may be read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.agents.programs import Agent, ClaudeCode, OpenCode
from tests.support.scripted_tokens import Talk

AGAIN = "Change it to pear."
PAGES = 4
PAGE_LINES = 10


@dataclass(frozen=True)
class Errand:
    """Two prompts of one conversation, in a folder where the client works."""

    client: type[Agent]
    folder: Path
    prompt: str
    answers: tuple[str, ...]

    @property
    def talk(self) -> Talk:
        return Talk(("<tools>", self.prompt), self.answers)

    @property
    def first_answer(self) -> str:
        return next(answer for answer in self.answers if "<tool_call>" not in answer)

    @property
    def last_answer(self) -> str:
        return self.answers[-1]


def story() -> str:
    return "".join(f"On day {day} the crew saw {day * 7} birds.\n" for day in range(1, PAGES * PAGE_LINES + 1))


def claude_code(folder: Path) -> Errand:
    work = folder / "work"
    answers = (
        thinking(
            "The note.", "I write it.\n" + call("Write", f'{{"content":"plum\\n","file_path":"{work}/note.txt"}}')
        ),
        *pages(lambda line: f'{{"offset": {line}.0, "limit": {PAGE_LINES}, "file_path": "{work}/story.txt"}}', "Read"),
        thinking("The copy.", call("Bash", COPY)),
        "The note and its copy say plum.",
        call("ToolSearch", '{"query": "select:NotebookEdit", "max_results": 3}'),
        thinking(
            "A new fruit.",
            call("Edit", f'{{"file_path": "{work}/note.txt", "old_string": "plum", "new_string": "pear"}}'),
        ),
        "The note says pear.",
    )
    return Errand(ClaudeCode, folder, "Write plum into note.txt, read story.txt, then copy the note.", answers)


def opencode(folder: Path) -> Errand:
    work = folder / "work"
    answers = (
        thinking("A note.", "I write it.\n" + call("write", f'{{"content":"plum\\n","filePath":"{work}/note.txt"}}')),
        *pages(lambda line: f'{{"offset": {line}, "limit": {PAGE_LINES}.0, "filePath": "{work}/story.txt"}}', "read"),
        thinking("The copy.", call("bash", COPY)),
        "The note and its copy say plum.",
        thinking(
            "A new fruit.",
            call("edit", f'{{"filePath": "{work}/note.txt", "oldString": "plum", "newString": "pear"}}'),
        ),
        "The note says pear.",
    )
    return Errand(OpenCode, folder, "Write plum to note.txt, read story.txt, then copy the note.", answers)


COPY = '{"command": "cat note.txt > copy.txt && echo copied", "timeout": 5000.0, "description": "Copy it"}'


def pages(arguments: Callable[[int], str], name: str) -> list[str]:
    return [thinking("On.", call(name, arguments(page * PAGE_LINES + 1))) for page in range(PAGES)]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def thinking(thought: str, said: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{said}"
