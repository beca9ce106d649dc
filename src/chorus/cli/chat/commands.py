"""What a line that begins with / does: one table, which help and completion read too."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chorus.bench.client import Client, one_line
from chorus.cli.chat.conversation import Conversation
from chorus.cli.chat.view import THOUGHT
from chorus.config.sampling import SamplingOptions
from chorus.errors import ChorusError, InternalSignal
from chorus.platform.sizes import size
from chorus.platform.terminal import harmless

PARAMETERS = ("max_tokens", "stop", *SamplingOptions.model_fields)
"""What /set offers; others are sent as they are typed, and it is for the server to refuse them."""


class LeaveChat(InternalSignal):
    """Somebody wants to go."""


@dataclass
class Totals:
    """What the answers of this chat have taken."""

    answers: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    """Of the last request: all that the model has to read now."""


@dataclass
class Chat:
    """All that a command may look at and change."""

    client: Client
    conversation: Conversation
    console: Console
    ask: Callable[[str], Awaitable[None]]
    """Asks a question and shows its answer."""
    totals: Totals = field(default_factory=Totals)
    folded: bool = False
    thoughts: str = ""
    """Of the last answer."""
    models: list[dict[str, Any]] = field(default_factory=list)
    """As they were when somebody looked last."""
    written: set[Path] = field(default_factory=set)
    """Files that this chat may write again."""

    def tell(self, text: str, style: str = "dim") -> None:
        self.console.print(Text(harmless(text), style))


@dataclass(frozen=True)
class Command:
    name: str
    arguments: str
    help: str
    run: Callable[[Chat, str], Awaitable[None]]


async def run(chat: Chat, line: str) -> None:
    """Do what a line with a command says; what cannot be done is told, and nothing else happens. Raises LeaveChat."""
    name, _, rest = line[1:].strip().partition(" ")
    chosen = [command for command in COMMANDS if command.name == name] or [
        command for command in COMMANDS if name and command.name.startswith(name)
    ]
    if len(chosen) != 1:
        chat.tell(f"/{name} is no command: /help shows those there are", "red")
        return
    try:
        await chosen[0].run(chat, rest.strip())
    except (ChorusError, OSError, ValueError) as error:
        chat.tell(str(error), "red")


async def _help(chat: Chat, _: str) -> None:
    table = Table.grid(padding=(0, 2))
    for command in COMMANDS:
        table.add_row(Text(f"/{command.name} {command.arguments}".strip(), "bold"), Text(command.help))
    chat.console.print(table)
    chat.tell(
        "Alt-Enter, or \\ at the end of a line: another line. Ctrl-C stops an answer; at an empty prompt it leaves, as "
        f"Ctrl-D does. Parameters: {', '.join(PARAMETERS)}."
    )


async def _model(chat: Chat, name: str) -> None:
    chat.models = await chat.client.models()
    if name:
        chat.conversation.model = name
        known = any(name in (entry["id"], *(entry.get("aliases") or ())) for entry in chat.models)
        chat.tell(f"{name} answers from now on" if known else f"{name}: the server does not list it; it may know it")
        return
    table = Table.grid(padding=(0, 2))
    for entry in chat.models:
        table.add_row(*(Text(harmless(cell)) for cell in _cells(entry, chat.conversation.model)))
    chat.console.print(table)


def _cells(entry: dict[str, Any], current: str) -> tuple[str, ...]:
    """A model as people read it; servers other than ours say no more than its name."""
    names = (entry["id"], *(entry.get("aliases") or ()))
    context, many = entry.get("context_length"), entry.get("size")
    return (
        "*" if current in names else " ",
        one_line(entry["id"]),
        one_line(str(entry.get("state") or "")),
        f"{context:,} tokens" if isinstance(context, int) else "",
        size(many) if isinstance(many, int) else "",
    )


async def _system(chat: Chat, text: str) -> None:
    if text:
        chat.conversation.system = "" if text == "-" else text
    chat.tell(f"system: {chat.conversation.system or 'none'}")


async def _set(chat: Chat, text: str) -> None:
    name, _, value = text.partition(" ")
    if name:
        chat.conversation.set(name, value.strip())
    told = ", ".join(f"{name} {json.dumps(value)}" for name, value in chat.conversation.parameters.items())
    chat.tell(told or "the server's own parameters")


async def _retry(chat: Chat, _: str) -> None:
    question = chat.conversation.take_back() or chat.conversation.question
    if question:
        chat.tell(f"> {question}")
        await chat.ask(question)
    else:
        chat.tell("nothing was asked yet")


async def _undo(chat: Chat, _: str) -> None:
    question = chat.conversation.take_back()
    chat.tell(f"forgotten: {one_line(question)}" if question is not None else "there is nothing to forget")


async def _save(chat: Chat, name: str) -> None:
    file = _file(name)
    if file.exists() and file not in chat.written:
        chat.tell(f"{file} is there already: name another", "red")
        return
    chat.conversation.save(file)
    chat.written.add(file)
    chat.tell(f"written to {file}")


async def _load(chat: Chat, name: str) -> None:
    file = _file(name)
    chat.conversation.load(file)
    chat.written.add(file)
    chat.tell(f"{len(chat.conversation.messages)} messages; the next question goes on from there")


def _file(name: str) -> Path:
    if not name:
        raise ChorusError("name a file, such as talk.md or talk.json")
    try:
        return Path(name).expanduser().absolute()
    except RuntimeError as error:
        raise ChorusError(f"{name}: {error}") from None


async def _clear(chat: Chat, _: str) -> None:
    chat.conversation.messages.clear()
    chat.tell("a new conversation; the system message and the parameters stay")


async def _tokens(chat: Chat, _: str) -> None:
    totals = chat.totals
    chat.models = await chat.client.models()
    current = chat.conversation.model
    found = next((e for e in chat.models if current in (e["id"], *(e.get("aliases") or ()))), {})
    of = f" of {found['context_length']:,}" if isinstance(found.get("context_length"), int) else ""
    many = f"{totals.answers} answer{'' if totals.answers == 1 else 's'} of {totals.tokens:,} tokens in all"
    chat.tell(f"{many}; the last prompt had {totals.prompt_tokens:,}{of}")


async def _fold(chat: Chat, _: str) -> None:
    chat.folded = not chat.folded
    chat.tell("thoughts are folded" if chat.folded else "thoughts are shown")


async def _thoughts(chat: Chat, _: str) -> None:
    chat.tell(chat.thoughts or "the last answer came without any", THOUGHT)


async def _quit(_: Chat, __: str) -> None:
    raise LeaveChat


COMMANDS = (
    Command("help", "", "what can be typed here", _help),
    Command("model", "[NAME]", "the models of the server and their state, or who answers from now on", _model),
    Command("system", "[TEXT]", "the system message; - takes it out", _system),
    Command("set", "[NAME [VALUE]]", "a parameter, e.g. temperature 0.2; without a value it is the server's", _set),
    Command("retry", "", "ask the last question again", _retry),
    Command("undo", "", "forget the last question and its answer", _undo),
    Command("save", "FILE", "write the conversation to NAME.md or NAME.json", _save),
    Command("load", "FILE", "go on with a conversation that was saved as NAME.json", _load),
    Command("clear", "", "begin a new conversation", _clear),
    Command("tokens", "", "how much was said so far, and how much the model can read", _tokens),
    Command("fold", "", "fold the thoughts of models that show them, or show them again", _fold),
    Command("thoughts", "", "show the thoughts of the last answer", _thoughts),
    Command("quit", "", "leave", _quit),
)
