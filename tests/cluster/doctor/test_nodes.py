"""Doctor over a cluster of real processes: it asks each agent, and tries the links that ranks use."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chorus import __version__
from chorus.cluster.agent.peers import CARDS
from chorus.cluster.doctor.ask import Cluster, Known, absent, ask_node, best_of, once_each
from chorus.cluster.doctor.finding import look
from chorus.cluster.doctor.nodes import CHECKS as NODE_CHECKS
from chorus.cluster.profile.assumed import AssumedLink
from chorus.cluster.profile.links import Probe
from chorus.security import identity
from chorus.security.authority import Authority
from chorus.security.identity import Identity
from chorus.security.member import COORDINATOR, NODE
from tests.cluster.harness import Cluster as Processes
from tests.cluster.harness import Process, cluster, url_of

ODD = """
import time
import chorus
chorus.__version__ = "9.9.9"
_time = time.time
time.time = lambda: _time() + 7.5
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder from which every process of a node learns that it is of another release, and that it is later."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "sitecustomize.py").write_text(ODD)
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny: Path, odd: str) -> Iterator[tuple[Processes, Process]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        _, port = nodes.agent("even")
        agent, other = nodes.agent("odd", PYTHONPATH=odd)
        url_of(nodes.serve(tiny, ["--peer", f"127.0.0.1:{port}", "--peer", f"127.0.0.1:{other}"]))
        yield nodes, agent


Found = dict[str, dict[str, Any]]


def doctor(nodes: Processes, expected: int) -> Found:
    """Findings by the node or link they are about, and by name."""
    done = nodes.chorus("doctor", "doctor", "--cluster", "--json")
    assert done.wait() == expected, done.log
    # What it fails with stands below the data, in the same file.
    told, _ = json.JSONDecoder().raw_decode(done.log)
    assert told["ready"] is (expected == 0)
    found: Found = {}
    for finding in told["findings"]:
        found.setdefault(finding["where"], {})[finding["name"]] = finding
    return found


@pytest.fixture(scope="module")
def found(running: tuple[Processes, Process]) -> Found:
    return doctor(running[0], 0)


def test_every_node_is_shown_and_one_of_another_release_with_another_clock_is_found(
    found: Found,
) -> None:
    even, odd = found["even"], found["odd"]
    assert {name for name in even if even[name]["status"] != "ok"} == set()
    assert even["node"]["value"].startswith("answers at 127.0.0.1:")
    assert even["clock"]["value"].split(" ahead")[0].split(" behind")[0].endswith("ms")
    assert even["chorus"]["value"] == __version__
    assert odd["clock"]["status"] == "warn"
    told = re.match(r"(\d+\.\d) s ahead, to within (\d+\.\d) (ms|s)", odd["clock"]["value"])
    assert told, odd["clock"]
    # Both figures are rounded, and a busy machine takes its time to answer.
    error = float(told[2]) / (1e3 if told[3] == "ms" else 1)
    assert abs(float(told[1]) - 7.5) <= error + 0.1
    assert "timedatectl" in odd["clock"]["fix"]
    assert (odd["chorus"]["status"], odd["chorus"]["value"]) == ("warn", f"9.9.9, this machine {__version__}")
    assert {name for name in odd if odd[name]["status"] != "ok"} == {"clock", "chorus"}


def test_every_link_between_ranks_is_measured_beside_what_the_plan_assumed(found: Found) -> None:
    links = {name: told for name, told in found.items() if "→" in name}
    assert {frozenset(name.split(" → ")) for name in links} == {
        frozenset(("this machine", "even")),
        frozenset(("this machine", "odd")),
        frozenset(("even", "odd")),
    }
    for told in links.values():
        assert "bit/s now, the plan assumes" in told["link"]["value"]
        assert "ms when the model was divided" in told["round trip"]["value"]


def test_a_node_that_is_gone_is_an_error_with_what_to_do(running: tuple[Processes, Process], found: Found) -> None:
    nodes, agent = running
    agent.stop()
    # By its name while its coordinator has not noticed, by its address from then on.
    (gone,) = (told["node"] for told in doctor(nodes, 1).values() if told.get("node", {}).get("status") == "error")
    assert gone["where"] == "odd" or gone["where"].startswith("127.0.0.1:")
    assert "chorus join" in gone["fix"]


def test_two_machines_that_talk_both_ways_are_tried_once() -> None:
    there, back = AssumedLink("a", "b", "10.0.0.2"), AssumedLink("b", "a", "10.0.0.1")
    other = AssumedLink("b", "c", "10.0.0.3")
    assert once_each([there, other, back]) == [there, other]


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"nodes": "none", "links": 3, "problems": [], "plan": [1]},
        {"nodes": [7, {}, {"name": "a", "node_id": "b", "address": "no port"}], "links": [{}, {"sender": 1}]},
        {"links": [{"sender": "a", "receiver": "b", "ip": "c", "round_trip": "nan", "bandwidth": None}]},
        {"plan": {"ranks": [{"rank": "x"}, 3]}},
    ],
)
def test_a_status_of_another_release_is_read_as_far_as_it_is_known(status: dict[str, Any]) -> None:
    read = Cluster.read(status)
    assert (read.nodes, read.links, read.parts) == ([], [], {})


