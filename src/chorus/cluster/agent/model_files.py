"""Where a node gets the model it is to load: from its own store, from nodes that have it, or from Hugging Face.

A coordinator says a model's name and which files a rank needs; it never says a path. A copy that was cut off goes on
where it stopped, and only complete files are ever seen by a rank.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from chorus.cluster.transfer.fetch import fetch
from chorus.cluster.transfer.share import SharedFile, SharedModel, TransferFailed, is_same, part_of_share
from chorus.cluster.transfer.sources import FileSource
from chorus.errors import ChorusError
from chorus.models import ModelError, fetch_files
from chorus.models.resolve import is_name, split_hub_id, stored_model
from chorus.models.store import Store
from chorus.platform.storage.paths import cache_dir
from chorus.security.identity import Identity

log = logging.getLogger("chorus.agent")

Report = Callable[[str, int, int], None]
"""What is being done, bytes done, bytes in all."""
LOCK_SECONDS = 3600.0


class NoModel(ChorusError):
    """This node cannot get the model: says which node, where it looked and why each way failed."""


def copies_dir() -> Path:
    return cache_dir() / "copies"


def provide(
    node: str,
    model: str,
    share: str,
    files: Sequence[SharedFile],
    sources: Sequence[FileSource],
    identity: Identity | None,
    report: Report,
) -> Path:
    """A folder with at least these files of the model."""
    tried: list[str] = []
    if path := _in_own_store(model, files, tried):
        return path
    if sources and share and identity:
        try:
            return _copied(share, files, sources, identity, report)
        except (TransferFailed, OSError) as error:
            tried.append(str(error))
    if hub := split_hub_id(model):
        try:
            return fetch_files(
                *hub, [file.name for file in files], progress=lambda p: report(p.label, p.done, p.total or 0)
            )
        except ModelError as error:
            tried.append(str(error))
    where = f"{Store.default().root} and {copies_dir()}"
    raise NoModel(f"node {node} has no {model} in {where}: {'; '.join(tried) or 'no other node offers it'}")


def held(model: str, share: str, files: Sequence[SharedFile]) -> SharedModel:
    """What this node has of a share, in its own store or from an earlier copy; perhaps nothing."""
    folder = copies_dir() / share
    own = _own_folder(model, [])
    found = [part_of_share(model, share, place, files) for place in (own, folder) if place and share.isalnum()]
    return max(found, key=lambda part: len(part.files), default=SharedModel(model, folder, (), share))


def _own_folder(model: str, tried: list[str]) -> Path | None:
    if not is_name(model):
        return None
    try:
        return stored_model(model, weights=False).path
    except ModelError as error:
        tried.append(str(error))
        return None


def _in_own_store(model: str, files: Sequence[SharedFile], tried: list[str]) -> Path | None:
    path = _own_folder(model, tried)
    if path is None:
        return None
    if different := [file.name for file in files if not is_same(path / file.name, file)]:
        tried.append(f"{path} lacks {different[0]}, or has another version of it")
        return None
    return path


def _copied(
    share: str, files: Sequence[SharedFile], sources: Sequence[FileSource], identity: Identity, report: Report
) -> Path:
    if not share.isalnum() or any(Path(file.name).name != file.name or file.name.startswith(".") for file in files):
        raise TransferFailed(f"{sources[0].address} offers files whose names are not plain file names")
    folder = copies_dir() / share
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        missing = [file for file in files if not is_same(folder / file.name, file)]
        if not missing:
            return folder
        total, wanted = sum(file.size for file in files), sum(file.size for file in missing)
        done = total - wanted

        def progress(count: int) -> None:
            nonlocal done
            done += count
            report("copying the model", done, total)

        started = time.monotonic()
        fetch(missing, folder, share, sources, identity, progress)
    seconds, names = time.monotonic() - started, ", ".join(source.address for source in sources)
    log.info("copied %.0f MB from %s to %s in %.1f s", wanted / 1e6, names, folder, seconds)
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process copy at a time: two ranks of one node may need the same files, and the second finds them."""
    lock = _lock_within(folder / ".lock", LOCK_SECONDS)
    if lock is None:
        raise TransferFailed(
            f"another process has been copying to {folder} for {LOCK_SECONDS / 60:g} minutes: end it, then try again"
        )
    try:
        yield
    finally:
        os.close(lock)


def _lock_within(file: Path, seconds: float) -> int | None:
    """A descriptor that holds the lock, or None. The system's wait has no end of its own, so a thread is left to it."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    taken: Future[None] = Future()

    def take() -> None:
        failure = None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            failure = error
        wanted = taken.set_running_or_notify_cancel()
        if failure or not wanted:
            os.close(lock)
        if wanted and failure:
            taken.set_exception(failure)
        elif wanted:
            taken.set_result(None)

    threading.Thread(target=take, name="copy-lock", daemon=True).start()
    try:
        taken.result(seconds)
    except TimeoutError:
        if taken.cancel():
            return None
        # It came in this very moment.
        taken.result()
    return lock
