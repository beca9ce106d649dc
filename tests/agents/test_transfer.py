"""Model files from node to node: whole, resumed, and never anything that was not offered."""

from __future__ import annotations

import contextlib
import hashlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.cluster import agent_models, trust_join
from chorus.cluster.agent_door import FILES, PROTOCOLS, Door
from chorus.cluster.transfer import RANGE_BYTES, Fetcher, FileServer, SharedFile, TransferFailed, share_folder
from chorus.cluster.trust import Authority
from chorus.cluster.trust_enrol import connect
from chorus.cluster.trust_identity import NODE, SERVER_NAME, Identity

SIZE = 5 * RANGE_BYTES + 12345


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.safetensors").write_bytes(random.Random(1).randbytes(SIZE))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


@contextlib.contextmanager
def holder(folder: Path, model: Path) -> Iterator[tuple[Door, FileServer, Identity, str]]:
    authority = Authority.create(folder / "authority")
    own = authority.issue(folder / "holder", "studio", "id0", NODE)
    files = FileServer()
    share = share_folder("some-model", model)
    files.offer(share)
    door = Door("127.0.0.1", 0)
    door.set(own.server_context(PROTOCOLS), own, None, {FILES: files.serve})
    door.start()
    try:
        yield door, files, authority.issue(folder / "mine", "mini", "id1", NODE), share.digest
    finally:
        door.close()


def digest(file: Path) -> str:
    return hashlib.file_digest(file.open("rb"), "sha256").hexdigest()


def test_a_file_arrives_as_it_was(tmp_path: Path, model: Path) -> None:
    with holder(tmp_path, model) as (door, _, identity, share):
        fetcher = Fetcher(("127.0.0.1", door.port), identity, share)
        fetcher.fetch(SharedFile("model.safetensors", SIZE), tmp_path / "copy")
        fetcher.close()
    assert digest(tmp_path / "copy") == digest(model / "model.safetensors")
    assert not list(tmp_path.glob("copy.*"))


def test_a_copy_that_was_killed_goes_on_where_it_stopped(tmp_path: Path, model: Path) -> None:
    with holder(tmp_path, model) as (door, files, identity, share):
        program = (
            "import sys, time; from pathlib import Path\n"
            "from chorus.cluster.transfer import *; from chorus.cluster.trust_identity import Identity\n"
            f"f = Fetcher(('127.0.0.1', {door.port}), Identity(Path({str(identity.folder)!r})), {share!r})\n"
            # Slow enough to be caught in the middle.
            f"target = Path({str(tmp_path / 'copy')!r})\n"
            f"f.fetch(SharedFile('model.safetensors', {SIZE}), target, lambda n: time.sleep(0.02))"
        )
        child = subprocess.Popen([sys.executable, "-c", program])
        journal = tmp_path / "copy.ranges"
        deadline = time.monotonic() + 60
        while not journal.is_file() or len(journal.read_text().splitlines()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        assert not (tmp_path / "copy").exists(), "a file appears only when it is whole"
        kept = len(journal.read_text().splitlines())
        before = files.sent_bytes
        fetcher = Fetcher(("127.0.0.1", door.port), identity, share)
        fetcher.fetch(SharedFile("model.safetensors", SIZE), tmp_path / "copy")
        fetcher.close()
        assert files.sent_bytes - before <= SIZE - kept * RANGE_BYTES
    assert digest(tmp_path / "copy") == digest(model / "model.safetensors")


def test_what_rotted_on_disk_is_sent_again(tmp_path: Path, model: Path) -> None:
    original = (model / "model.safetensors").read_bytes()
    with holder(tmp_path, model) as (door, _, identity, share):

        def cut(count: int) -> None:
            raise OSError("cut off")

        fetcher = Fetcher(("127.0.0.1", door.port), identity, share)
        arrived = 0

        def stop_late(count: int) -> None:
            nonlocal arrived
            arrived += count
            if arrived > 3 * RANGE_BYTES:
                cut(count)

        with pytest.raises(TransferFailed, match="cut off"):
            fetcher.fetch(SharedFile("model.safetensors", SIZE), tmp_path / "copy", stop_late)
        fetcher.close()
        partial = tmp_path / "copy.part"
        with partial.open("r+b") as stream:
            stream.seek(RANGE_BYTES + 7)
            stream.write(bytes([original[RANGE_BYTES + 7] ^ 1]))
        again = Fetcher(("127.0.0.1", door.port), identity, share)
        again.fetch(SharedFile("model.safetensors", SIZE), tmp_path / "copy")
        again.close()
    assert (tmp_path / "copy").read_bytes() == original


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
    ],
    ids=str,
)
def test_only_what_is_offered_can_be_had(tmp_path: Path, model: Path, request_: dict[str, object]) -> None:
    with holder(tmp_path, model) as (door, _, identity, share):
        connection = connect(("127.0.0.1", door.port), identity.client_context([FILES]), 10, SERVER_NAME)
        with contextlib.closing(connection):
            trust_join.send(connection, {**request_, "share": request_["share"] or share})
            with pytest.raises((trust_join.JoinRefused, OSError)):
                trust_join.receive(connection)


def test_a_node_takes_no_file_names_that_leave_its_folder(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    evil = [SharedFile("../../evil.json", 4)]
    refused = pytest.raises(agent_models.NoModel, match="node mini")
    with holder(tmp_path, model) as (door, _, identity, share), refused:
        agent_models.provide("mini", "/a/model", share, evil, f"127.0.0.1:{door.port}", identity, lambda *_: None)
    assert not list(tmp_path.rglob("evil.json"))


def test_a_model_that_nobody_has_names_the_node_and_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORUS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(agent_models.NoModel, match=r"node mini has no .*/model.*cache"):
        agent_models.provide("mini", "/some/model", "", [], "", None, lambda *_: None)
