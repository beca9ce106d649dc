from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from chorus.cluster.transfer.disk import PartialFile
from chorus.platform.storage.files import write_whole
from tests.support.fake_mac import played

# As <fcntl.h> of macOS has them.
F_NOCACHE, F_FULLFSYNC = 48, 51


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What a Mac's kernel is asked to do with files, besides reading and writing them."""
    played(monkeypatch, tmp_path / "mac")
    calls: list[Any] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, *rest: calls.append(rest) or 0)
    return calls


def test_what_must_last_goes_through_the_cache_of_a_macs_disk(asked: list[Any], tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"text", lasting=True)
    assert asked == [(F_FULLFSYNC,)]
    assert (tmp_path / "file").read_bytes() == b"text"


def test_copies_of_models_fill_no_page_cache_of_a_mac_and_last(asked: list[Any], tmp_path: Path) -> None:
    copy = PartialFile(tmp_path / "weights", 8192)
    copy.write(memoryview(bytes(8192)), 0)
    copy.complete()
    copy.close()
    assert asked == [(F_NOCACHE, 1), (F_FULLFSYNC,)]
    assert (tmp_path / "weights").stat().st_size == 8192
