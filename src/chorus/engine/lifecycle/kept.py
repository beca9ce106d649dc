"""Opens the index of what is kept, for a group that has just formed."""

from __future__ import annotations

import logging

from chorus.config.engine import EngineSpec
from chorus.engine.lifecycle.group import Group
from chorus.engine.prefix.disk import DiskIndex, FileList
from chorus.engine.prefix.index import MAX_ENTRIES, MAX_TOKENS, Limits, PrefixIndex
from chorus.engine.room import Room
from chorus.engine.scheduling.scheduler import NOTHING_KEPT
from chorus.rank.runner import Runner

log = logging.getLogger("chorus.engine")


def open_index(spec: EngineSpec, group: Group, runner: Runner, room: Room, file_list: FileList | None) -> PrefixIndex:
    """Empty, but for what all ranks have on their disks."""
    keeping = runner.keeping if spec.cache.enabled else NOTHING_KEPT
    if keeping.refusal:
        log.info("nothing is kept for the next request: %s", keeping.refusal)
    limits = Limits(
        tokens=min(spec.cache.max_tokens or MAX_TOKENS, MAX_TOKENS),
        entries=min(spec.cache.max_entries or MAX_ENTRIES, MAX_ENTRIES),
        pin_seconds=60 * spec.cache.pin_minutes,
    )
    index = PrefixIndex(keeping, room, limits)
    if file_list and all(follower.loaded.disk for follower in group.followers.followers):
        index.disk = _disk(runner, group, file_list)
    return index


def _disk(runner: Runner, group: Group, file_list: FileList) -> DiskIndex:
    """With what an earlier leader has written down, as far as every rank still holds it."""
    followers = group.followers.followers
    index = DiskIndex(runner.keeping, ranks=1 + len(followers))
    held = set(group.disk.held_keys()).intersection(*(follower.loaded.files for follower in followers))
    file_list.read(index, held)
    log.info("%d stored prefixes are on disk", index.files)
    return index
