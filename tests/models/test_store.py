from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chorus.models import ModelError, Progress
from chorus.models.imports import import_gguf
from chorus.models.store import Origin, Store
from tests.models.gguf_files import TinyModel, write_tiny_gguf

ORIGIN = Origin("somewhere", "0" * 64, 1, 1)

BUSY_PROCESS = """
import sys
from pathlib import Path
from chorus.models.store import Store

def build(folder):
    (folder / "half").write_text("half")
    print("building", flush=True)
    sys.stdin.readline()
    raise SystemExit(3)

Store(Path(sys.argv[1])).add("model", build)
"""

IMPORTING_PROCESS = """
import sys
from pathlib import Path
from chorus.models.imports import import_gguf

sys.stdin.readline()
print(import_gguf(Path(sys.argv[1]), "shared").path)
"""


def build_fine(folder: Path) -> Origin:
    (folder / "config.json").write_text("{}")
    return ORIGIN


def start(code: str, argument: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(argument)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def somebody_building(root: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(BUSY_PROCESS, root)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=120)


def leftovers(store: Store) -> list[Path]:
    return list((store.root / ".partial").glob("*"))


def test_an_entry_appears_whole(store: Store) -> None:
    assert store.entries() == []
    entry = store.add("model", build_fine)
    assert store.get("model") == entry
    assert store.entries() == [entry]
    assert entry.nbytes > 2
    assert leftovers(store) == []


def test_a_failed_build_leaves_nothing(store: Store) -> None:
    def fails(folder: Path) -> Origin:
        (folder / "config.json").write_text("{}")
        raise ModelError("no good")

    with pytest.raises(ModelError, match="no good"):
        store.add("model", fails)
    assert store.entries() == []
    assert leftovers(store) == []


def test_an_interrupted_build_leaves_nothing(store: Store) -> None:
    def interrupted(folder: Path) -> Origin:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add("model", interrupted)
    assert leftovers(store) == []


def test_a_full_disk_is_one_clear_line(store: Store) -> None:
    def no_room(folder: Path) -> Origin:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"Cannot store model in .*No space left"):
        store.add("model", no_room)
    assert leftovers(store) == []


def test_what_a_killed_import_left_is_cleaned_by_the_next(store: Store) -> None:
    with somebody_building(store.root) as process:
        process.kill()
        process.wait(120)
    assert len(leftovers(store)) == 1
    store.add("other", build_fine)
    assert leftovers(store) == []
    assert store.add("model", build_fine).path.is_dir()


def test_the_work_of_a_running_import_is_not_touched(store: Store) -> None:
    with somebody_building(store.root):
        store.add("other", build_fine)
        assert [path.name.partition("@")[0] for path in leftovers(store)] == ["model"]


def test_waiting_for_another_import_has_an_end(store: Store) -> None:
    seen: list[Progress] = []
    with somebody_building(store.root), pytest.raises(ModelError, match="Another process has been busy with model"):
        store.add("model", build_fine, seen.append, wait_s=0.2)
    assert seen[0].label == "waiting for another process to store model"


def test_processes_that_import_at_once_share_one_result(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, TinyModel())
    processes = [start(IMPORTING_PROCESS, file) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert set(answers) == {str(store.root / "shared")}
    assert [entry.name for entry in store.entries()] == ["shared"]
    assert leftovers(store) == []


def test_a_removed_entry_is_gone(store: Store) -> None:
    store.add("model", build_fine)
    assert store.remove("model") > 2
    assert store.entries() == []
    assert leftovers(store) == []
    with pytest.raises(ModelError, match="not in the store"):
        store.remove("model")


@pytest.mark.parametrize("name", ["", "..", ".locks", "../x", "a/b", "/etc", "a\0b", "x" * 97, "a@b", "-rf"])
def test_names_cannot_lead_outside_the_store(store: Store, name: str) -> None:
    for action in (store.remove, lambda bad: store.add(bad, build_fine)):
        with pytest.raises(ModelError, match="cannot name a model"):
            action(name)


def test_a_link_in_the_store_is_not_followed(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "chorus.json").write_text("{}")
    store.root.mkdir(parents=True)
    (store.root / "model").symlink_to(outside)
    assert store.get("model") is None
    with pytest.raises(ModelError, match="not in the store"):
        store.remove("model")
    with pytest.raises(ModelError, match="in the way"):
        store.add("model", build_fine)
    assert (outside / "chorus.json").is_file()


def test_a_damaged_entry_can_be_removed(store: Store) -> None:
    entry = store.add("model", build_fine)
    (entry.path / "chorus.json").write_text('{"what": 1}')
    with pytest.raises(ModelError, match="chorus models rm model"):
        store.entries()
    store.remove("model")
    assert store.entries() == []


def test_the_same_file_is_imported_once_whatever_its_place(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, TinyModel(layers=1))
    first = import_gguf(file)
    assert first.name == "tiny"
    moved = file.rename(tmp_path / "moved.gguf")
    assert import_gguf(moved) == first
    assert import_gguf(moved, "named").name == "named"


def test_another_file_of_the_same_name_is_another_model(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, TinyModel(layers=1))
    first = import_gguf(file)
    write_tiny_gguf(file, TinyModel(layers=1, seed=1))
    second = import_gguf(file)
    assert second.name == f"tiny-{second.origin.sha256[:8]}"
    assert {entry.name for entry in store.entries()} == {first.name, second.name}


def test_a_name_that_is_taken_says_by_what(tmp_path: Path) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    write_tiny_gguf(one, TinyModel(layers=1))
    write_tiny_gguf(two, TinyModel(layers=1, seed=1))
    import_gguf(one, "mine")
    with pytest.raises(ModelError, match=r"mine is another model already, made from .*one.gguf"):
        import_gguf(two, "mine")
    with pytest.raises(ModelError, match="name of the catalog"):
        import_gguf(two, "smollm2-135m")


def test_a_broken_file_leaves_no_entry(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_tiny_gguf(file, TinyModel(layers=1))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        import_gguf(file)
    assert store.entries() == []
    assert leftovers(store) == []
