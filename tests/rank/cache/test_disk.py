from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from chorus.messages.rank import Drop, Evict, Feed, Fork, Part, Restore, Save, Store
from chorus.rank.cache import disk as disk_module
from chorus.rank.cache import segment_file
from chorus.rank.cache.disk import ENDING, NoDisk, SegmentDisk
from chorus.rank.cache.store import Segment
from tests.rank.cache.chain import KINDS, STAGES, Chain, chain

OURS, OTHERS = "a" * 32, "b" * 32
KEY, SECOND, THIRD = ("1" * 32, "2" * 32, "3" * 32)
TOKENS = tuple((7 * n * n + 13 * n + 5) % 100 for n in range(40))


def segment(seed: int = 0, tokens: int = 20) -> Segment:
    mx.random.seed(seed)
    keys = [mx.random.normal((1, 2, tokens, 8)), mx.random.normal((1, 2, tokens, 4)).astype(mx.bfloat16)]
    ghost = [mx.zeros((1, 1, tokens, 0)), mx.zeros((1, 1, tokens, 0))]
    state = [mx.random.normal((1, 3)).astype(mx.float16), None, mx.array([[5, 6]], dtype=mx.int32)]
    return Segment(4, 4 + tokens, {0: keys, 2: ghost, 3: []}, {1: state})


def equal(ours: Segment, theirs: Segment) -> bool:
    if (ours.start, ours.stop, ours.slices.keys()) != (theirs.start, theirs.stop, theirs.slices.keys()):
        return False
    pairs = [(ours.slices, theirs.slices), (ours.states or {}, theirs.states or {})]
    rows = [(a, b) for one, other in pairs for place in one for a, b in zip(one[place], other[place], strict=True)]
    return all(a is b is None or (a.dtype == b.dtype and a.shape == b.shape and bool(mx.all(a == b))) for a, b in rows)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., SegmentDisk]]:
    """Opens the disk anew, as a rank that was started again does."""
    made: list[SegmentDisk] = []

    def open_again(fingerprint: str = OURS, limit: int = 1 << 30) -> SegmentDisk:
        for disk in made:
            disk.close()
        made.append(SegmentDisk(tmp_path / "segments", fingerprint, limit))
        return made[-1]

    yield open_again
    for disk in made:
        disk.close()


def written(disk: SegmentDisk, **segments: Segment) -> disk_module.News:
    for key, one in segments.items():
        disk.save(key, one)
    disk.close()
    return disk.news()


def save(opened: Callable[..., SegmentDisk], key: str = KEY, seed: int = 0) -> Path:
    disk = opened()
    written(disk, **{key: segment(seed)})
    return disk._file(key)


def test_a_segment_comes_back_as_it_was_after_a_restart(opened: Callable[..., SegmentDisk]) -> None:
    news = written(opened(), **{KEY: segment(1), SECOND: segment(2)})
    assert (news.saved, news.failed) == ([KEY, SECOND], [])
    disk = opened()
    assert disk.held_keys() == [KEY, SECOND]
    found = disk.restore(SECOND)
    assert found is not None
    assert equal(found, segment(2))
    assert disk.news().restored == [SECOND]
    assert disk.nbytes == sum(file.stat().st_size for file in disk._own.glob(f"*{ENDING}"))


def test_any_tool_for_safetensors_can_read_the_file(opened: Callable[..., SegmentDisk]) -> None:
    arrays, metadata = mx.load(str(save(opened)), format="safetensors", return_metadata=True)
    assert bool(mx.all(arrays["slices.0.0"] == segment().slices[0][0]))
    assert metadata["key"] == KEY


def test_nobody_else_may_look_at_it(opened: Callable[..., SegmentDisk]) -> None:
    file = save(opened)
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in (file.parent, file.parent.parent))