def test_a_second_address_of_a_node_is_nobodys_problem() -> None:
    told = {
        "10.0.0.2:50150": "mini is already connected at 10.0.0.3:50150",
        "10.0.0.9:50150": "no answer: is a firewall in between?",
        "plan": "room for a context of 2,048 tokens, not 8,192",
    }
    assert list(absent(Cluster.read({"problems": told}))) == ["10.0.0.9:50150"]


def test_what_a_node_has_still_to_fetch_is_what_its_ranks_have_not_loaded() -> None:
    ranks = [
        {"rank": 1, "running": True, "load_progress": 0.5},
        {"rank": 2, "running": True, "load_progress": 0.0},
        {"rank": 2, "running": True, "load_progress": 1.0, "current": False},  # of another model
    ]
    node = {"name": "mini", "node_id": "b", "address": "10.0.0.2:50150", "ranks": ranks}
    plan = {"ranks": [{"rank": rank, "node": "mini", "weight_bytes": 10**rank} for rank in (1, 2)]}
    read = Cluster.read({"nodes": [node], "plan": plan})
    assert read.part_bytes(read.nodes[0].node_id) == 100


def test_a_link_that_seems_slow_is_measured_again_and_its_best_counts() -> None:
    link, figures = AssumedLink("a", "b", "10.0.0.2", bandwidth=100.0), [10.0, 90.0, 20.0]

    async def tried(measure: bool) -> Probe:
        return Probe(bandwidth=figures.pop(0)) if measure else Probe("", "10.0.0.1", 0.001)

    assert asyncio.run(best_of(tried, link)) == Probe("", "10.0.0.1", 0.001, 90.0)
    assert figures == [20.0]


def test_a_link_that_answers_and_cannot_be_measured_has_a_problem() -> None:
    async def tried(measure: bool) -> Probe:
        return Probe("the connection ended in the middle") if measure else Probe("", "10.0.0.1", 0.001)

    found = asyncio.run(best_of(tried, AssumedLink("a", "b", "10.0.0.2", bandwidth=100.0)))
    assert found.problem == "the connection ended in the middle"


class Door(threading.Thread):
    """Of a node that lets one caller in, if TLS does."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._context = identity.server_context([CARDS])
        self.address: tuple[str, int] = self._listener.getsockname()
        self.start()

    def run(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                self._context.wrap_socket(connection, server_side=True)


def issued(authority: Authority, folder: Path, role: str, dates: str, monkeypatch: pytest.MonkeyPatch) -> Identity:
    """A certificate with the dates that it would have if one of the clocks were wrong."""
    if dates == "past":
        return authority.issue(folder, "mini", role, datetime.timedelta(hours=12))
    with monkeypatch.context() as patched:
        patched.setattr(identity, "CLOCK_SKEW", -datetime.timedelta(days=2 if dates == "future" else -1))
        return authority.issue(folder, "mini", role)


@pytest.mark.parametrize(
    ("ours", "theirs", "problem"),
    [
        ("past", "present", "it refuses us: certificate expired"),
        ("future", "present", "it refuses us: bad certificate"),
        ("present", "past", "its certificate is refused here: certificate has expired"),
        ("present", "future", "its certificate is refused here: certificate is not yet valid"),
    ],
)
def test_a_node_whose_clock_makes_certificates_invalid_is_told_apart_from_one_that_is_off(
    ours: str, theirs: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.create(tmp_path / "authority")
    node = issued(authority, tmp_path / "node", NODE, theirs, monkeypatch)
    here = issued(authority, tmp_path / "here", COORDINATOR, ours, monkeypatch)
    known = Known("mini", node.member.node_id, Door(node).address, frozenset())
    facts, _ = asyncio.run(ask_node(known, here))
    assert facts.problem == problem
    (found,) = look(NODE_CHECKS, facts)
    assert found.status == "error"
    assert "one of the two clocks may be wrong" in found.fix
