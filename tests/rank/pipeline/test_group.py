"""How ranks find each other, and what is said when they do not."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import mlx.core as mx
import pytest

from chorus import __version__
from chorus.engine.lifecycle.group import check_sums
from chorus.engine.ranks.followers import CannotForm
from chorus.messages.proto import engine_pb2 as wire
from chorus.messages.proto import engine_pb2_grpc
from chorus.messages.protocol import PROTOCOL
from chorus.models.layer_names import files_for_layers
from chorus.models.tensors import weight_map
from chorus.planning.layout import Layout
from chorus.platform.process.exits import EXIT_CANNOT_START, EXIT_LEADER_GONE
from chorus.platform.process.timing import DEFAULTS
from chorus.rank.load import load_shard
from chorus.transport.channel import open_channel
from tests.support.ranks import Ranks
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers over three files, as large checkpoints come."""
    return write_tiny_model(
        tmp_path_factory.mktemp("model") / "tiny", "llama", shards=3, vocab_size=512, num_hidden_layers=6
    )


def wait_for_state(address: str, state: int, seconds: float = 60.0) -> wire.Description:
    deadline = time.monotonic() + seconds
    with open_channel(address) as channel:
        stub = engine_pb2_grpc.EngineStub(channel)
        while True:
            described = stub.Describe(wire.DescribeRequest(), timeout=seconds, wait_for_ready=True)
            if described.state == state:
                return described
            assert time.monotonic() < deadline, f"state is {described.state}: {described.detail}"
            time.sleep(0.05)