def damages(content: bytes) -> Iterator[bytes]:
    dice = random.Random(3)
    for length in (0, 4, 8, 60, len(content) // 2, len(content) - 1):
        yield content[:length]
    yield content + b"more"
    yield b"\xff" * 8 + content[8:]
    yield b"{}" * 100
    for _ in range(40):
        bad = bytearray(content)
        bad[dice.randrange(len(bad))] ^= 1 << dice.randrange(8)
        yield bytes(bad)
    header = int.from_bytes(content[:8], "little")
    for at in range(8, 8 + header, 7):
        yield content[:at] + b"9" + content[at + 1 :] if content[at : at + 1] != b"9" else content[:at]


def test_a_damaged_file_is_dropped_and_never_read(
    opened: Callable[..., SegmentDisk], caplog: pytest.LogCaptureFixture
) -> None:
    file = save(opened)
    content = file.read_bytes()
    disk = opened()
    for damaged in damages(content):
        caplog.clear()
        file.write_bytes(damaged)
        assert disk.restore(KEY) is None
        assert disk.news().failed == [KEY]
        assert not file.exists()
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
    file.write_bytes(content[:-1])
    assert opened().held_keys() == []
    assert not file.exists()


def test_a_file_that_was_written_for_something_else_is_dropped(
    opened: Callable[..., SegmentDisk], caplog: pytest.LogCaptureFixture
) -> None:
    file = save(opened)
    foreign = opened(OTHERS)._file(KEY)
    foreign.write_bytes(file.read_bytes())
    renamed = file.with_name(SECOND + ENDING)
    renamed.write_bytes(file.read_bytes())
    assert opened(OTHERS).held_keys() == []
    assert opened().held_keys() == [KEY]
    assert caplog.text.count("another model") == 2
    assert not foreign.exists()
    assert not renamed.exists()


@pytest.mark.parametrize("next_model", [OURS, OTHERS])
def test_what_was_being_written_when_the_rank_ended_is_removed(
    opened: Callable[..., SegmentDisk], next_model: str
) -> None:
    file = save(opened)
    aside = file.with_suffix(disk_module.ASIDE)
    aside.write_bytes(file.read_bytes()[:50])
    opened(next_model)
    assert not aside.exists()
    assert opened().held_keys() == [KEY]


ENDLESS = """
import sys
from pathlib import Path
from chorus.rank.cache.disk import SegmentDisk
from tests.rank.cache.test_disk import OURS, segment
disk = SegmentDisk(Path(sys.argv[1]), OURS, 1 << 30)
for number in range(1_000_000):
    disk.save(f"{number:032x}", segment(number, tokens=5000))
    while not disk.news().saved:
        pass
    print(number, flush=True)
"""


def test_a_rank_killed_while_it_writes_leaves_nothing_that_is_read_wrongly(
    tmp_path: Path, opened: Callable[..., SegmentDisk]
) -> None:
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "segments")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}) as rank:
        assert rank.stdout is not None
        for _ in range(3):
            assert rank.stdout.readline()
        rank.send_signal(signal.SIGKILL)
    disk = opened()
    kept = disk.held_keys()
    assert len(kept) >= 3
    for key in kept:
        found = disk.restore(key)
        assert found is not None
        assert equal(found, segment(int(key, 16), tokens=5000))
    assert {file.suffix for file in disk._own.iterdir()} == {ENDING, ""}


def test_the_oldest_goes_when_there_is_no_room_and_that_is_told(opened: Callable[..., SegmentDisk]) -> None:
    one = save(opened).stat().st_size
    disk = opened(limit=2 * one + one // 2)
    disk.save(SECOND, segment(2))
    disk.save(KEY, segment())  # it is there already, and becomes the youngest by being asked for
    news = written(disk, **{THIRD: segment(3)})
    assert sorted(news.saved) == sorted([KEY, SECOND, THIRD])
    assert news.failed in ([KEY], [SECOND])
    assert disk.nbytes == 2 * one
    assert written(opened(limit=one - 1), **{SECOND: segment(2)}).failed == [SECOND]


def test_files_of_another_model_make_room_too_and_nothing_is_left_behind(opened: Callable[..., SegmentDisk]) -> None:
    other = save(opened)
    (other.parent / "list").write_text("of the leader's")
    disk = opened(OTHERS, limit=int(1.5 * other.stat().st_size))
    assert disk.held_keys() == []
    assert written(disk, **{KEY: segment()}).saved == [KEY]
    assert not other.exists()
    opened(OTHERS)
    assert [file.name for file in other.parent.iterdir()] == [disk_module.LOCK]


def test_what_is_erased_is_gone_also_when_it_was_still_to_be_written(opened: Callable[..., SegmentDisk]) -> None:
    save(opened)
    disk = opened()
    disk.save(SECOND, segment(2))
    disk.erase(SECOND)
    disk.save(THIRD, segment(3))
    disk.erase("")
    disk.close()
    news = disk.news()
    assert sorted(news.failed) == [KEY, SECOND, THIRD]
    assert disk.held_keys() == []
    assert disk.nbytes == 0


def test_a_disk_that_takes_no_more_is_told_once_and_reported_each_time(
    opened: Callable[..., SegmentDisk], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, piece: memoryview) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_module, "_write_out", full)
    disk = opened()
    assert written(disk, **{KEY: segment(), SECOND: segment()}).failed == [KEY, SECOND]
    assert caplog.text.count("No space left") == 1
    assert [file.name for file in disk._own.iterdir()] == ["lock"]


