"""Machines of a file started one by one, and parts of a model that each of them gets alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from chorus.models import LocalModel
from chorus.models.preshard.folder import PLAN_FILE
from chorus.models.preshard.write import write_preshard
from tests.cluster.harness import Cluster, Process, cluster, complete, url_of
from tests.cluster.test_agents import ranks_of
from tests.support.alone import text_alone
from tests.support.ports import listening_port
from tests.support.tiny_model import write_tiny_model

DEVICES = Path(__file__).parents[1] / "config" / "golden" / "devices.json"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("one-device") / "tiny", "llama", vocab_size=512)


@dataclass
class Device:
    port: int
    agent: Process
    server: Process
    text: str


@pytest.fixture(scope="module")
def mini2(nodes: Cluster, tiny: Path) -> Device:
    """One device of a file, started alone; together with this machine it serves a whole model."""
    port, door = listening_port(), listening_port()
    agent = nodes.chorus(
        "mini2",
        *("join", "-c", str(DEVICES), "--device-id", "mini2", "--port", str(port)),
        *("--listen", f"127.0.0.1:{door}", "--no-announce"),
        state=nodes.folder / "state-mini2",
        CHORUS_TOKEN=nodes.token.text,
    )
    agent.wait_for("waiting on")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{door}", "--split", "4,3"])
    return Device(port, agent, server, complete(url_of(server)))


def test_one_device_of_a_file_is_started_alone_with_its_name_and_port(nodes: Cluster, mini2: Device) -> None:
    assert mini2.text
    (rank,) = ranks_of(mini2.agent)
    assert mini2.port in {
        connection.laddr.port for connection in rank.net_connections() if connection.status == psutil.CONN_LISTEN
    }
    status = nodes.chorus("status", "status", "--json")
    assert status.wait() == 0, status.log
    assert '"name": "mini2"' in status.log


def test_a_device_that_the_file_does_not_have_is_told_with_those_it_has(
    nodes: Cluster, refusal: Callable[..., str]
) -> None:
    token = ["--token", nodes.token.text]
    assert "no device mini3, did you mean mini2?" in refusal("join", "-c", str(DEVICES), "--device-id", "mini3", *token)
    assert "expected one of: none given" in refusal("join", "--device-id", "mini2", *token)


def test_nodes_of_a_cluster_get_their_own_part_of_a_cut_model_and_no_more(
    nodes: Cluster, tiny: Path, mini2: Device
) -> None:
    assert mini2.server.stop() == 0, mini2.server.log
    parts = nodes.folder / "two-parts"
    write_preshard(LocalModel("tiny", "test/tiny", tiny), (4, 3), parts)
    cache = nodes.folder / "cache-one"
    _, port = nodes.agent("one", CHORUS_CACHE=str(cache))
    server = nodes.serve(parts, ["--peer", f"127.0.0.1:{port}"])
    assert complete(url_of(server)) == mini2.text == text_alone(tiny, "The quick brown fox", 12)
    (copied,) = [folder for folder in (cache / "copies").iterdir() if folder.is_dir()]
    made = json.loads((copied / PLAN_FILE).read_text())
    assert (made["rank"], made["split"]) == (1, [4, 3])
    names = {file.name for file in copied.iterdir() if not file.name.startswith(".")}
    assert names == {file.name for file in (parts / "rank-1").iterdir() if not file.name.startswith(".")}
    assert server.stop() == 0, server.log

    parts = nodes.folder / "three-parts"
    write_preshard(LocalModel("tiny", "test/tiny", tiny), (3, 2, 2), parts)
    server = nodes.serve(parts, ["--peer", f"127.0.0.1:{port}"])
    assert server.wait() == 1
    assert "was made for 3 ranks and there are 2 machines: make it again for these" in server.log
    shutil.rmtree(parts / "rank-2")
    broken = nodes.serve(parts, ["--peer", f"127.0.0.1:{port}"])
    assert broken.wait() == 1
    assert "rank-2 is missing: nodes get their parts from here" in broken.log
