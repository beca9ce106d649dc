"""Which server a command means, typed as people type it, and the one line that they read where it does not answer."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chorus.cluster.servers import Server, running_servers
from chorus.platform.storage import paths
from tests.cli.conftest import Scripted
from tests.cli.typed import one_line, typed

STATUS: dict[str, tuple[int, Any]] = {
    "/cluster/status": (200, {"model": "tiny", "state": "ready", "ranks": []}),
    "/health": (200, {"status": "ok", "engine": {"cache": None}}),
}
CLOSED = 9
"""A port that nothing listens on: the one of the discard service."""


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (".env", "CHORUS_API__PORT={}"),
        (".env", "API_PORT={}"),
        ("chorus.yaml", "api:\n  port: {}"),
        ("environment", "{}"),
    ],
    ids=["our name in .env", "the older name in .env", "chorus.yaml", "environment"],
)
@pytest.mark.parametrize("command", ["status", "cache", "test"])
def test_the_port_that_serve_reads_in_this_folder_is_the_one_that_is_asked(
    folder: Path,
    scripted: Callable[..., Scripted],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    text: str,
    command: str,
) -> None:
    server = scripted(STATUS)
    if place == "environment":
        monkeypatch.setenv("CHORUS_API__PORT", text.format(server.port))
    else:
        (folder / place).write_text(text.format(server.port))
    typed(command)
    assert server.keys, "it was not asked"


def test_the_only_server_that_runs_is_meant_whatever_its_port(
    recorded: Callable[..., Server], scripted: Callable[..., Scripted]
) -> None:
    server = scripted(STATUS)
    recorded(server.url)
    shown = json.loads(typed("status --json").stdout)
    assert (shown["url"], shown["state"]) == (server.url, "ready")


def test_of_several_servers_the_line_names_all_and_how_to_choose(
    recorded: Callable[..., Server], scripted: Callable[..., Scripted]
) -> None:
    one, two = scripted(STATUS), scripted(STATUS)
    recorded(one.url, model="llama"), recorded(two.url, model="qwen")
    told = one_line(typed("status"))
    assert f"llama at {one.url}" in told
    assert f"qwen at {two.url}" in told
    assert "--port" in told
    assert json.loads(typed(f"status --json --port {two.port}").stdout)["url"] == two.url
    assert "--port" in one_line(typed("replan"))


def test_the_configured_port_chooses_among_several_servers(
    folder: Path, recorded: Callable[..., Server], scripted: Callable[..., Scripted]
) -> None:
    one, two = scripted(STATUS), scripted(STATUS)
    recorded(one.url), recorded(two.url)
    (folder / "chorus.yaml").write_text(f"api:\n  port: {two.port}\n")
    assert json.loads(typed("status --json").stdout)["url"] == two.url


def test_a_server_of_another_state_folder_is_asked_only_when_its_port_is_given(
    folder: Path, recorded: Callable[..., Server], scripted: Callable[..., Scripted]
) -> None:
    mine, other = scripted(STATUS), scripted(STATUS)
    recorded(mine.url), recorded(other.url, state=folder / "elsewhere")
    assert json.loads(typed("status --json").stdout)["url"] == mine.url
    assert json.loads(typed(f"status --json --port {other.port}").stdout)["url"] == other.url


def test_what_up_started_on_this_machine_is_meant_where_nothing_else_runs(
    folder: Path, recorded: Callable[..., Server], scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chorus up`, then `chorus status` in the same terminal; each cluster has a state folder of its own."""
    server = scripted(STATUS)
    state = Path(tempfile.mkdtemp(prefix="home-", dir="/tmp"))
    monkeypatch.setenv("HOME", str(state))
    up = state / ".chorus" / "hosts-1" / "mini1" / "state"
    monkeypatch.setenv("CHORUS_STATE", str(up))
    monkeypatch.setattr("chorus.platform.process.lifeline.run_places", paths.run_places)
    recorded(server.url)
    monkeypatch.setenv("CHORUS_STATE", str(folder / "none"))
    assert f"tiny at {server.url}" in one_line(typed("status --port 9")), "it is named, and not taken"
    monkeypatch.delenv("CHORUS_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert json.loads(typed("status --json").stdout)["url"] == server.url
    shutil.rmtree(state)


def test_own_servers_are_asked_with_their_own_key_and_never_with_one_from_the_environment(
    recorded: Callable[..., Server], scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = scripted(STATUS, needed_key="its-own")
    kept = recorded(server.url, key="its-own")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-service")
    assert json.loads(typed("status --json").stdout)["state"] == "ready"
    assert "does not know this key" in one_line(typed("status --api-key wrong"))
    assert server.keys == ["its-own", "wrong"]
    file = Path(kept.folder) / "server.json"
    assert file.stat().st_mode & 0o077 == 0
    assert "its-own" not in repr(running_servers())


def test_a_server_elsewhere_is_asked_with_the_key_that_is_given(
    folder: Path, scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = scripted(STATUS, needed_key="theirs")
    asks = one_line(typed(f"status --url {server.url}"))
    assert "asks for a key: give --api-key or set OPENAI_API_KEY" in asks
    assert typed(f"status --url {server.url} --api-key theirs").exit_code == 0
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    for spelled in (server.url, f"{server.url}/", f"{server.url}/v1", f"127.0.0.1:{server.port}"):
        assert json.loads(typed(f"status --json --url {spelled}").stdout)["url"] == server.url
    assert "does not know this key" in one_line(typed(f"status --url {server.url} --api-key wrong"))


def test_a_proxy_is_not_asked_for_what_runs_here(
    folder: Path, scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{CLOSED}")
    assert typed(f"status --port {scripted(STATUS).port}").exit_code == 0


def test_a_proxy_that_cannot_be_used_is_told_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", f"socks9://127.0.0.1:{CLOSED}")
    assert f"http://elsewhere.invalid:{CLOSED} cannot be asked: " in one_line(
        typed(f"status --url http://elsewhere.invalid:{CLOSED}")
    )


@pytest.mark.parametrize("command", ["status", "cache", "cache clear", "test"])
def test_where_nothing_answers_the_line_says_where_and_what_to_do(
    recorded: Callable[..., Server], folder: Path, command: str
) -> None:
    told = one_line(typed(f"{command} --port {CLOSED}"))
    assert f"nothing answers at http://127.0.0.1:{CLOSED} (--port): start `chorus serve`" in told
    assert "--url" in told
    (folder / ".env").write_text(f"CHORUS_API__PORT={CLOSED}\n")
    assert f"http://127.0.0.1:{CLOSED} (api.port from .env: CHORUS_API__PORT)" in one_line(typed(command))
    recorded("http://127.0.0.1:8123", model="qwen")
    assert "there is qwen at http://127.0.0.1:8123: choose it with --port" in one_line(typed(command))


def test_a_folder_whose_devices_are_elsewhere_is_told_how_they_are_asked(folder: Path) -> None:
    devices = "devices: [{device_id: mini, hostname: mini.local}]"
    (folder / "chorus.yaml").write_text(f"api: {{port: {CLOSED}}}\n{devices}\n")
    assert "chorus.yaml names devices: -c " in one_line(typed("status"))


@pytest.mark.parametrize("command", ["status", "cache clear", "test"])
@pytest.mark.parametrize(
    "answer", [(200, "<html>hello</html>"), (404, "<html>no</html>"), (200, ["a list"]), (502, "")], ids=str
)
def test_what_is_no_chorus_server_is_said_to_be_none(
    folder: Path, scripted: Callable[..., Scripted], command: str, answer: tuple[int, Any]
) -> None:
    paths = ("/cluster/status", "/cache/clear", "/v1/chat/completions")
    server = scripted(dict.fromkeys(paths, answer))
    told = one_line(typed(f"{command} --url {server.url}"))
    assert told.startswith(f"what answers at {server.url} (--url) is no Chorus server")


def test_another_servers_answer_to_the_question_for_the_status_is_not_taken_for_one(
    folder: Path, scripted: Callable[..., Scripted]
) -> None:
    server = scripted({"/cluster/status": (200, {"detail": "of something else"})})
    assert "is no Chorus server" in one_line(typed(f"status --url {server.url}"))


def test_http_and_https_are_told_apart(folder: Path, scripted: Callable[..., Scripted]) -> None:
    server = scripted(STATUS)
    secure = server.url.replace("http:", "https:")
    told = one_line(typed(f"status --url {secure}"))
    assert told == f"{secure} (--url) does not speak HTTPS: ask {server.url} instead"
    with socket.create_server(("127.0.0.1", 0)) as closing:
        plain = f"http://127.0.0.1:{closing.getsockname()[1]}"

        def hang_up() -> None:
            closing.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        told = one_line(typed(f"status --url {plain}"))
    assert "does not speak HTTP: is it https?" in told


@pytest.mark.parametrize("url", ["ftp://here", "http://", "here:port", "http://[::1"])
def test_what_is_no_url_is_named(folder: Path, url: str) -> None:
    assert one_line(typed(f"status --url {url}")) == f"--url {url}: expected http://HOST:PORT or https://HOST:PORT"


@pytest.mark.parametrize("command", ["replan", "restart --front-end", "drain mini", "logs"])
def test_commands_for_ones_own_server_say_that_there_is_none(folder: Path, command: str) -> None:
    told = one_line(typed(command))
    assert "no `chorus serve` of yours runs on this machine: start it first" in told


def test_what_another_version_left_is_no_server_and_no_error(folder: Path, recorded: Callable[..., Server]) -> None:
    kept = recorded("http://127.0.0.1:8123")
    (Path(kept.folder) / "server.json").write_text('{"pid": 1}')
    assert running_servers() == []