def test_more_than_memory_can_hold_is_not_queued(
    opened: Callable[..., SegmentDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "WAITING_BYTES", 10)
    assert written(opened(), **{KEY: segment()}).failed == [KEY]


@pytest.mark.parametrize("key", ["", "../../../../etc/passwd", "A" * 32, "1" * 15, "1" * 129, f"{KEY}/"])
def test_a_key_that_is_none_is_refused(opened: Callable[..., SegmentDisk], key: str) -> None:
    with pytest.raises(ValueError, match="cannot name a segment"):
        opened().save(key, segment())
    with pytest.raises(ValueError, match="cannot name a segment"):
        opened().restore(key)


def test_two_ranks_do_not_share_their_files(
    opened: Callable[..., SegmentDisk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "LOCK_SECONDS", 0.01)
    opened()
    with pytest.raises(OSError, match="another rank uses it"):
        SegmentDisk(tmp_path / "segments", OURS, 1 << 30)


def with_disks(model: Chain, folder: Path) -> Chain:
    for number, runner in enumerate(model.runners):
        runner.disk = SegmentDisk(folder / f"rank{number}", OURS, 1 << 30)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_begins_with_what_was_on_disk_answers_as_the_one_that_computed_it(
    kind: str, tmp_path: Path
) -> None:
    before = with_disks(chain(KINDS[kind], STAGES["two stages"]), tmp_path)
    before.feed(1, TOKENS[:20], begins=True)
    before.operate(Store(1, 5, 0, 20, state=True), Save(5, KEY), Evict(5))
    answer = before.run([], [Feed(1, TOKENS[20:25])])
    for runner in before.runners:
        runner.disk.close()
        assert runner.disk.news().saved == [KEY]
    after = with_disks(chain(KINDS[kind], STAGES["two stages"]), tmp_path)
    after.operate(Restore(8, KEY), Restore(9, SECOND))
    for runner in after.runners:
        news = runner.disk.news()
        assert (news.restored, news.failed) == ([KEY], [SECOND])
    again = after.run([Fork(2, (Part(8, 20),)), Evict(8), Evict(9)], [Feed(2, TOKENS[20:25])])
    assert mx.array_equal(again, answer).item()
    after.operate(Drop(2))
    for runner in after.runners:
        runner.disk.close()


def test_a_rank_without_a_disk_says_that_it_failed() -> None:
    model = chain("llama")
    model.feed(1, TOKENS[:5], begins=True)
    model.operate(Store(1, 5, 0, 5), Save(5, KEY), Restore(6, SECOND))
    disk = model.runners[0].disk
    assert isinstance(disk, NoDisk)
    assert disk.news().failed == [KEY, SECOND]


def test_the_header_names_every_type_that_caches_have() -> None:
    one = Segment(0, 1, {0: [mx.zeros((1, 1, 1, 2), dtype) for dtype in segment_file._NAMES]})
    content = memoryview(b"".join(segment_file.image(one, OURS, KEY).pieces()))
    assert equal(segment_file.read(content, OURS, KEY), one)
