"""`chorus logs` beside a server over nodes: whose logs there are, and where they lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chorus.cluster.servers import Server
from tests.cli.typed import typed


@pytest.fixture
def served(folder: Path, recorded: Callable[..., Server]) -> Path:
    """A server that leads as mini1, with a node whose agent does not answer. Answers where its log is."""
    log = folder / "api_server.log"
    log.write_text("loading\nrank 0 holds layers 8-9\n")
    server = recorded("http://127.0.0.1:8123", name="mini1", log_file=str(log))
    node = {"name": "mini2", "address": "127.0.0.1:9", "log_file": "/home/anna/logs/mini2_server.log"}
    (Path(server.folder) / "cluster.json").write_text(json.dumps({"nodes": [node]}))
    return log


@pytest.mark.parametrize("name", ["coordinator", "mini1"])
def test_the_coordinators_log_is_shown_by_its_role_and_by_its_device_id(served: Path, name: str) -> None:
    assert typed(f"logs {name} -n 1").stdout == "rank 0 holds layers 8-9\n"


def test_a_node_that_does_not_answer_does_not_hide_the_others(served: Path) -> None:
    shown = typed("logs")
    assert shown.stdout.splitlines() == ["mini1: loading", "mini1: rank 0 holds layers 8-9"]
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: mini2: ")
    assert len(shown.stderr.splitlines()) == 1


def test_it_says_where_the_files_lie(served: Path) -> None:
    assert typed("logs --paths").stdout.split() == ["mini1", str(served), "mini2", "/home/anna/logs/mini2_server.log"]


def test_an_unknown_name_is_answered_with_those_that_there_are(served: Path) -> None:
    told = typed("logs mini3")
    assert told.exit_code == 1
    assert told.stderr.strip() == "error: there is no node mini3; there are: mini1, mini2"
    assert "mini1 leads the others" in typed("drain mini1").stderr


def test_a_server_without_nodes_says_so(recorded: Callable[..., Server]) -> None:
    recorded("http://127.0.0.1:8123")
    for command in ("logs", "drain mini2"):
        assert "tiny at http://127.0.0.1:8123 has no nodes" in typed(command).stderr
