"""Machines of a file started one by one, and parts of a model that each of them gets alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chorus.models import LocalModel
from chorus.models.preshard.folder import PLAN_FILE
from chorus.models.preshard.write import write_preshard
from tests.cluster.harness import Cluster, cluster, complete, url_of
from tests.support.ports import listening_port
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model

DEVICES = Path(__file__).parents[1] / "config" / "golden" / "devices.json"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("one-device") / "tiny", "llama", vocab_size=512)


def test_one_device_of_a_file_is_started_alone_with_its_name_and_port(nodes: Cluster, tiny: Path) -> None:
    port = listening_port()
    door = listening_port()
    agent = nodes.chorus(
        "mini2",
        *("join", "-c", str(DEVICES), "--device-id", "mini2", "--port", str(port)),
        *("--listen", f"127.0.0.1:{door}", "--no-announce"),
        state=nodes.folder / "state-mini2",
        CHORUS_TOKEN=nodes.token.text,
    )
    agent.wait_for("waiting on")
    server = nodes.serve(tiny, ["--peer", f"127.0.0.1:{door}", "--split", "4,3"])
    assert complete(url_of(server))
    (rank,) = agent.children()
    assert port in {
        connection.laddr.port for connection in rank.net_connections() if connection.status == psutil.CONN_LISTEN
    }
    status = nodes.chorus("status", "status", "--json")
    assert status.wait() == 0, status.log
    assert '"name": "mini2"' in status.log


def test_a_device_that_the_file_does_not_have_is_told_with_those_it_has(nodes: Cluster) -> None:
    wrong = nodes.chorus("wrong", "join", "-c", str(DEVICES), "--device-id", "mini3", "--token", nodes.token.text)
    assert wrong.wait() == 1
    assert "no device mini3, did you mean mini2?" in wrong.log
    without = nodes.chorus("without", "join", "--device-id", "mini2", "--token", nodes.token.text)
    assert without.wait() == 1
    assert "expected one of: none given" in without.log


def test_nodes_of_a_cluster_get_their_own_part_of_a_cut_model_and_no_more(nodes: Cluster, tiny: Path) -> None:
    parts = nodes.folder / "parts"
    write_preshard(LocalModel("tiny", "test/tiny", tiny), (4, 3), parts)
    cache = nodes.folder / "cache-one"
    _, port = nodes.agent("one", CHORUS_CACHE=str(cache))
    server = nodes.serve(parts, ["--peer", f"127.0.0.1:{port}"])
    text = complete(url_of(server))
    (copied,) = [folder for folder in (cache / "copies").iterdir() if folder.is_dir()]
    made = json.loads((copied / PLAN_FILE).read_text())
    assert (made["rank"], made["split"]) == (1, [4, 3])
    names = {file.name for file in copied.iterdir() if not file.name.startswith(".")}
    assert names == {file.name for file in (parts / "rank-1").iterdir() if not file.name.startswith(".")}
    server.stop()
    with ChorusServer(tiny, [], nodes.folder) as alone:
        assert alone.text("The quick brown fox", max_tokens=12) == text


def test_a_cut_model_is_refused_for_another_number_of_machines(nodes: Cluster, tiny: Path) -> None:
    parts = nodes.folder / "parts"
    write_preshard(LocalModel("tiny", "test/tiny", tiny), (3, 2, 2), parts)
    _, port = nodes.agent("one")
    server = nodes.serve(parts, ["--peer", f"127.0.0.1:{port}"])
    assert server.wait() == 1
    assert "was made for 3 ranks and there are 2 machines: make it again for these" in server.log
    shutil.rmtree(parts / "rank-2")
    broken = nodes.serve(parts, ["--peer", f"127.0.0.1:{port}"])
    assert broken.wait() == 1
    assert "rank-2 is missing: nodes get their parts from here" in broken.log
