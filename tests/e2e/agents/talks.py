"""What the clients are asked to do, and what the model says to it: thoughts, calls as models write them, answers.

Clients send calls back rewritten: other spaces, another order, other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.e2e.agents.programs import Agent, ClaudeCode, OpenCode
from tests.support.scripted_tokens import Talk

AGAIN = "Change it to pear."


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def thinking(thought: str, said: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{said}"


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


def claude_code(folder: Path) -> Errand:
    note = folder / "work" / "note.txt"
    copy = '{"command": "cat note.txt > copy.txt && echo copied", "timeout": 5000.0, "description": "Copy it"}'
    answers = (
        thinking("First the note.", "I write it.\n" + call("Write", f'{{"content":"plum\\n","file_path":"{note}"}}')),
        call("Read", f'{{"limit": 5.0, "file_path": "{note}"}}'),
        thinking("Then the copy.", call("Bash", copy)),
        "The note and its copy say plum.",
        call("ToolSearch", '{"query": "select:NotebookEdit", "max_results": 3}'),
        thinking(
            "A new fruit.",
            call("Edit", f'{{"file_path": "{note}", "old_string": "plum", "new_string": "pear"}}'),
        ),
        "The note says pear.",
    )
    return Errand(ClaudeCode, folder, "Write plum into note.txt, read it, and copy it to copy.txt.", answers)


def opencode(folder: Path) -> Errand:
    note = folder / "work" / "note.txt"
    copy = '{"command": "cat note.txt > copy.txt && echo copied", "timeout": 5000.0, "description": "Copy it"}'
    answers = (
        thinking("First the note.", "I write it.\n" + call("write", f'{{"content":"plum\\n","filePath":"{note}"}}')),
        call("read", f'{{"limit": 5, "filePath": "{note}"}}'),
        thinking("Then the copy.", call("bash", copy)),
        "The note and its copy say plum.",
        thinking(
            "A new fruit.",
            call("edit", f'{{"filePath": "{note}", "oldString": "plum", "newString": "pear"}}'),
        ),
        "The note says pear.",
    )
    return Errand(OpenCode, folder, "Write plum to note.txt, read it, and copy it to copy.txt.", answers)
