"""Every command by name. Its module is imported when it is run: nobody waits for the imports of all the others."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from chorus.cli.older_words import older_command, older_flag
from chorus.cli.output import fail, warn
from chorus.config.variables import strays
from chorus.errors import ChorusError


@dataclass(frozen=True)
class CommandEntry:
    name: str
    where: str
    """MODULE:ATTRIBUTE below chorus.cli, of a function or of a Typer with more commands"""
    help: str
    """What the command's own help begins with"""


ENTRIES = (
    CommandEntry("serve", "serve:serve", "Serve models on an OpenAI-compatible endpoint until stopped (Ctrl-C)."),
    CommandEntry("ps", "ps:ps", "Show the models of a server: which are loaded, where, how large, and until when."),
    CommandEntry("load", "load:load", "Have a server load one of its models, and wait until it is ready."),
    CommandEntry("unload", "load:unload", "Have a server unload a model; its running requests finish first."),
    CommandEntry(
        "requests",
        "requests:requests",
        "Show the requests that a server works on: whose, how far, how fast. Never their text.",
    ),
    CommandEntry("cancel", "requests:cancel", "End a request that a server works on; its client is told so."),
    CommandEntry(
        "plan",
        "plan:plan",
        "Show which machine would hold which layers, how much memory that takes and how fast it would be.",
    ),
    CommandEntry(
        "doctor",
        "doctor:doctor",
        "Show what Chorus found on this machine, what it chose, and how to fix what is missing.",
    ),
    CommandEntry(
        "localai",
        "localai:localai",
        "Serve LocalAI's backend protocol; the model and its options come from LocalAI, the rest from the settings.",
    ),
    CommandEntry(
        "up",
        "up:up",
        "Check the hosts, give them this Chorus, start it there and load the model. Doing it again changes nothing.",
    ),
    CommandEntry("down", "up:down", "End everything that `up` started, on every host."),
    CommandEntry(
        "restart",
        "up:restart",
        "`down`, then `up`; or with --front-end a new front end beside the old one, which finishes its streams.",
    ),
    CommandEntry(
        "join",
        "join:join",
        "Make this machine a node: it waits for its cluster, in any order, and runs ranks for it until stopped.",
    ),
    CommandEntry(
        "status",
        "status:status",
        "Show the cluster that is being served: models, nodes, ranks, memory, steps, heartbeats.",
    ),
    CommandEntry(
        "top",
        "top.command:top",
        "Watch a server: tokens per second, its ranks and the requests that run; q leaves, c cancels a request.",
    ),
    CommandEntry(
        "logs",
        "logs:logs",
        "Print the logs of the nodes and of the coordinator; with several, each line says whose it is.",
    ),
    CommandEntry(
        "events",
        "events:show_events",
        "Tell what happened: starts, losses, recoveries, loads, refusals; also when nothing runs any more.",
    ),
    CommandEntry(
        "drain",
        "drain:drain",
        "End a node's ranks and give it no more; what is served goes on over the others.",
    ),
    CommandEntry(
        "replan",
        "replan:replan",
        "Divide every loaded model anew among the nodes that are there now; running streams go on there.",
    ),
    CommandEntry(
        "test",
        "test:try_served",
        "Ask the served model something and print the answer, the speeds and the time to the first token.",
    ),
    CommandEntry(
        "chat",
        "chat.command:chat",
        "Talk to a model: in a terminal with Markdown, a history and commands (/help); from a pipe one question.",
    ),
    CommandEntry(
        "bench",
        "bench:bench",
        "Measure an OpenAI endpoint as its user would: first token, speed, pauses; or a model, served meanwhile.",
    ),
    CommandEntry(
        "trace",
        "trace:trace",
        "Record what every rank does for some steps: who computes, who waits for whom, what travels.",
    ),
    CommandEntry(
        "cache",
        "cache:cache",
        "Show what a server keeps of earlier requests: size, entries, hit rate; `clear` makes it forget.",
    ),
    CommandEntry("models", "models:app", "Pull, import, list and remove models."),
    CommandEntry("token", "token:app", "Make, show and rotate the cluster's token; expel nodes."),
    CommandEntry("worker", "worker:app", "Run one rank by hand."),
    CommandEntry("config", "config:app", "Show and check the configuration."),
    CommandEntry("keys", "keys:app", "Make, list and remove API keys."),
)


class Commands(TyperGroup):
    """The group of all commands, each of them late."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for entry in ENTRIES:
            self.add_command(LateCommand(entry))

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        if told := older_command(arguments[0]):
            fail(told)
        return super().resolve_command(context, arguments)

    def invoke(self, context: Any) -> Any:
        """Run the command; an error of ours becomes one line here, and nowhere else, as does a variable of ours that
        there is not.
        """
        for stray in strays(os.environ, "environment"):
            warn(stray)
        try:
            return super().invoke(context)
        except ChorusError as error:
            fail(str(error))


class LateCommand(TyperCommand):
    """Enough of a command for a list; the real one takes its place when arguments are to be read."""

    def __init__(self, entry: CommandEntry) -> None:
        super().__init__(entry.name, help=entry.help, rich_markup_mode="rich")
        self.entry = entry

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return load(self.entry).make_context(*arguments, **options)
        except Exception as error:
            # Typer brings its own copy of click or uses the one that is installed: its class has no fixed place.
            if told := older_flag(self.entry.name, getattr(error, "option_name", "")):
                fail(told)
            raise


def load(entry: CommandEntry) -> Any:
    module, attribute = entry.where.split(":")
    found = getattr(importlib.import_module(f"chorus.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command()(found)
        command = typer.main.get_command(alone)
    command.name = entry.name
    return command
