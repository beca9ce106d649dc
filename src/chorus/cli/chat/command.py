"""`chorus chat`: talk to a model in a terminal; without one, a question from standard input and its answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from chorus.bench.client import Client, Endpoint, Remedies
from chorus.cli.chat.answer import Answer, Piece, stream
from chorus.cli.chat.conversation import Conversation
from chorus.cli.output import fail
from chorus.cli.own_server import KeyOption, PortOption, find_target, is_here, trusted

INTERRUPTED = 130
MOST_QUESTION_BYTES = 16 << 20
CHAT_REMEDIES = Remedies(
    name_it="chorus chat MODEL",
    late="its log says what it does; wait longer with --timeout",
    crowded="try again in a moment",
)


def chat(
    model: Annotated[str | None, typer.Argument(help="Who answers (the server's default, or its only model).")] = None,
    url: Annotated[
        str | None, typer.Option(help="Any OpenAI address, e.g. http://HOST:PORT/v1 (the server on this machine).")
    ] = None,
    port: PortOption = None,
    api_key: KeyOption = None,
    system: Annotated[str, typer.Option(help="The system message.")] = "",
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="How bold the choice of words is.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of each answer, at most.")] = None,
    timeout: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds a server may say nothing.")] = 600.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole answer to what comes on standard input as JSON.")
    ] = False,
) -> None:
    """Talk to a model: in a terminal with Markdown, a history and commands (/help); from a pipe one question.

    Example: chorus chat

    Example: chorus chat qwen3-4b --url http://mini.local:8100/v1 --temperature 0.2

    Example: echo "Why is the sky blue?" | chorus chat
    """
    target = find_target(url, port, api_key)
    endpoint = Endpoint(target.url, target.key, trusted(target.server), through_proxy=not is_here(target.url))
    chosen = {"temperature": temperature, "max_tokens": max_tokens}
    parameters = {name: value for name, value in chosen.items() if value is not None}
    talking = _Talk(endpoint, model, Conversation("", system, parameters), timeout)
    try:
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            asyncio.run(talking.once(_question(), as_json))
        else:
            asyncio.run(talking.on_and_on())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


class _Talk:
    """The two forms of a chat, over one connection."""

    def __init__(self, endpoint: Endpoint, model: str | None, conversation: Conversation, timeout: float) -> None:
        self._client = Client(endpoint, 4, timeout, CHAT_REMEDIES)
        self._model = model
        self._conversation = conversation

    async def on_and_on(self) -> None:
        from chorus.cli.chat.session import Session  # takes a while to import, and a pipe needs none of it

        async with self._client as client:
            self._conversation.model = self._model or await default_model(client)
            await Session(client, self._conversation, Console(highlight=False)).run()

    async def once(self, question: str, as_json: bool) -> None:
        async with self._client as client:
            self._conversation.model = self._model or await default_model(client)
            self._conversation.ask(question)
            if as_json:
                found = await client.whole(self._conversation.body(stream=False))
                typer.echo(json.dumps(found, indent=2))
                return
            answer = Answer()
            try:
                await stream(client, self._conversation.body(), answer, _print)
                for call in answer.calls.values():
                    _print(Piece("text", f"calls {call}\n"))
                if not answer.text.endswith("\n"):
                    _print(Piece("text", "\n"))
            except BrokenPipeError:
                # Whoever read it has gone, as `head` does; nothing may be written when Python ends either.
                with contextlib.suppress(OSError):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def default_model(client: Client) -> str:
    """The first of a server of ours, which a request without a name would mean; elsewhere the only one there is."""
    listed: list[dict[str, Any]] = await client.models()
    if listed and "loaded" in listed[0]:
        return str(listed[0]["id"])
    return await client.only_model()


def _question() -> str:
    data = sys.stdin.buffer.read(MOST_QUESTION_BYTES + 1)
    if len(data) > MOST_QUESTION_BYTES:
        fail(f"what comes on standard input has more than {MOST_QUESTION_BYTES >> 20} MiB: ask with less")
    question = data.decode(errors="replace").strip()
    if not question:
        fail('standard input has no question: echo "Why is the sky blue?" | chorus chat')
    return question


def _print(piece: Piece) -> None:
    """The answer alone: thoughts and notes are for people who watch."""
    if piece.kind == "text":
        sys.stdout.write(piece.text)
        sys.stdout.flush()
