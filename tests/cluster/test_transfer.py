"""Model files from node to node: whole, resumed, and never anything that was not offered."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chorus.cluster.agent import model_files
from chorus.cluster.agent.door import AgentDoor
from chorus.cluster.agent.process import PROTOCOLS
from chorus.cluster.transfer.disk import RANGE_BYTES
from chorus.cluster.transfer.fetch import Progress, fetch
from chorus.cluster.transfer.share import FILES, FileServer, SharedFile, SharedModel, TransferFailed, share_folder
from chorus.cluster.transfer.sources import FileSource
from chorus.security import handshake
from chorus.security.authority import Authority
from chorus.security.identity import Identity
from chorus.security.meet import meet
from chorus.security.member import NODE
from tests.cluster.harness import eventually

SIZE = 5 * RANGE_BYTES + 12345


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.safetensors").write_bytes(random.Random(1).randbytes(SIZE))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


@contextlib.contextmanager
def holder(folder: Path, model: Path) -> Iterator[tuple[AgentDoor, FileServer, Identity, str]]:
    authority = Authority.create(folder / "authority")
    own = authority.issue(folder / "holder", "studio", NODE)
    files = FileServer()
    share = share_folder("some-model", model)
    files.offer(share)
    door = AgentDoor("127.0.0.1", 0)
    door.set(own.server_context(PROTOCOLS), own, None, {FILES: files.serve})
    door.start()
    try:
        yield door, files, authority.issue(folder / "mine", "mini", NODE), share.digest
    finally:
        door.close()


NAME = "model.safetensors"


def copy(
    door: AgentDoor, identity: Identity, share: str, folder: Path, progress: Progress = lambda count: None
) -> None:
    source = FileSource(f"127.0.0.1:{door.port}", frozenset({NAME}))
    fetch([SharedFile(NAME, SIZE)], folder, share, [source], identity, progress)


def digest(file: Path) -> str:
    return hashlib.file_digest(file.open("rb"), "sha256").hexdigest()


def test_a_file_arrives_as_it_was(tmp_path: Path, model: Path) -> None:
    target = tmp_path / "copies"
    with holder(tmp_path, model) as (door, files, identity, share):
        copy(door, identity, share, target)
        assert files.sent_bytes == SIZE
    assert digest(target / NAME) == digest(model / NAME)
    assert [file.name for file in target.iterdir()] == [NAME]


def test_what_was_offered_to_one_stays_when_less_is_offered_to_another(tmp_path: Path, model: Path) -> None:
    with holder(tmp_path, model) as (door, files, identity, share):
        whole = share_folder("some-model", model)
        few = tuple(file for file in whole.files if file.name != NAME)
        assert few
        files.offer(SharedModel("some-model", model, few, share))
        copy(door, identity, share, tmp_path / "copies")
    assert digest(tmp_path / "copies" / NAME) == digest(model / NAME)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, (4 << 20) + 1, RANGE_BYTES, RANGE_BYTES + 4095])
def test_a_file_of_any_length_arrives_as_it_was(tmp_path: Path, size: int) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / NAME).write_bytes(random.Random(size).randbytes(size))
    with holder(tmp_path, tmp_path / "model") as (door, _, identity, share):
        source = FileSource(f"127.0.0.1:{door.port}", frozenset({NAME}))
        fetch(share_folder("m", tmp_path / "model").files, tmp_path / "copies", share, [source], identity)
    assert digest(tmp_path / "copies" / NAME) == digest(tmp_path / "model" / NAME)


@pytest.mark.linux("O_DIRECT")
@pytest.mark.parametrize("refusal", ["opening", "writing"])
def test_a_disk_that_takes_nothing_past_the_page_cache_gets_it_through_it(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    real_open, real_write, direct = os.open, os.pwrite, set()

    def open_(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT and refusal == "opening":
            raise OSError(errno.EINVAL, "not here")
        descriptor = real_open(path, flags, mode)
        (direct.add if flags & os.O_DIRECT else direct.discard)(descriptor)
        return descriptor

    def write(descriptor: int, data: memoryview, position: int) -> int:
        if descriptor in direct:
            raise OSError(errno.EINVAL, "not so")
        return real_write(descriptor, data, position)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", write)
    with holder(tmp_path, model) as (door, _, identity, share):
        copy(door, identity, share, tmp_path / "copies")
    assert digest(tmp_path / "copies" / NAME) == digest(model / NAME)


def test_a_full_disk_ends_the_copy_and_is_named(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(descriptor: int, data: memoryview, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with holder(tmp_path, model) as (door, _, identity, share):
        monkeypatch.setattr(os, "pwrite", write)
        with pytest.raises(TransferFailed, match="No space left"):
            copy(door, identity, share, tmp_path / "copies")


def test_a_copy_that_was_killed_goes_on_where_it_stopped(tmp_path: Path, model: Path) -> None:
    target = tmp_path / "copies"
    with holder(tmp_path, model) as (door, files, identity, share):
        program = (
            "import threading; from pathlib import Path\n"
            "from chorus.cluster.transfer.share import SharedFile; from chorus.cluster.transfer.fetch import fetch\n"
            "from chorus.cluster.transfer.sources import FileSource\n"
            "from chorus.security.identity import Identity\n"
            f"source = FileSource('127.0.0.1:{door.port}', frozenset([{NAME!r}]))\n"
            # It stands still when more than four ranges' worth is there: of the five or more that it has begun, no
            # more than its three streams are at work on are not whole yet.
            "arrived = 0\n"
            "def count(more):\n"
            "    global arrived\n"
            "    arrived += more\n"
            f"    if arrived > {4 * RANGE_BYTES}: threading.Event().wait()\n"
            f"fetch([SharedFile({NAME!r}, {SIZE})], Path({str(target)!r}), {share!r}, [source],"
            f" Identity(Path({str(identity.folder)!r})), count)"
        )
        child = subprocess.Popen([sys.executable, "-c", program])
        journal = target / f"{NAME}.ranges"
        assert eventually(lambda: journal.is_file() and len(journal.read_text().splitlines()) >= 2)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
        # Whoever was sending to it may yet count what has left.
        assert eventually(lambda: not door._known)
        assert not (target / NAME).exists(), "a file appears only when it is whole"
        kept = sum(json.loads(line)[1] for line in journal.read_text().splitlines())
        assert kept >= RANGE_BYTES
        before = files.sent_bytes
        copy(door, identity, share, target)
        assert files.sent_bytes - before <= SIZE - kept
    assert digest(target / NAME) == digest(model / NAME)


def test_what_rotted_on_disk_is_sent_again(tmp_path: Path, model: Path) -> None:
    target = tmp_path / "copies"
    arrived = 0

    def stop_late(count: int) -> None:
        nonlocal arrived
        arrived += count
        if arrived > 4 * RANGE_BYTES:
            raise OSError("cut off")

    with holder(tmp_path, model) as (door, files, identity, share):
        with pytest.raises(TransferFailed, match="cut off"):
            copy(door, identity, share, target, stop_late)
        noted = [json.loads(line)[0] for line in (target / f"{NAME}.ranges").read_text().splitlines()]
        assert noted
        with (target / f"{NAME}.part").open("r+b") as stream:
            stream.seek(noted[0] + 7)
            (byte,) = stream.read(1)
            stream.seek(noted[0] + 7)
            stream.write(bytes([byte ^ 1]))
        before = files.sent_bytes
        copy(door, identity, share, target)
        assert files.sent_bytes - before >= SIZE - (len(noted) - 1) * RANGE_BYTES
    assert digest(target / NAME) == digest(model / NAME)


def test_a_file_that_was_replaced_under_its_name_is_not_taken_for_the_same(tmp_path: Path, model: Path) -> None:
    meant = SharedFile(NAME, SIZE, "0" * 32)
    with holder(tmp_path, model) as (door, _, identity, share):
        source = FileSource(f"127.0.0.1:{door.port}", frozenset({NAME}))
        with pytest.raises(TransferFailed, match="another file"):
            fetch([meant], tmp_path / "copies", share, [source], identity)
    assert not (tmp_path / "copies" / NAME).exists()


def test_two_sources_share_the_work_and_one_that_fails_is_replaced(tmp_path: Path, model: Path) -> None:
    with holder(tmp_path, model) as (door, files, identity, share):
        second = FileServer()
        second.offer(share_folder("some-model", model))
        own = Identity(tmp_path / "holder")
        with (
            contextlib.closing(AgentDoor("127.0.0.1", 0)) as other,
            contextlib.closing(AgentDoor("127.0.0.1", 0)) as broken,
        ):
            other.set(own.server_context(PROTOCOLS), own, None, {FILES: second.serve})
            other.start()
            broken.set(own.server_context(PROTOCOLS), own, None, {})
            broken.start()
            # The quicker one would send all of it while the other is still being reached.
            both_asked = threading.Barrier(2)
            for server in (files, second):
                wait_before_the_first(server, both_asked)
            names = frozenset({NAME})
            sources = [FileSource(f"127.0.0.1:{one.port}", names) for one in (broken, door, other)]
            fetch([SharedFile(NAME, SIZE)], tmp_path / "copies", share, sources, identity)
    assert digest(tmp_path / "copies" / NAME) == digest(model / NAME)
    assert files.sent_bytes > 0
    assert second.sent_bytes > 0
    assert files.sent_bytes + second.sent_bytes == SIZE, "no range is sent twice"


def wait_before_the_first(server: FileServer, both: threading.Barrier) -> None:
    """Keep its first answer back until others are asked too."""
    find, first = server._find, iter([both])

    def found(request: Mapping[str, object]) -> tuple[Path, int, int]:
        for barrier in first:
            barrier.wait(60)
        return find(request)

    server._find = found  # type: ignore[method-assign]


def test_a_copy_that_nobody_can_finish_names_every_source_and_its_reason(tmp_path: Path, model: Path) -> None:
    with holder(tmp_path, model) as (door, _, identity, share):
        door.close()
        with pytest.raises(TransferFailed, match=rf"127.0.0.1:{door.port}.* broke off: .*cannot be reached"):
            copy(door, identity, share, tmp_path / "copies")


@pytest.mark.parametrize(
    "request_",
    [
        {"share": "other", "file": "config.json", "start": 0, "length": 4},
        {"share": None, "file": "../authority/ca.key", "start": 0, "length": 4},
        {"share": None, "file": "modeling.py", "start": 0, "length": 4},
        {"share": None, "file": "/etc/passwd", "start": 0, "length": 4},
        {"share": None, "file": "config.json", "start": -1, "length": 4},
        {"share": None, "file": "config.json", "start": 0, "length": 1 << 40},
        {"share": None, "file": "config.json", "start": "0", "length": 4},
        {"share": None, "probe": 1 << 40},
        {"share": None, "probe": -1},
        {"share": None, "probe": "all"},
    ],
    ids=str,
)
def test_only_what_is_offered_can_be_had(tmp_path: Path, model: Path, request_: dict[str, object]) -> None:
    with (
        holder(tmp_path, model) as (door, _, identity, share),
        meet(("127.0.0.1", door.port), identity, FILES, 10) as (connection, _),
    ):
        handshake.send(connection, {**request_, "share": request_["share"] or share})
        with pytest.raises((handshake.JoinRefused, OSError)):
            handshake.receive(connection)


def test_a_node_takes_no_file_names_that_leave_its_folder(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    evil = [SharedFile("../../evil.json", 4)]
    refused = pytest.raises(model_files.NoModel, match="node mini")
    with holder(tmp_path, model) as (door, _, identity, share), refused:
        source = FileSource(f"127.0.0.1:{door.port}", frozenset({"../../evil.json"}))
        model_files.provide("mini", "/a/model", share, evil, [source], identity, lambda *_: None)
    assert not list(tmp_path.rglob("evil.json"))


def test_a_model_that_nobody_has_names_the_node_and_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(model_files.NoModel, match=r"node mini has no .*/model.*cache"):
        model_files.provide("mini", "/some/model", "", [], [], None, lambda *_: None)
