"""Where a command gets the cluster's token from: everybody on a machine can read the arguments of its processes."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from chorus.cli.output import console
from chorus.security.token import BadToken, Token

_MAX_LENGTH = 1024


def read_token(context: typer.Context, given: str | None, file: Path | None, needed: bool) -> Token | None:
    """From a file, the environment, standard input (`-`), or, where it is needed and somebody sits there, by asking."""
    if file:
        with file.open() as stream:
            return Token.parse(stream.read(_MAX_LENGTH))
    if given == "-" or (given is None and needed and sys.stdin.isatty()):
        return Token.parse(_typed())
    if given is None:
        return None
    source = context.get_parameter_source("token")
    if source is not None and source.name == "COMMANDLINE":
        console.print(
            "[yellow]warning:[/] everybody on this machine can read the token among the arguments of this process: "
            "use --token-file FILE, --token - or the environment"
        )
    return Token.parse(given)


def _typed() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("token", hide_input=True))
    text = sys.stdin.readline(_MAX_LENGTH)
    if not text.strip():
        raise BadToken("standard input has no token: pipe `chorus token show` into this command")
    return text
