"""CPU threads of real processes: as they were asked for, or as a trial found best."""

from __future__ import annotations

from pathlib import Path

import pytest

from chorus.platform.accelerator import device
from chorus.platform.cpu import blas, cores
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model


def threads_of(server: ChorusServer) -> int:
    (rank,) = server.get("/cluster/status")["ranks"]
    return int(rank["threads"])


@pytest.mark.skipif(device.backend() != "cpu" or len(blas.find()) < 2, reason="only a real BLAS has threads")
@pytest.mark.parametrize("bits", [None, 4])
def test_threads_are_as_asked_for_or_as_tried(tmp_path: Path, bits: int | None) -> None:
    quantize = {"bits": bits, "group_size": 32} if bits else None
    model = write_tiny_model(tmp_path / "model", "llama", quantize=quantize)
    usable = cores.usable_cores()
    with ChorusServer(model, ["--threads", str(usable)], tmp_path) as server:
        assert threads_of(server) == usable
        assert f"of {usable} threads (tried" not in server.log
    with ChorusServer(model, [], tmp_path) as server:
        chosen = threads_of(server)
        assert 1 <= chosen <= usable
        assert (f"{chosen} of {usable} threads (tried {usable}" in server.log) == (usable > 1)
