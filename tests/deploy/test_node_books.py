"""The memory of this machine and of its nodes, and which nodes a model may use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chorus.config.file import ConfigError
from chorus.config.served import ModelConfig
from chorus.deploy.nodes.books import NodeBooks
from chorus.deploy.nodes.maker import check_nodes
from chorus.deploy.room import HERE, Room
from chorus.messages.proto import agent_pb2 as wire
from chorus.platform.memory.ledger import Ledger, NoRoom


@dataclass
class Group:
    promised: int
    booked: dict[str, int]


@pytest.fixture
def here(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.json", 100)


def books(here: Ledger, *groups: Group, draining: bool = False) -> NodeBooks:
    states = {
        "one": wire.Node(memory_unbooked=30, memory_booked=20),
        "two": wire.Node(memory_unbooked=7, draining=draining),
    }
    nodes: Any = SimpleNamespace(present=[SimpleNamespace(name=name, state=state) for name, state in states.items()])
    return NodeBooks(nodes, here, lambda: groups)  # type: ignore[arg-type,return-value]


def test_what_all_machines_have_left_counts_and_what_starting_groups_will_book_does_not(here: Ledger) -> None:
    budget = {HERE: 100, "one": 50, "two": 7}
    assert books(here).room() == Room({HERE: 100, "one": 30, "two": 7}, budget)
    here.book("rank 0 of a", 60, "a")
    assert books(here).room() == Room({HERE: 40, "one": 30, "two": 7}, budget)
    starting, started = Group(50, {HERE: 15, "one": 5}), Group(10, {HERE: 40})
    assert books(here, starting, started).room() == Room({HERE: 10, "one": 30, "two": 7}, budget)


def test_a_node_that_drains_has_nothing_left(here: Ledger) -> None:
    assert books(here, draining=True).room() == Room({HERE: 100, "one": 30}, {HERE: 100, "one": 50})


def test_more_than_all_machines_have_is_promised_to_nobody_unless_it_is_forced(here: Ledger) -> None:
    assert books(here).book("a", 137, "a").amount == 137
    with pytest.raises(NoRoom, match="it needs"):
        books(here).book("a", 138, "a")
    assert books(here).book("a", 138, "a", force=True).amount == 138


def test_names_of_nodes_that_nobody_has_are_refused_with_the_nearest() -> None:
    known = ("studio", "mini", "air")
    check_nodes(ModelConfig(source="m", nodes=("studio", "air")), known)
    with pytest.raises(ConfigError, match=r"m: nodes: there is no node 'mimi'; did you mean mini\?"):
        check_nodes(ModelConfig(source="m", nodes=("air", "mimi")), known)