def test_a_stage_that_starts_late_is_waited_for(model: Path, tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(3)
        spec = ranks.spec(model, addresses, split=(3, 2, 1))
        ranks.leader(spec)
        ranks.follower(2, addresses[2])
        wait_for_state(spec.address, wire.LOADING)
        ranks.follower(1, addresses[1])
        described = wait_for_state(spec.address, wire.READY)
        assert [(rank.first_layer, rank.last_layer) for rank in described.ranks] == [(3, 6), (1, 3), (0, 1)]


def test_a_stage_that_never_starts_is_named_within_the_deadline(model: Path, tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(2)
        leader = ranks.leader(ranks.spec(model, addresses, start_timeout_seconds=2))
        assert leader.wait(60) == 78
        assert f"rank 1 at {addresses[1]} did not answer within 2 s (engine.start_timeout_seconds" in ranks.log(
            "leader"
        )
        assert "firewall" in ranks.log("leader")


def test_a_port_that_is_taken_is_named(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Ranks(tmp_path) as ranks:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert ranks.follower(1, address).wait(60) == 78
        assert f"rank 1: cannot listen on {address}" in ranks.log("rank1")


def test_ranks_of_different_protocols_are_refused_and_both_named(model: Path, tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(2)
        ranks.follower(1, addresses[1], version="9.9.9", protocol=PROTOCOL + 1)
        assert ranks.leader(ranks.spec(model, addresses)).wait(60) == 78
        theirs = f"rank 1 at {addresses[1]} runs Chorus 9.9.9 (protocol {PROTOCOL + 1})"
        assert f"{theirs}, the leader {__version__} (protocol {PROTOCOL})" in ranks.log("leader")


def test_two_ranks_at_each_others_addresses_are_told(model: Path, tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(2)
        ranks.follower(5, addresses[1])
        assert ranks.leader(ranks.spec(model, addresses)).wait(60) == 78
        assert "says it is rank 5" in ranks.log("leader")


def broken_copy(model: Path, folder: Path, layer: int, keep: int | None) -> tuple[Path, str]:
    """The file that holds a layer is cut to `keep` bytes, or is missing."""
    folder.mkdir()
    names = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
    victim = next(file for name, file in sorted(names.items()) if f".layers.{layer}." in name)
    for file in model.iterdir():
        if file.name != victim:
            (folder / file.name).write_bytes(file.read_bytes())
        elif keep is not None:
            (folder / file.name).write_bytes(file.read_bytes()[:keep])
    return folder, victim


@pytest.mark.parametrize("keep", [None, -5000], ids=["missing", "truncated"])
def test_a_bad_file_on_one_rank_names_rank_and_tensor(model: Path, tmp_path: Path, keep: int | None) -> None:
    # The last layers, which the leader holds, are whole; the first, on rank 1, are not.
    broken, _victim = broken_copy(model, tmp_path / "broken", layer=0, keep=keep)
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(2)
        ranks.follower(1, addresses[1])
        assert ranks.leader(ranks.spec(broken, addresses, split=(1, 5))).wait(60) == 78
        log = ranks.log("leader")
        assert f"rank 1 at {addresses[1]} cannot load" in log
        assert "tensor model.layers." in log or "first model." in log


def test_a_rank_without_the_model_is_named_before_a_ring_gives_up(model: Path, tmp_path: Path) -> None:
    """The others wait for it inside MLX, where nothing can be told to them: so it comes, then says what it lacks."""
    with Ranks(tmp_path) as ranks:
        addresses = ranks.addresses(2)
        follower = ranks.follower(1, addresses[1], "--own-store")
        spec = ranks.spec(model, addresses, transport="ring").model_copy(update={"model": "no-such-model"})
        leader = ranks.leader(spec)
        assert leader.wait(DEFAULTS.join_seconds - 30) == EXIT_CANNOT_START, ranks.log("leader")
        told = f"rank 1 at {addresses[1]} cannot load: rank 1: this machine's store has no model no-such-model"
        assert told in ranks.log("leader")
        # Its place in that ring cannot be given back: whoever keeps it starts it again.
        assert follower.wait(60) == EXIT_LEADER_GONE, ranks.log("rank1")


def test_a_rank_loads_from_the_files_of_its_layers_alone(model: Path, tmp_path: Path) -> None:
    mapping = weight_map(model)
    needed = files_for_layers(mapping, range(2, 3), 6)
    assert set(needed) < set(mapping.values())
    partial = tmp_path / "partial"
    partial.mkdir()
    for file in model.iterdir():
        if file.name in needed or file.suffix != ".safetensors":
            (partial / file.name).write_bytes(file.read_bytes())
    whole, part = load_shard(model, lambda layers: range(2, 3)), load_shard(partial, lambda layers: range(2, 3))
    assert part.weight_bytes == whole.weight_bytes
    hidden = mx.random.normal((1, 5, 64))
    tokens = mx.array([[1, 2, 3, 4, 5]])
    outputs = [shard.stage.forward(tokens, shard.stage.new_cache(), [hidden])[0] for shard in (whole, part)]
    assert mx.array_equal(*outputs)


def test_more_ranks_than_layers_is_refused_before_anything_is_loaded(model: Path, tmp_path: Path) -> None:
    with Ranks(tmp_path) as ranks:
        leader = ranks.leader(ranks.spec(model, ranks.addresses(7)))
        assert leader.wait(60) == 78
        assert "7 ranks cannot share 6 layers: use at most 6 ranks" in ranks.log("leader")


@pytest.mark.parametrize(
    ("split", "error"),
    [
        ((3, 2), "adds up to 5 layers where the model has 6"),
        ((3, 3, 0), "gives rank 2 0 layers"),
        ((6,), "has 1 entries for 2 ranks"),
    ],
)
def test_a_split_that_does_not_fit_says_what_is_wrong(
    model: Path, tmp_path: Path, split: tuple[int, ...], error: str
) -> None:
    with Ranks(tmp_path) as ranks:
        count = 2 if len(split) == 1 else len(split)
        assert ranks.leader(ranks.spec(model, ranks.addresses(count), split=split)).wait(60) == 78
        assert error in ranks.log("leader")


@pytest.mark.parametrize("transport", ["ring", "mpi"])
def test_sums_over_a_transport_that_does_not_wait_for_a_gpu_are_refused(transport: str) -> None:
    devices = {"rank 0": "cpu", "rank 1 at 10.0.0.2:5555": "cuda"}
    with pytest.raises(CannotForm, match=r"rank 1 at 10\.0\.0\.2:5555 computes with CUDA.*nccl.*--parallel pipeline"):
        check_sums(Layout((4,), (1, 1)), transport, devices)
    check_sums(Layout((4,), (1, 1)), "nccl", devices)
    check_sums(Layout((2, 2), (1,)), transport, devices)
    check_sums(Layout((4,), (1, 1)), transport, {"rank 0": "cpu", "rank 1": "cpu"})
