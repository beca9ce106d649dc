"""Opens what a rank keeps on its disk: of use only to the same weights, divided and computed in the same way."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx_lm

from chorus import __version__
from chorus.platform.storage import paths
from chorus.rank.cache import caches, segment_file
from chorus.rank.cache.disk import Disk, NoDisk, SegmentDisk
from chorus.rank.load import LoadedShard

log = logging.getLogger("chorus.rank")

FOLDER = "prefixes"


def open_disk(shard: LoadedShard, rank: int, layout: Sequence[Sequence[int]], limit: int, folder: str = "") -> Disk:
    """Where nothing can be written, that is told in the log, and everything else goes on.

    `layout` is how the ranks divide the model: layers of each stage, shares of the ranks of a stage.
    """
    if not limit:
        return NoDisk()
    place = (Path(folder) if folder else paths.cache_dir() / FOLDER) / f"rank{rank}"
    try:
        return SegmentDisk(place, fingerprint(shard, rank, layout), limit)
    except OSError as error:
        log.warning("nothing is kept on the disk of rank %d: %s: %s", rank, place, error.strerror or error)
        return NoDisk()


def fingerprint(shard: LoadedShard, rank: int, layout: Sequence[Sequence[int]]) -> str:
    """Changes with whatever changes the numbers in a segment, or what they mean."""
    stage = shard.stage
    facts = [
        segment_file.VERSION,
        __version__,
        mlx_lm.__version__,
        *_files(shard.path),
        shard.dtype,
        shard.policy.form,
        (stage.first, stage.last, stage.layers, rank, *map(tuple, layout)),
        *map(caches.kind, stage.new_cache()),
    ]
    return hashlib.blake2b("\n".join(map(repr, facts)).encode(), digest_size=16).hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """The weights and their configuration, as the folder lists them: reading them all again would take too long."""
    for file in sorted((*folder.glob("*.safetensors"), folder / "config.json")):
        status = file.stat()
        yield file.name, status.st_size, status.st_mtime_ns
