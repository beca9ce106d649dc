"""A conversation as plain data: what was said, by whom, and how the next answer is asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorus.errors import ChorusError
from chorus.platform.storage.files import write_whole
from chorus.platform.terminal import harmless

MOST_FILE_BYTES = 16 << 20
OURS = frozenset({"model", "messages", "stream", "stream_options", "n"})
"""Parts of a request that the chat itself decides."""
_ROLES = ("system", "user", "assistant")

Message = dict[str, str]


class NoConversation(ChorusError):
    """A file cannot be read or written as a conversation, or a line means nothing: says why."""


@dataclass
class Conversation:
    """Who is spoken to, with which parameters, and all that was said."""

    model: str
    system: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    question: str = ""
    """The last one, for another try, also after one that failed."""

    def body(self, stream: bool = True) -> dict[str, Any]:
        """The request for the next answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        asked = {"model": self.model, "messages": [*system, *self.messages], **self.parameters, "stream": stream}
        return {**asked, "stream_options": {"include_usage": True}} if stream else asked

    def ask(self, question: str) -> None:
        self.question = question
        self.messages.append({"role": "user", "content": question})

    def answered(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> str | None:
        """Forget the last question and what was answered; gives the question, None where there is none."""
        while self.messages:
            last = self.messages.pop()
            if last["role"] == "user":
                return last["content"]
        return None

    def set(self, name: str, text: str) -> None:
        """A parameter of the request, as typed: a number, true, a list or a word. Without a text it is taken out."""
        if name in OURS or not name.isidentifier():
            raise NoConversation(f"{name} is not a parameter to set: /help names those that are")
        if not text:
            self.parameters.pop(name, None)
            return
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        try:
            _as_sent(value)
        except (ValueError, RecursionError) as error:
            raise NoConversation(f"{name}: no request can hold that: {error}") from None
        self.parameters[name] = value

    def save(self, file: Path) -> None:
        """As JSON, which can be loaded again, or as Markdown to read, by the ending of the file's name."""
        if file.suffix not in (".json", ".md"):
            raise NoConversation(f"{file}: call it NAME.md to read it, or NAME.json to load it again")
        text = self.as_json() if file.suffix == ".json" else self.as_markdown()
        try:
            write_whole(file, text.encode(errors="replace"))
        except OSError as error:
            raise NoConversation(f"{file} cannot be written: {error.strerror}") from None

    def as_json(self) -> str:
        told = {
            "model": self.model,
            "system": self.system,
            "parameters": self.parameters,
            "messages": self.messages,
        }
        return json.dumps(told, indent=2) + "\n"

    def as_markdown(self) -> str:
        system = [{"role": "system", "content": self.system}] if self.system else []
        parts = [f"## {message['role']}\n\n{message['content']}\n" for message in (*system, *self.messages)]
        return harmless("\n".join([f"# {self.model}\n", *parts]))

    def load(self, file: Path) -> None:
        """Go on with a conversation that was saved as JSON; nothing changes where that cannot be."""
        try:
            with file.open("rb") as opened:
                data = opened.read(MOST_FILE_BYTES + 1)
        except OSError as error:
            raise NoConversation(f"{file} cannot be read: {error.strerror}") from None
        if len(data) > MOST_FILE_BYTES:
            raise NoConversation(f"{file} has more than {MOST_FILE_BYTES >> 20} MiB: that is no conversation")
        try:
            found = json.loads(data)
            messages = [{"role": message["role"], "content": message["content"]} for message in found["messages"]]
            fine = all(message["role"] in _ROLES and isinstance(message["content"], str) for message in messages)
            system, parameters = str(found.get("system") or ""), dict(found.get("parameters") or {})
            _as_sent([messages, system, parameters])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            fine = False
        if not fine:
            raise NoConversation(f"{file} is no conversation that /save NAME.json wrote")
        self.system, self.messages = system, messages
        self.parameters = {name: value for name, value in parameters.items() if name not in OURS}
        asked = [message["content"] for message in messages if message["role"] == "user"]
        self.question = asked[-1] if asked else ""


def _as_sent(value: Any) -> bytes:
    """Raises ValueError where no request can hold it: numbers that are not finite, halves of characters."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
