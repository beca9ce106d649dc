"""`chorus ps`, `load` and `unload`, and what other commands say where a server has several models."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chorus.cli.load import load_progress
from chorus.cli.model_table import cells, model_rows
from chorus.cluster.servers import Server
from chorus.platform.progress import Progress
from tests.cli.conftest import Scripted
from tests.cli.typed import one_line, typed

DEADLINE = 120.0
NOW = 1_000_000.0
CODER = {
    "id": "org/coder",
    "aliases": ["best"],
    "state": "ready",
    "progress": 1.0,
    "detail": "",
    "booked_bytes": 3 << 30,
    "ranks": 2,
    "nodes": ["studio", "mini"],
    "running": 2,
    "waiting": 3,
    "until": 0.0,
    "context_length": 16384,
}
SMALL = {
    **CODER,
    "id": "small",
    "aliases": [],
    "state": "unloaded",
    "running": 0,
    "waiting": 0,
    "ranks": 0,
    "nodes": [],
}
STATUS = {"model": "org/coder", "state": "ready", "ranks": [], "models": [CODER, SMALL]}


def broken(detail: str) -> dict[str, Any]:
    return {**STATUS, "models": [CODER, {**SMALL, "state": "failed", "detail": detail}]}


def refusal(status: int, message: str) -> tuple[int, Any]:
    return status, {"error": {"message": message}}


@pytest.fixture
def server(recorded: Callable[..., Server], scripted: Callable[..., Scripted]) -> Scripted:
    """One of this user on this machine, with two models of which one is loaded."""
    made = scripted({"/cluster/status": (200, STATUS)}, needed_key="its-own")
    recorded(made.url, key="its-own")
    return made


def test_ps_shows_each_model_with_what_it_takes(server: Scripted) -> None:
    shown = typed("ps").stdout
    coder, small = (next(line for line in shown.splitlines() if name in line) for name in ("org/coder", "small"))
    for text in ("ready", "3.0 GiB", "2", "studio, mini", "16,384", "2 + 3 waiting", "stays"):
        assert text in coder
    assert "unloaded" in small
    assert json.loads(typed("ps --json").stdout) == [CODER, SMALL]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"until": NOW + 60}, "in 60 s"),
        ({"until": NOW + 1800}, "in 30 min"),
        ({"until": NOW + 7200}, "in 2.0 h"),
        ({"until": NOW - 5}, "in 0 s"),
        ({"state": "unloaded", "until": 0}, "-"),
    ],
    ids=str,
)
def test_until_when_a_model_stays_is_told_as_people_say_it(changes: dict[str, Any], shown: str) -> None:
    assert cells({**CODER, **changes}, NOW)[-1] == shown


def test_a_load_shows_how_far_it_is() -> None:
    row = {**SMALL, "state": "loading", "progress": 0.25, "loaded_bytes": 1 << 30, "total_bytes": 4 << 30}
    assert cells(row, NOW)[1] == "loading 25%"
    assert load_progress("small", row) == Progress("small: loading", 1 << 30, 4 << 30)
    warm = {**row, "loaded_bytes": 4 << 30, "detail": "warming up"}
    assert load_progress("small", warm) == Progress("small: warming up", 250, 1000, in_bytes=False)
    waits = {**SMALL, "state": "waiting", "detail": "no room"}
    assert load_progress("small", waits) == Progress("small: no room", 0, None, in_bytes=False)


def test_why_a_model_failed_stands_below_the_table(server: Scripted) -> None:
    server.answers["/cluster/status"] = (200, broken("it has no tokenizer"))
    assert "small: it has no tokenizer" in typed("ps").stdout
    assert "small: it has no tokenizer" in typed("status").stdout


def test_a_server_with_one_model_has_a_table_of_one(server: Scripted) -> None:
    ranks = [{"rank": 0, "node": "studio"}, {"rank": 1, "node": "mini"}]
    alone = {"model": "tiny", "state": "ready", "running": 1, "queued": 2, "ranks": ranks}
    server.answers["/cluster/status"] = (200, alone)
    (row,) = model_rows(alone)
    assert (row["id"], row["ranks"], row["nodes"], row["waiting"]) == ("tiny", 2, ["studio", "mini"], 2)
    assert "1 + 2 waiting" in typed("ps").stdout


def test_status_shows_all_models_where_there_are_several(server: Scripted) -> None:
    shown = typed("status").stdout
    assert "2 + 3 waiting" in shown
    assert "unloaded" in shown


def test_load_tells_how_far_it_is_until_the_model_is_ready(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the two looks take here, nothing is told again because it is time.
    monkeypatch.setattr("chorus.platform.terminal.LINE_SECONDS", 10 * DEADLINE)
    looked, asked = threading.Semaphore(0), []
    row = {**SMALL, "state": "loading", "progress": 0.5, "loaded_bytes": 1 << 30, "total_bytes": 2 << 30}

    def loading(_: Any) -> tuple[int, Any]:
        looked.release()
        return 200, {**STATUS, "models": [CODER, row]}

    def load(body: Any) -> tuple[int, Any]:
        asked.append(body)
        # Two looks: what has not changed in between is told once.
        assert looked.acquire(timeout=DEADLINE)
        assert looked.acquire(timeout=DEADLINE)
        return 200, {"id": "small", "state": "ready"}

    server.answers |= {"/cluster/status": loading, "/models/load": load}
    done = typed("load small --force")
    assert done.exit_code == 0, done.output
    assert asked == [{"model": "small", "force": True, "wait": True}]
    assert done.stdout.startswith("small is ready, after ")
    assert done.stderr.splitlines() == ["small: loading: 50%, 1.0 GiB of 2.0 GiB"]


def test_load_is_asked_again_while_the_server_is_less_patient_than_whoever_typed_it(server: Scripted) -> None:
    answers: list[tuple[int, Any]] = [(202, {"id": "small", "state": "loading"}), (200, {"id": "small"})]
    row = {**SMALL, "state": "loading", "progress": 0.5}
    server.answers |= {
        "/cluster/status": (200, {**STATUS, "models": [CODER, row]}),
        "/models/load": lambda _: answers.pop(0),
    }
    assert json.loads(typed("load small --json").stdout) == {"id": "small"}
    assert answers == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "The model 'smal' is not served here; did you mean 'small'?"),
        (409, "small takes 9.0 GiB, and 4.0 GiB of 12.0 GiB are free: unload another, or use --force"),
        (403, "This key may not load models."),
        (503, "small could not be loaded: it has no tokenizer"),
    ],
)
def test_a_load_that_fails_says_why_in_one_line(server: Scripted, status: int, message: str) -> None:
    server.answers |= {
        "/models/load": refusal(status, message),
        "/models/unload": refusal(status, message),
        "/cluster/status": (200, broken("it has no tokenizer")),
    }
    for command in ("load", "unload"):
        assert one_line(typed(f"{command} small")) == f"{server.url} answered {status}: {message}"


def test_a_load_that_takes_longer_than_is_allowed_says_where_to_look(server: Scripted) -> None:
    late = threading.Event()

    def never(_: Any) -> tuple[int, Any]:
        late.wait(DEADLINE)
        return 200, {}

    server.answers["/models/load"] = never
    told = typed("load small --timeout 1")
    late.set()
    assert told.exit_code == 1
    assert "small is not ready after 1 s: it goes on, and `chorus ps` shows how far it is" in told.stderr


def test_unload_says_what_the_server_says(server: Scripted) -> None:
    asked = []

    def unload(body: Any) -> tuple[int, Any]:
        asked.append(body)
        return 202, {"id": "org/coder", "told": "goes when its 2 requests are over"}

    server.answers["/models/unload"] = unload
    assert typed("unload best").stdout == "org/coder: goes when its 2 requests are over\n"
    assert asked == [{"model": "best", "wait": False}]
    assert json.loads(typed("unload best --json").stdout)["id"] == "org/coder"


def test_the_cache_of_one_model_is_cleared_by_its_name(server: Scripted) -> None:
    asked = []

    def clear(body: Any) -> tuple[int, Any]:
        asked.append(body)
        return 200, {"entries": 3, "bytes": 1 << 20}

    server.answers["/cache/clear"] = clear
    assert typed("cache clear --model best").stdout.startswith("forgot 3 entries")
    assert typed("cache clear").exit_code == 0
    assert asked == [{"model": "best"}, None]


def test_the_cache_of_one_model_is_shown_by_its_name(server: Scripted) -> None:
    kept = {"entries": 7}
    server.answers["/health?model=org%2Fcoder"] = 200, {"status": "ready", "engine": {"cache": kept}}
    assert json.loads(typed("cache --model org/coder --json").stdout) == kept


@pytest.mark.parametrize("command", ["ps", "load small", "unload small"])
def test_commands_for_models_find_the_server_as_all_others_do(folder: Path, command: str) -> None:
    told = one_line(typed(f"{command} --port 9"))
    assert "nothing answers at http://127.0.0.1:9 (--port): start `chorus serve`" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("serve a b --split 2,2", "command line: engine.split: can only mean one model, and 2 are served: put it into"),
        ("serve a b --weights 2,1", "command line: engine.weights: can only mean one model"),
        ("serve a b --alias x", "command line: api.aliases: can only mean one model"),
        ("serve a b --step-log x", "command line: engine.step_log: can only mean one model"),
        (
            "serve a b --cluster --split 2,2",
            "--split: can only mean one model, and 2 are served: put it into the model",
        ),
        ("serve a b a", "command line: models[2]: a is already command line: models[0]"),
        ("serve a b --model c", "the model is a, b and --model c: give one of them"),
        ("serve a b --on-full swop", "command line: load.on_full: should be 'swap', 'wait' or 'refuse', got 'swop'"),
        ("serve a b --idle-unload soon", "command line: load.idle_unload: must be a number of seconds, or one with"),
        ("serve a b --memory much", "command line: load.memory: must be a number of bytes, or one with a unit"),
    ],
)
def test_serve_refuses_before_anything_is_started(folder: Path, line: str, told: str) -> None:
    assert one_line(typed(line)).startswith(told)


def test_config_shows_each_model_with_the_place_that_names_it(folder: Path) -> None:
    (folder / "chorus.yaml").write_text("models: [{source: a, pin: true, engine: {context: 9}}, b]\n")
    shown = typed("config show").stdout
    line = next(line for line in shown.splitlines() if line.startswith("models[0]"))
    assert '{"source": "a", "pin": true, "engine": {"context": 9}}' in line
    assert f"{folder / 'chorus.yaml'}: models[0]" in line
    models = json.loads(typed("config show --json").stdout)["models"]
    assert models["value"][1] == {"source": "b"}
    assert models["origins"] == [f"{folder / 'chorus.yaml'}: models[{number}]" for number in (0, 1)]
    assert typed("config check chorus.yaml").stdout.strip() == "chorus.yaml: ok (model a, model b)"


RUNNING = {
    "id": "5f0c2a9e4d3b4f0f8f9f6f1b2c3d4e5f",
    "model": "org/coder",
    "endpoint": "/v1/chat/completions",
    "key": "laptop",
    "state": "decode",
    "started_at": NOW,
    "age_seconds": 75.2,
    "prompt_tokens": 1812,
    "cached_tokens": None,
    "generated_tokens": 131,
    "tokens_per_second": 41.53,
    "ttft_seconds": 0.3,
    "resumed": 1,
}
ENDED = {**RUNNING, "id": "older", "state": "length", "age_seconds": 2.0, "resumed": 0, "cached_tokens": 0}


def test_requests_shows_what_runs_and_only_if_asked_what_ran(
    recorded: Callable[..., Server], scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = scripted({"/requests": (200, {"running": [RUNNING], "recent": [ENDED]})}, needed_key="its-own")
    recorded(server.url, key="its-own")
    shown = typed("requests").stdout
    (row,) = [line for line in shown.splitlines() if str(RUNNING["id"]) in line]
    for text in ("org/coder", "laptop", "decode, resumed", "1 min 15 s", "1,812", " - ", "131", "41.5"):
        assert text in row
    assert "older" not in shown
    assert "older" in typed("requests --recent").stdout
    assert json.loads(typed("requests --json").stdout) == {"running": [RUNNING], "recent": []}
    assert json.loads(typed("requests --json --recent").stdout)["recent"] == [ENDED]
    monkeypatch.setenv("COLUMNS", "80")
    assert str(RUNNING["id"]) in typed("requests").stdout  # whoever is to type it needs all of it


def test_requests_says_so_where_nothing_runs(
    recorded: Callable[..., Server], scripted: Callable[..., Scripted]
) -> None:
    recorded(scripted({"/requests": (200, {"running": [], "recent": []})}).url)
    assert typed("requests").stdout == "no request runs\n"


def test_cancel_ends_a_request_and_says_in_one_line_where_there_is_none(
    recorded: Callable[..., Server], scripted: Callable[..., Scripted]
) -> None:
    answers: dict[str, Any] = {"/requests/cancel": (200, {"id": "abc", "cancelled": 1})}
    server = scripted(answers)
    recorded(server.url)
    assert typed("cancel abc").stdout == "abc is cancelled\n"
    server.answers["/requests/cancel"] = refusal(404, "No request 'abc' runs here.")
    assert "No request 'abc' runs here." in one_line(typed("cancel abc"))


def test_the_list_of_models_says_which_are_loaded_where(
    recorded: Callable[..., Server], scripted: Callable[..., Scripted]
) -> None:
    models = [{"id": "smollm2-135m", "loaded": True}, {"id": "org/other", "loaded": False}]
    server = scripted({"/v1/models": (200, {"object": "list", "data": models})}, needed_key="its-own")
    recorded(server.url, key="its-own")
    recorded("http://127.0.0.1:9", key="of-one-that-is-gone")
    listed = {entry["name"]: entry["loaded"] for entry in json.loads(typed("models list --json").stdout)}
    assert listed["smollm2-135m"] == [server.url]
    assert server.url in typed("models list").stdout
