"""The line that is typed into: several lines, a history that is kept, completion of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from chorus.cli.chat.commands import COMMANDS, PARAMETERS
from chorus.cli.output import warn
from chorus.platform.storage.files import write_whole
from chorus.platform.storage.paths import private_folder, state_dir

HISTORY = "chat-history"
MOST_HISTORY_BYTES = 256 << 10
MENU_LINES = 5


def open_prompt(models: Callable[[], Iterable[str]], below: Callable[[], str]) -> PromptSession[str]:
    """`models` are names to complete; `below` is what stands in the line at the bottom of the screen."""
    return PromptSession(
        history=_history(state_dir() / HISTORY),
        completer=CommandCompleter(models),
        key_bindings=_keys(),
        multiline=True,
        prompt_continuation="  ",
        bottom_toolbar=lambda: FormattedText([("noreverse fg:ansibrightblack", below())]),
        reserve_space_for_menu=MENU_LINES,
    )


class CommandCompleter(Completer):
    """Names of commands, and behind them what each can be given."""

    def __init__(self, models: Callable[[], Iterable[str]]) -> None:
        self._models = models

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text[1:].partition(" ")
        if not space:
            for command in COMMANDS:
                if command.name.startswith(name):
                    yield Completion(command.name, -len(name), display_meta=command.help)
        elif name in ("save", "load"):
            yield from PathCompleter(expanduser=True).get_completions(Document(rest), complete_event)
        else:
            words = {"model": self._models(), "set": PARAMETERS}.get(name, ())
            yield from (Completion(word, -len(rest)) for word in words if word.startswith(rest))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def _history(file: Path) -> History:
    """Kept between chats, for this user alone, and never longer than anybody looks back."""
    try:
        private_folder(file.parent)
        file.touch(mode=0o600)
        data = file.read_bytes()
        if len(data) > MOST_HISTORY_BYTES:
            # Entries begin with a line of their own that has a # and the date.
            kept = data[-MOST_HISTORY_BYTES // 2 :]
            write_whole(file, kept[kept.find(b"\n# ") + 1 :], 0o600)
    except OSError as error:
        warn(f"{file}: what you type is not kept: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(str(file))
