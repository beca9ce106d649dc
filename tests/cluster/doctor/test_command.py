from __future__ import annotations

import importlib
import json

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from chorus.cluster.doctor.finding import Finding
from tests.cluster.doctor.cases import PROBE

# By its full name: the package offers the function under the same one.
command = importlib.import_module("chorus.cli.doctor")

FINE, SLOW = Finding("mlx", "[0.32] fine"), Finding("BLAS", "slow", "warn", "do x")
GONE = Finding("node", "no answer", "error", "start it", "mini")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests ask nobody elsewhere."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def run_doctor(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command.doctor)
    return CliRunner().invoke(app, [*arguments])


def finds(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    here = [finding for finding in findings if not finding.where]
    monkeypatch.setattr(command, "_of_machine", lambda *_: here)
    monkeypatch.setattr(command, "_of_nodes", lambda _: [finding for finding in findings if finding.where])


def test_the_doctor_prints_a_table_and_succeeds_when_chorus_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, FINE, SLOW)
    done = run_doctor()
    assert done.exit_code == 0
    assert "[0.32] fine" in done.stdout
    assert "slow  → do x" in done.stdout
    assert "can run here, with 1 thing to improve" in done.stdout


def test_the_doctor_fails_when_something_essential_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_probe", lambda: "no mlx")
    done = run_doctor()
    assert done.exit_code == 1
    assert "mlx works" in done.stdout
    assert "cannot run here yet: mlx works" in done.output


def test_nodes_stand_under_their_names_and_what_fails_there_is_told_last(monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, FINE, GONE)
    done = run_doctor()
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1:3] == ["", "mini"]
    assert done.output.strip().splitlines()[-1] == "error: the cluster is not well: mini (node)"


def test_the_doctor_gives_the_same_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_probe", lambda: PROBE)
    done = run_doctor("--json")
    data = json.loads(done.stdout)
    names = {finding["name"] for finding in data["findings"]}
    assert data["ready"] is (done.exit_code == 0)
    assert {"system", "mlx", "mlx-lm", "BLAS", "memory", "collectives", "matrix product", "open files"} <= names


def test_data_of_a_cluster_that_is_not_well_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, GONE)
    done = run_doctor("--json")
    assert done.exit_code == 1
    told = {"name": "node", "value": "no answer", "status": "error", "fix": "start it", "where": "mini"}
    assert json.loads(done.stdout) == {"ready": False, "findings": [told]}


def test_asking_for_a_cluster_where_none_is_served_says_what_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "own_servers", list)
    done = run_doctor("--cluster")
    assert done.exit_code == 1
    assert "no server of yours with nodes runs here: start `chorus serve --cluster`" in done.output
