"""What a rank does on Metal that it does nowhere else: it wires its model, bounds MLX's buffers, keeps packed weights
packed, and ends when its GPU fails."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from chorus.messages.load import Status
from chorus.messages.rank import Feed, Step
from chorus.platform.process.exits import EXIT_FAULT, EXIT_NO_MEMORY
from chorus.rank.load import LoadError, load_shard
from chorus.rank.worker import Run, Stop, Worker, _Memory
from tests.support.mac import GIB, FakeMetal, play_mac
from tests.support.tiny_model import write_tiny_model

RESERVE = 2 * GIB
STEP = Step(7, feeds=(Feed(1, (1,)),))
GIVE_UP_SECONDS = 30.0
METAL_ERROR = "[METAL] Command buffer execution failed: Caused GPU Timeout Error"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("metal") / "tiny", "llama", quantize={"bits": 4, "group_size": 32})


@pytest.fixture
def metal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMetal:
    """A 16 GB Mac of which macOS calls 60 % available."""
    play_mac(monkeypatch, tmp_path, 16 * GIB, {"kern.memorystatus_level": 60, "iogpu.wired_limit_mb": 0})
    return FakeMetal(working_set=32 * GIB // 3).play(monkeypatch)


def test_a_loaded_model_is_wired_with_its_cache_and_not_the_whole_working_set(
    quantized: Path, metal: FakeMetal
) -> None:
    load_shard(quantized, range, memory_fraction=0.25)
    assert metal.wired_limits == [int(16 * GIB * 60 // 100 * 0.25) + RESERVE]


def test_a_large_share_wires_no_more_than_the_working_set(quantized: Path, metal: FakeMetal) -> None:
    load_shard(quantized, range, memory_fraction=1.0)
    assert metal.wired_limits == [metal.working_set]


def test_freed_buffers_are_bounded_once_a_model_is_loaded(quantized: Path, metal: FakeMetal) -> None:
    load_shard(quantized, range)
    assert metal.cache_limits == [GIB]


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_mac(monkeypatch, tmp_path, 16 * GIB, {"kern.memorystatus_level": 60})
    FakeMetal(working_set=RESERVE).play(monkeypatch)
    read: list[int] = []
    with pytest.raises(LoadError, match=r"the weights of tiny take .* and of the GPU's working set of 2.0 GiB"):
        load_shard(quantized, range, progress=lambda done, total: read.append(done))
    assert not read


@pytest.mark.parametrize("asked", [{"dtype": "float16"}, {"policy": "float16, unpacked"}])
def test_float16_on_metal_is_for_activations_over_packed_weights(
    quantized: Path, metal: FakeMetal, asked: dict[str, str]
) -> None:
    shard = load_shard(quantized, range, **asked)  # type: ignore[arg-type]
    kinds = {name.rpartition(".")[2]: array.dtype for name, array in tree_flatten(shard.stage.model.parameters())}
    assert (shard.policy.dtype, shard.policy.dequantize) == ("float16", False)
    assert kinds["scales"] == kinds["biases"] == mx.float16
    assert any(array.dtype == mx.uint32 for _, array in tree_flatten(shard.stage.model.parameters()))


def test_a_ranks_memory_is_what_metal_holds_for_it(metal: FakeMetal) -> None:
    metal.active, metal.cached = 900 * GIB, 100 * GIB
    seen = _Memory()
    seen.look_again()
    assert seen.resident == 1000 * GIB


class Failing:
    """A rank's part whose every step fails."""

    computes_on = False

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, step: Step) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (METAL_ERROR, EXIT_FAULT),
        ("[METAL] Command buffer execution failed: Insufficient Memory (00000008)", EXIT_NO_MEMORY),
        ("[malloc] Unable to allocate 1024 bytes.", 0),
        ("[matmul] shapes do not match", 0),
    ],
    ids=["the GPU failed", "the GPU had no memory", "there was no memory", "a step failed"],
)
def test_a_rank_whose_gpu_or_memory_failed_tells_its_leader_and_ends_to_be_started_again(
    tmp_path: Path, words: str, code: int
) -> None:
    worker = Worker(1, f"unix:{tmp_path}/rank.sock")
    part: Any = Failing(RuntimeError(words))
    worker._part = part
    answers: queue.SimpleQueue[Status | None] = queue.SimpleQueue()
    worker._commands.put(Run(0, STEP, answers))
    worker._commands.put(Stop())
    assert worker.serve() == code
    told = answers.get_nowait()
    assert told is not None
    assert words in told.error


def test_a_rank_without_steps_gives_back_the_buffers_that_mlx_keeps(
    tmp_path: Path, metal: FakeMetal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chorus.rank.worker.IDLE_SECONDS", 0.01, raising=False)
    worker = Worker(1, f"unix:{tmp_path}/rank.sock")
    part: Any = Failing(ValueError("no step of this rank succeeds"))
    worker._part = part
    worker._commands.put(Run(0, STEP, queue.SimpleQueue()))
    cleared: list[bool] = []

    def clear() -> None:
        cleared.append(True)
        worker.stop()

    monkeypatch.setattr(mx, "clear_cache", clear)
    give_up = threading.Timer(GIVE_UP_SECONDS, worker.stop)
    give_up.start()
    assert worker.serve() == 0
    give_up.cancel()
    assert cleared == [True]
