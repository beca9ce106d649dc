"""How people give addresses, variables and the cluster's token on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import typer

from chorus.cli.output import fail, warn
from chorus.config.hostfile import split_address
from chorus.security.node_folder import DOOR_PORT
from chorus.security.token import BadToken, Token

_MAX_TOKEN_LENGTH = 1024
_TOKEN_SOURCE = "`chorus token show` on the first machine prints it"


def parse_peer(text: str) -> tuple[str, int]:
    """Read host or host:port; port 0 is allowed and means any free one."""
    if text.endswith(":0"):
        return split_address(text[:-2])[0], 0
    host, port = split_address(text)
    return host, port or DOOR_PORT


def environment_of(pairs: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not name or not equals:
            fail(f"--env {text}: expected NAME=VALUE")
        found[name] = value
    return found


def read_token(context: typer.Context, given: str | None, file: Path | None, needed: bool) -> Token | None:
    """Read the token from a file, the environment or standard input (`-`), or ask for it where somebody sits there.

    As an argument it is taken too, with a warning: everybody on a machine can read the arguments of its processes.
    """
    if file:
        try:
            with file.open() as stream:
                return Token.parse(stream.read(_MAX_TOKEN_LENGTH))
        except OSError as error:
            raise BadToken(f"cannot read the token from {file}: {error.strerror}: {_TOKEN_SOURCE}") from error
        except UnicodeDecodeError:
            raise BadToken(f"{file} holds no token: {_TOKEN_SOURCE}") from None
    if given == "-" or (given is None and needed and sys.stdin.isatty()):
        return Token.parse(_typed())
    if given is None:
        return None
    source = context.get_parameter_source("token")
    if source is not None and source.name == "COMMANDLINE":
        warn(
            "everybody on this machine can read the token among the arguments of this process: "
            "use --token-file FILE, --token - or the environment"
        )
    return Token.parse(given)


def _typed() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("token", hide_input=True))
    text = sys.stdin.readline(_MAX_TOKEN_LENGTH)
    if not text.strip():
        raise BadToken("standard input has no token: pipe `chorus token show` into this command")
    return text
