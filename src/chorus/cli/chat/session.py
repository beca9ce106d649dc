"""A chat in a terminal: ask, show, and begin again, until somebody leaves."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import termios
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from chorus.bench.client import Client, EndpointFailed, one_line
from chorus.cli.chat import commands
from chorus.cli.chat.answer import Answer, stream
from chorus.cli.chat.commands import Chat, LeaveChat
from chorus.cli.chat.conversation import Conversation
from chorus.cli.chat.prompt import open_prompt
from chorus.cli.chat.view import AnswerView


class Session:
    """`await Session(client, conversation, console).run()`"""

    def __init__(self, client: Client, conversation: Conversation, console: Console) -> None:
        self._console = console
        self._chat = Chat(client, conversation, console, self.ask)

    async def run(self) -> None:
        chat = self._chat
        with contextlib.suppress(EndpointFailed):  # they are only for completion
            chat.models = await chat.client.models()
        prompt = open_prompt(lambda: (entry["id"] for entry in chat.models), self._below)
        with _quiet_keyboard(), contextlib.suppress(EOFError, KeyboardInterrupt, LeaveChat):
            chat.tell(f"{chat.conversation.model}: type a message, /help for commands, Ctrl-D leaves")
            while True:
                # Of what was pasted in another encoding than UTF-8, the terminal gives halves of characters.
                line = (await prompt.prompt_async("> ")).encode("utf-8", "replace").decode()
                if line.lstrip().startswith("/"):
                    await commands.run(chat, line.strip())
                elif line.strip():
                    await self.ask(line)

    async def ask(self, question: str) -> None:
        """Ask, show the answer while it comes, and keep both. Where nothing came, the question is as if never asked."""
        chat, answer = self._chat, Answer()
        chat.conversation.ask(question)
        view = AnswerView(self._console, chat.folded)
        failed: EndpointFailed | None = None
        with view:
            asking = asyncio.create_task(stream(chat.client, chat.conversation.body(), answer, view.show))
            with _stopped_by_interrupt(asking):
                await asyncio.wait([asking])
        if not asking.cancelled() and isinstance(error := asking.exception(), EndpointFailed):
            failed = error
        elif not asking.cancelled():
            asking.result()
        if answer.text or answer.calls:
            chat.conversation.answered(answer.text)
        else:
            chat.conversation.take_back()
        if answer.pieces or not failed:
            view.tell(answer, stopped=asking.cancelled())
        if failed:
            self._console.print(Text(str(failed), "red"))
        self._count(answer)

    def _count(self, answer: Answer) -> None:
        chat = self._chat
        chat.thoughts = answer.thoughts
        chat.totals.answers += bool(answer.pieces)
        chat.totals.tokens += answer.tokens
        if answer.usage:
            chat.totals.prompt_tokens = answer.usage.prompt_tokens

    def _below(self) -> str:
        chat = self._chat
        many = len(chat.conversation.messages)
        said = f"{many} message{'' if many == 1 else 's'}" if many else "a new conversation"
        return f"{one_line(chat.conversation.model)}  {said}, {chat.totals.tokens:,} tokens answered  /help"


@contextlib.contextmanager
def _stopped_by_interrupt(task: asyncio.Task[None]) -> Iterator[None]:
    """Ctrl-C ends the task, and nothing else."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextlib.contextmanager
def _quiet_keyboard() -> Iterator[None]:
    """What is typed while an answer is drawn does not appear in it, and is there for the next line as it was typed."""
    before = termios.tcgetattr(sys.stdin)
    quiet = termios.tcgetattr(sys.stdin)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
