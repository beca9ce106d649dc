from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from chorus.platform.storage.paths import cache_dir
from tests.support.server import ChorusServer
from tests.support.state import keep_apart
from tests.support.tiny_model import write_tiny_model

PROGRAM = """
from chorus.platform.storage.paths import private_folder, state_dir
from tests.support.state import keep_apart
keep_apart()
print(private_folder(state_dir()))
"""


def test_a_server_of_a_test_leaves_nothing_where_its_user_keeps_state(tmp_path: Path) -> None:
    home, own = tmp_path / "home", keep_apart() / "chorus"
    home.mkdir()
    # What is computed once for this machine stays where it is: only the state is asked about.
    environment = {"HOME": str(home), "CHORUS_CACHE": str(cache_dir())}
    before = set(own.glob("run/*"))
    with ChorusServer(write_tiny_model(tmp_path / "model"), [], tmp_path, environment) as server:
        server.text([1, 2, 3], max_tokens=2)
        assert set(own.glob("run/*")) - before, "it runs where tests do"
    assert list(own.glob("ledger-*.json")), "and books its memory there"
    assert not (home / ".local").exists(), list((home / ".local").rglob("*"))


def test_each_process_has_a_folder_of_its_own_while_it_lives(tmp_path: Path) -> None:
    """Also where the user has chosen another than the usual one."""
    environment = {**os.environ, "HOME": str(tmp_path), "CHORUS_STATE": str(tmp_path / "chosen")}
    run = [sys.executable, "-c", PROGRAM]
    told = [subprocess.check_output(run, env=environment, text=True, timeout=60) for _ in range(2)]
    used = {Path(line.strip()) for line in told}
    assert len(used) == 2
    for folder in used:
        assert not folder.is_relative_to(tmp_path)
        assert not folder.is_relative_to(keep_apart())
        assert not folder.parent.exists(), "nothing is left of it"
    assert not list(tmp_path.iterdir())
