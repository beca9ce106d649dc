"""`chorus top` and `chorus status --watch` as somebody sees them who leaves them open, and as a log gets them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chorus.cli.live import Seen, look
from tests.cli.conftest import Scripted
from tests.cli.typed import one_line, typed
from tests.support.ports import listening_port
from tests.support.screen import DOWN, Terminal

Open = Callable[..., Terminal]
MODEL = "acme/tiny-model"


def request_row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"request-{number:02}",
        "model": MODEL,
        "endpoint": "/v1/chat/completions",
        "key": "\x1b[2Jkey",
        "state": "running",
        "age_seconds": 100.0 - number,
        "prompt_tokens": 10 * number,
        "cached_tokens": 0,
        "generated_tokens": number,
        "tokens_per_second": 12.5,
        "ttft_seconds": 0.1,
        **more,
    }


class Cluster:
    """A server of two ranks that can be ended and started again; what it answers is changed at will."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.running = [request_row(number) for number in range(30)]
        self.step = 1000
        self.states = ["ready", "ready"]
        self.said = 0
        """Tokens that each request says between two looks."""
        self.server: Scripted | None = None
        # Nobody else gets it while the server is away.
        self.port = listening_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.server = Scripted(
            {
                "/cluster/status": lambda _: (200, self._status()),
                "/requests": lambda _: (200, self._requests()),
                "/requests/cancel": self._cancel,
                "/health": (200, {"status": "ok", "engine": {"cache": {"hit_rate": 0.25}}}),
            },
            port=self.port,
        )
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self.server:
            self.server.shutdown()
            self.server.server_close()
        self.server = None

    def _status(self) -> dict[str, Any]:
        rank = {"node": "mini\x1b[2J", "device": "cpu", "weight_bytes": 10**8, "memory_bytes": 2 * 10**8}
        ranks = [
            {**rank, "rank": 0, "layers": "9-29", "step": self.step, "state": self.states[0]},
            {**rank, "rank": 1, "layers": "0-8", "step": 7, "state": self.states[1]},
        ]
        models = [{"id": MODEL, "state": "ready", "running": len(self.running), "waiting": 2, "progress": 1.0}]
        return {"model": MODEL, "state": "ready", "ranks": ranks, "models": models}

    def _requests(self) -> dict[str, Any]:
        for row in self.running:
            row["generated_tokens"] += self.said
        return {"running": self.running, "recent": []}

    def _cancel(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.cancelled.append(body["id"])
        self.running = [row for row in self.running if row["id"] != body["id"]]
        return 200, {"id": body["id"], "cancelled": 1}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.stop()


def restarted(terminal: Terminal, cluster: Cluster) -> None:
    """The server goes away and comes back; whoever watches is told, and sees the new one."""
    cluster.stop()
    terminal.wait_for(lambda shown: re.search(r"waiting for [1-9]\d* s: nothing answers", shown) is not None)
    cluster.step += 4321
    cluster.start()
    terminal.wait_for(lambda shown: "nothing answers" not in shown and str(cluster.step) in shown)


def test_top_draws_a_screen_and_goes_on_through_everything(terminal: Open, cluster: Cluster) -> None:
    top = terminal("top", "--url", cluster.url, "--every", "0.2")
    shown = top.wait_for(lambda shown: "request-00" in shown and "q quit" in shown)
    assert f"{MODEL}  ready  30 running, 2 waiting  {cluster.url}" in shown
    assert "cache hits 25%" in shown
    assert "9-29" in shown
    assert "mini[2J" in shown, "what others send is text"
    assert len(shown.splitlines()) == 24
    assert shown.splitlines()[-1].startswith("q quit")

    # Between any two looks from now on: a speed that one picture alone shows may be drawn over before it is seen.
    cluster.said = 50
    top.wait_for(lambda shown: re.search(r"^[1-9]\d+\.\d tok/s", shown, re.MULTILINE) is not None)

    top.type("ss")
    top.wait_for("sort: tokens")
    top.wait_for(lambda shown: shown.index("request-29") < shown.index("request-26"))
    top.type(DOWN + "j" + "k" + "j")
    top.type("c")
    top.wait_for("cancel request-28? y: yes")
    top.type("n")
    top.wait_for("q quit")
    top.type("cy")
    top.wait_for("request-28 is cancelled")
    assert cluster.cancelled == ["request-28"]

    top.resize(120, 40)
    shown = top.wait_for(lambda shown: len(shown.splitlines()) == 40 and shown.splitlines()[-1].startswith("q quit"))
    assert "request-00" in shown, "there is room for all of them now"
    top.resize(50, 10)
    shown = top.wait_for(lambda shown: shown.splitlines()[-1].startswith("q quit"))
    assert len(shown.splitlines()) == 10
    top.resize(80, 24)
    restarted(top, cluster)
    top.type("q")
    assert top.wait_for_end() == 0


@pytest.mark.usefixtures("folder")
def test_a_rank_that_is_lost_is_told_as_lost_wherever_ranks_are_shown(
    terminal: Open, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status = typed(f"status --url {cluster.url}").stdout
    assert "state" not in status, "where all are ready it takes no room"
    cluster.states = ["waiting", "lost"]
    status = typed(f"status --url {cluster.url}").stdout
    assert re.search(r"│ 1 +│ mini\S+ +│ lost ", status)
    assert re.search(r"│ 0 +│ mini\S+ +│ waiting ", status)
    assert max(len(line) for line in status.splitlines()) <= 80
    plain = typed(f"top --once --url {cluster.url}").stdout
    assert f"rank 1 of {MODEL} on mini[2J: lost, layers 0-8, 191 MiB, step 7\n" in plain
    watching = terminal("top", "--url", cluster.url, "--every", "0.2")
    watching.wait_for(lambda shown: re.search(r"^1 .* 7  lost ", shown, re.MULTILINE) is not None)
    cluster.states = ["ready", "ready"]
    watching.wait_for(lambda shown: re.search(r"^1 .* 7  ready ", shown, re.MULTILINE) is not None)
    watching.type("q")


def test_a_view_goes_on_whatever_goes_wrong_with_a_look() -> None:
    def ask() -> str:
        raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")

    seen = look(ask, Seen("before", when=3.0))
    assert (seen.found, seen.when) == ("before", 3.0)
    assert seen.problem == "the server cannot be asked: Using SOCKS proxy, but the 'socksio' package is not installed."


def test_status_is_drawn_anew_until_q(terminal: Open, cluster: Cluster) -> None:
    status = terminal("status", "--watch", "0.2", "--url", cluster.url)
    status.wait_for("1000")
    cluster.step = 1234
    shown = status.wait_for("1234")
    assert f"{MODEL}  ready  {cluster.url}" in shown
    assert "every 0.2 s, q leaves" in shown
    status.resize(60, 20)
    status.wait_for(lambda shown: "1234" in shown and max(len(line) for line in shown.splitlines()) <= 60)
    restarted(status, cluster)
    status.type("q")
    assert status.wait_for_end() == 0


@pytest.mark.parametrize("words", [("top", "--every", "0.2"), ("status", "--watch", "0.2")], ids=lambda words: words[0])
def test_without_a_terminal_there_are_plain_lines_also_while_the_server_is_away(
    cluster: Cluster, tmp_path: Path, words: tuple[str, ...]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "chorus.cli", *words, "--url", cluster.url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    lines = []

    def read_until(text: str) -> str:
        for line in process.stdout or ():
            assert "\x1b" not in line
            lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"never {text}: {lines}")

    read_until("ready")
    read_until("step 1000")
    cluster.states[1] = "lost"
    if words[0] == "status":
        read_until("rank 0 step 1000, rank 1 step 7 (lost)")
    cluster.stop()
    assert "nothing answers at" in read_until("nothing answers")
    cluster.step = 2000
    cluster.start()
    read_until("step 2000")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


@pytest.mark.usefixtures("folder")
def test_one_look_is_data_for_programs(cluster: Cluster) -> None:
    found = json.loads(typed(f"top --once --json --url {cluster.url}").stdout)
    assert [row["id"] for row in found["models"]] == [MODEL]
    assert [rank["layers"] for rank in found["ranks"]] == ["9-29", "0-8"]
    assert len(found["requests"]) == 30
    plain = typed(f"top --once --url {cluster.url}").stdout
    assert f"request request-29 of {MODEL}: running, 71.0 s, 290 prompt tokens, 29 tokens, 12.5 tok/s" in plain
    cluster.stop()
    assert "nothing answers" in one_line(typed(f"top --once --url {cluster.url}"))
    assert "chorus status --watch 5" in one_line(typed("status 5"))
