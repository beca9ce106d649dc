from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub.constants as hub
import pytest

import chorus.config.sources as sources
from chorus.cli import app
from chorus.config.settings import Settings
from chorus.config.sources import LoadedSettings
from tests.readers.hub_folder import write_hub
from tests.readers.tables import HERE

TOKEN = "chorus2-3coqfzf2lhibjyamchfs7qklpul6p3kvkphdp5n233ztg3luhmqdc4sikm-yslt"


@pytest.fixture(scope="session")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hub(tmp_path_factory.mktemp("hf"))


@dataclass(frozen=True)
class Typed:
    """What became of a command that was typed."""

    said: str
    """All it printed, as one line."""
    started: bool
    """Whether it came to where it starts processes, or talks to others."""
    settings: Settings | None
    """Those it read last; None where it read none."""


class _Started(BaseException):
    pass


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a project's files."""

    def copy(project: str) -> Path:
        folder = Path(shutil.copytree(HERE / project, tmp_path / project, dirs_exist_ok=True))
        (folder / "cluster.token").write_text(TOKEN)
        (folder / "cluster.token").chmod(0o600)
        return folder

    return copy


@pytest.fixture
def type_line(
    hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, Path], Typed]:
    """Type a line in a folder, in the test's own process, up to where it would start another."""
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(hub_cache / "hub"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "CHORUS_STATE"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.delenv("CHORUS_KEYS_FILE", raising=False)
    loaded: list[LoadedSettings] = []
    load = sources.load
    # What a command tells the log must not reach the captured output of another test.
    for logger in (logging.getLogger(), logging.getLogger("chorus")):
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logger.level)

    def remember(*arguments: Any, **options: Any) -> LoadedSettings:
        loaded.append(load(*arguments, **options))
        return loaded[-1]

    def start(work: Coroutine[Any, Any, Any], **_: Any) -> None:
        work.close()
        raise _Started

    monkeypatch.setattr(sources, "load", remember)
    monkeypatch.setattr(asyncio, "run", start)

    def run(line: str, folder: Path) -> Typed:
        words = shlex.split(line)
        loaded.clear()
        with monkeypatch.context() as patched:
            patched.chdir(folder)
            if words[:2] == ["chorus", "join"]:
                patched.setenv("CHORUS_TOKEN", TOKEN)  # typed at its prompt
            while "=" in words[0]:
                patched.setenv(*words.pop(0).split("=", 1))
            assert words.pop(0) == "chorus"
            started, code = False, 0
            try:
                app(words)
            except SystemExit as ended:
                code = int(ended.code or 0)
            except _Started:
                started = True
        told = capsys.readouterr()
        said = " ".join((told.out + told.err).split())
        assert "Traceback" not in said
        assert started or code in (0, 1), said
        return Typed(said, started, loaded[-1].settings if loaded else None)

    return run
