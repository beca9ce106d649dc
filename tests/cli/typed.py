"""Commands as they are typed, in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from chorus.cli import app


def typed(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), catch_exceptions=False)


def one_line(result: Result) -> str:
    """What a command that failed says: one line, and no more."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    return line.removeprefix("error: ")
