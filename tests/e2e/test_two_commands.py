"""What a stranger does first: clone, `make serve`, ask. Needs a package registry and some minutes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import openai
import psutil
import pytest

from chorus.platform.memory.ledger import own_file
from chorus.telemetry.journal import folder_in, newer_file
from tests.support import failure_logs

ROOT = Path(__file__).parents[2]
START_SECONDS = 1500


@pytest.mark.system
@pytest.mark.timeout(START_SECONDS + 300)
def test_a_fresh_clone_with_an_empty_home_serves_the_real_model(tmp_path: Path) -> None:
    if not shutil.which("make") or not shutil.which("git"):
        pytest.skip("needs make and git")
    clone, home = tmp_path / "chorus", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=120)
    kept = ("PATH", "LANG", "CONSTRAINTS", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "PYENV_VERSION", "PYENV_ROOT")
    environment = {key: os.environ[key] for key in kept if key in os.environ}
    environment |= {"HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9", "COLUMNS": "200"}
    log_file = tmp_path / "serve.log"
    with log_file.open("wb") as log:
        server = subprocess.Popen(
            ["make", "serve", "PORT=0"],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    failure_logs.keep("make serve", log_file, server)
    try:
        url = _wait_until_ready(server, log_file)
        client = openai.OpenAI(base_url=url, api_key="none", timeout=300)
        question = [{"role": "user", "content": "Please tell me the capital of France."}]
        ask = {"model": "smollm2-135m", "messages": question, "temperature": 0, "max_tokens": 24}
        answer = client.chat.completions.create(**ask)  # type: ignore[call-overload]
        assert "Paris" in answer.choices[0].message.content
        stream = client.chat.completions.create(**ask, stream=True)  # type: ignore[call-overload]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == answer.choices[0].message.content
    finally:
        children = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
        _, left = psutil.wait_procs(children, timeout=30)
    assert not left
    # pip asks a Rust compiler for its version, which makes a folder of its own where rustup is installed.
    assert {path.name for path in home.iterdir()} <= {".cache", ".local", ".rustup"}
    state = home / ".local" / "state" / "chorus"
    ledger = own_file()
    booked = {state / name for name in (ledger.name, ledger.with_suffix(".lock").name)}
    events = newer_file(folder_in(state))
    assert {path for path in home.joinpath(".local").rglob("*") if path.is_file()} == {*booked, events}
    assert json.loads((state / ledger.name).read_text())["bookings"] == []
    assert set(state.iterdir()) == {state / "run", events.parent, *booked}
    assert list((state / "run").iterdir()) == []


def _wait_until_ready(server: subprocess.Popen[bytes], log_file: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while not (found := re.search(r"ready .* at +(http://\S+/v1)", log_file.read_text(errors="replace"))):
        assert server.poll() is None, log_file.read_text(errors="replace")[-5000:]
        assert time.monotonic() < deadline, log_file.read_text(errors="replace")[-5000:]
        time.sleep(0.5)
    return found[1]
