"""What people type who know an older project or slipped on a key: it is used, or one line says what to type."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from chorus.cli import app

WIDE = {"COLUMNS": "200"}


def typed(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(app, list(words), env={**WIDE, **variables})


@pytest.mark.parametrize("command", [("config", "show"), ("keys", "list"), ("models", "list")])
def test_a_stray_variable_is_told_once_and_ends_no_command(command: tuple[str, ...], tmp_path: Path) -> None:
    folders = {"CHORUS_CACHE": str(tmp_path), "CHORUS_STATE": str(tmp_path)}
    shown = typed(*command, CHORUS_ENGINE__TRANSPROT="grpc", CHORUS_KEYS_FILE=str(tmp_path / "keys"), **folders)
    assert shown.exit_code == 0, shown.output
    assert shown.stderr.count("CHORUS_ENGINE__TRANSPROT") == 1
    assert (
        "warning: environment: CHORUS_ENGINE__TRANSPROT has no effect: there is no such setting; did you mean "
        "CHORUS_ENGINE__TRANSPORT?" in shown.stderr
    )


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("serve", "--prot", "1"), "--port"), (("worker", "mlx-distributed", "--hotsfile", "h.json"), "--hostfile")],
)
def test_a_slip_in_a_flag_is_an_error_with_the_nearest_one(words: tuple[str, ...], meant: str) -> None:
    shown = typed(*words)
    assert shown.exit_code == 2
    assert "No such option" in shown.output
    assert meant in shown.output
