"""A hub model over several nodes: each machine has its own rank's files afterwards, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.models.layer_names import files_for_layers
from chorus.models.tensors import weight_map
from chorus.planning.split import layers_of
from tests.cluster.harness import Cluster, cluster, complete, url_of
from tests.models.hub_server import HubServer, Repo
from tests.support.alone import text_alone
from tests.support.tiny_model import write_tiny_model

NAME = "someone/split"
SPLIT = (2, 2, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "split"
    return write_tiny_model(made, "llama", shards=6, vocab_size=512, num_hidden_layers=6, max_position_embeddings=4096)


@pytest.fixture
def split_hub(hub: HubServer, folder: Path) -> HubServer:
    hub.repos[NAME] = Repo({file.name: file.read_bytes() for file in folder.iterdir()})
    return hub


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        yield made


def expected(folder: Path, rank: int) -> set[str]:
    return set(files_for_layers(weight_map(folder), layers_of(rank, SPLIT), sum(SPLIT)))


def homes(nodes: Cluster, name: str) -> dict[str, str]:
    """A machine of its own has caches of its own."""
    home = nodes.folder / f"home-{name}"
    hub = {"HF_HOME": str(home / "hf"), "HF_HUB_CACHE": str(home / "hf" / "hub")}
    return {**hub, "CHORUS_CACHE": str(home / "chorus")}


def weights_in(nodes: Cluster, name: str, place: str) -> set[str]:
    return {file.name for file in (nodes.folder / f"home-{name}" / place).rglob("*.safetensors")}


def held_by_nodes(nodes: Cluster, place: str) -> set[frozenset[str]]:
    """Which of them is which rank is a matter of their identities."""
    return {frozenset(weights_in(nodes, name, place)) for name in ("b", "c")}


def start(nodes: Cluster, **offline: str) -> list[str]:
    ports = [nodes.agent(name, **homes(nodes, name), **offline)[1] for name in ("b", "c")]
    return [word for port in ports for word in ("--peer", f"127.0.0.1:{port}")]


def test_each_node_downloads_only_the_files_of_its_own_rank_and_starts_again_without_the_hub(
    nodes: Cluster, split_hub: HubServer, folder: Path
) -> None:
    peers = start(nodes)
    arguments = [*peers, "--split", "2,2,2"]
    server = nodes.serve(NAME, arguments, **homes(nodes, "a"))
    text = complete(url_of(server))
    assert weights_in(nodes, "a", "hf") == expected(folder, 0)
    assert held_by_nodes(nodes, "hf") == {frozenset(expected(folder, rank)) for rank in (1, 2)}
    assert all(expected(folder, rank) < set(weight_map(folder).values()) for rank in range(3))
    assert [name for name in split_hub.downloaded() if name.endswith(".safetensors")]
    assert server.stop() == 0

    # Each machine has its own part, and what the whole is like was kept: the hub may be gone.
    split_hub.status = 503
    again = nodes.serve(NAME, arguments, **homes(nodes, "a"))
    assert complete(url_of(again)) == text
    assert again.stop() == 0

    # Another division, and nobody may even try the hub: what rank 0 lacks comes from a node.
    other = nodes.serve(NAME, [*peers, "--split", "4,1,1"], **homes(nodes, "a"), HF_HUB_OFFLINE="1")
    assert complete(url_of(other)) == text
    assert weights_in(nodes, "a", "hf") == set(files_for_layers(weight_map(folder), layers_of(0, (4, 1, 1)), 6))
    assert other.stop() == 0
    assert text_alone(folder, "The quick brown fox", 12) == text


def test_a_node_that_may_not_ask_the_hub_gets_its_files_from_here(
    nodes: Cluster, split_hub: HubServer, folder: Path
) -> None:
    peers = start(nodes, HF_HUB_OFFLINE="1")
    server = nodes.serve(NAME, [*peers, "--split", "2,2,2"], **homes(nodes, "a"))
    assert complete(url_of(server))
    assert held_by_nodes(nodes, "hf") == {frozenset()}
    assert held_by_nodes(nodes, "chorus/copies") == {frozenset(expected(folder, rank)) for rank in (1, 2)}
    assert server.stop() == 0


def test_a_file_that_nobody_can_get_is_named_with_its_node(nodes: Cluster, split_hub: HubServer, folder: Path) -> None:
    (lacking, *_) = sorted(expected(folder, 1) - expected(folder, 0))
    split_hub.refused.add(lacking)
    server = nodes.serve(NAME, [*start(nodes), "--split", "2,2,2"], **homes(nodes, "a"))
    assert server.wait(120) == 1
    # Both followers need the file; whichever asks first is the one to be named.
    told = re.search(r"error: rank [12] on ([bc]): node \1 has no someone/split@.*", server.log)
    assert told, server.log
    assert "this machine cannot get them for it" in told[0]
    assert told[0].count(f"Cannot get {lacking} of {NAME}@") == 2
    needed = re.search(rf"no machine here has .*{lacking} \(for rank 1 on [bc] and rank 2 on [bc]\)", told[0])
    assert needed, told[0]
