from __future__ import annotations

import os
from pathlib import Path

import pytest

from chorus.rank.cache.disk import NoDisk, SegmentDisk
from chorus.rank.disk_tier import fingerprint, open_disk
from chorus.rank.load import LoadedShard, load_shard
from tests.support.architectures import ARCHITECTURES
from tests.support.tiny_model import write_random_model

LAYOUT = ((7,), (1,))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_random_model(tmp_path / "model", ARCHITECTURES["llama"])
    return tmp_path / "model"


def shard(model: Path, layers: range = range(7), dtype: str = "float32") -> LoadedShard:
    return load_shard(model, lambda total: layers, dtype=dtype)


def test_what_a_file_is_good_for_changes_with_the_weights_the_type_and_the_division(model: Path) -> None:
    whole = fingerprint(shard(model), 0, LAYOUT)
    assert fingerprint(shard(model), 0, LAYOUT) == whole
    others = {
        fingerprint(shard(model, dtype="float16"), 0, LAYOUT),
        fingerprint(shard(model, range(3, 7)), 0, ((4, 3), (1,))),
        fingerprint(shard(model), 1, LAYOUT),
        fingerprint(shard(model), 0, ((7,), (2, 1))),
    }
    os.utime(next(model.glob("*.safetensors")), (1, 1))
    others.add(fingerprint(shard(model), 0, LAYOUT))
    assert len({whole, *others}) == 6


def test_a_rank_that_cannot_write_goes_on_without(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = shard(model)
    assert isinstance(open_disk(loaded, 0, LAYOUT, limit=0, folder=str(tmp_path)), NoDisk)
    disk = open_disk(loaded, 0, LAYOUT, limit=1000, folder=str(tmp_path))
    assert isinstance(disk, SegmentDisk)
    assert isinstance(open_disk(loaded, 0, LAYOUT, limit=1000, folder=str(tmp_path)), NoDisk)
    assert "another rank uses it" in caplog.text
    disk.close()
    (tmp_path / "file").touch()
    assert isinstance(open_disk(loaded, 0, LAYOUT, limit=1000, folder=str(tmp_path / "file")), NoDisk)
    assert "Not a directory" in caplog.text
