"""Whoever is told `give --this` finds that the command which told so has it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.cli.test_documented_commands import helps

SOURCE = Path(__file__).parents[2] / "src" / "chorus"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
COMMAND = re.compile(r"chorus ((?:[a-z0-9-]+ ?)+)")
# Programs of others, which a remedy may name: their options are theirs.
OTHERS = re.compile(r"(?:container|curl|docker run|pip install|ssh-add|journalctl|mlx\.distributed_config) ")

SERVING = ("serve", "worker mlx-distributed")
"""Commands that start ranks as their own options say; what ranks and their links advise must be an option of each."""
JOINING = ("join",)
PRINTED_BY = {
    "bench": ("bench",),
    "cli/chat": ("chat",),
    "cli/models_preshard.py": ("models preshard",),
    "cli/own_server.py": ("status", "cache", "test", "chat", "top"),
    "cli/top": ("top",),
    "cli/up.py": ("restart",),
    "cluster/agent": JOINING,
    "deploy/front_end.py": ("serve",),
    "deploy/hostfile": ("worker mlx-distributed",),
    "deploy/programs.py": SERVING,
    "engine": SERVING,
    "localai/launch.py": ("localai", "worker mlx-distributed"),
    "localai/plan.py": ("localai", "worker mlx-distributed"),
    "models/imports.py": ("models import",),
    "planning/layout.py": SERVING,
    "rank": SERVING,
    "security/key_rules.py": SERVING,
    "text": SERVING,
    "transport": SERVING,
}
"""By file or folder: the commands whose users read what stands there. Of other files, some command must have it."""


def told(file: Path) -> Iterator[tuple[int, str]]:
    """The strings of a file that are no docstrings, and have words around an option."""
    tree = ast.parse(file.read_text())
    documented = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    others = documented | {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in others:
            yield node.lineno, node.value


def asked_of(text: str, name: str, known: dict[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The options in a text, each with the commands that must have it: one that it names itself, or its readers'."""
    printers = next((who for place, who in PRINTED_BY.items() if name == place or name.startswith(f"{place}/")), ())
    own = name.removeprefix("cli/").removesuffix(".py")
    printers = printers or ((own,) if own in known else ())
    for option in OPTION.finditer(text):
        before = text[: option.start()]
        if OTHERS.search(before):
            continue
        named = [words for words in COMMAND.findall(before[before.rfind("`") + 1 :]) if "`" not in words]
        command = next((name for words in named[-1:] if (name := longest(words, known))), None)
        yield option[0], (command,) if command else printers


def longest(words: str, known: dict[str, str]) -> str | None:
    parts = words.split()
    return next((name for name in (" ".join(parts[:2]), parts[0]) if name in known), None)


def options_of(command: str, known: dict[str, str]) -> set[str]:
    """A group has what its commands have."""
    shown = (text for name, text in known.items() if f"{name} ".startswith(f"{command} "))
    return {option for text in shown for option in OPTION.findall(text)}


def missing(text: str, name: str, known: dict[str, str]) -> list[str]:
    found = []
    for option, commands in asked_of(text, name, known):
        found += [f"{command} has no {option}" for command in commands if option not in options_of(command, known)]
        if not commands and not any(option in options_of(command, known) for command in known):
            found.append(f"no command has {option}")
    return found


def test_every_option_that_a_message_names_is_there() -> None:
    known = helps()
    wrong = []
    for file in sorted(SOURCE.rglob("*.py")):
        name = str(file.relative_to(SOURCE))
        for line, text in told(file):
            if not OPTION.fullmatch(text.strip()):
                wrong += [f"{name}:{line}: {fault}" for fault in missing(text, name, known)]
    assert wrong == []


def test_a_remedy_that_is_not_there_is_found() -> None:
    known = helps()
    assert missing("or say --insecure", "deploy/hostfile/x.py", known) == []
    assert missing("choose another --door", "deploy/hostfile/x.py", known) == ["worker mlx-distributed has no --door"]
    assert missing("take `chorus plan --nowhere`", "api/x.py", known) == ["plan has no --nowhere"]
    assert missing("no --such", "api/x.py", known) == ["no command has --such"]
    assert missing("use --nodes", "engine/x.py", known) == ["worker mlx-distributed has no --nodes"]
