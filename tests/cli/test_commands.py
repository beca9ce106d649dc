"""The list of commands is written down, so that it can be shown without importing them; it must say what they say."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from chorus.cli import app
from chorus.cli.commands import ENTRIES, CommandEntry, load


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_list_of_commands_says_what_the_command_says_of_itself(entry: CommandEntry) -> None:
    assert load(entry).help.split("\n\n")[0].replace("\n", " ") == entry.help


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_command_shows_its_own_help_under_its_full_name(entry: CommandEntry) -> None:
    shown = CliRunner().invoke(app, [entry.name, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"chorus {entry.name} " in shown.output


def test_the_help_lists_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert [entry.name for entry in ENTRIES if f" {entry.name} " not in shown.output] == []


def test_a_mistyped_command_is_answered_with_the_one_that_was_meant() -> None:
    shown = CliRunner().invoke(app, ["serv"], env={"COLUMNS": "200"})
    assert shown.exit_code == 2
    assert "Did you mean 'serve'?" in shown.output
