"""Hostile grammars over HTTP: each is answered, the streams beside it go on, and no process of ours ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.support.freeze import freeze
from tests.support.leaving import asked
from tests.support.server import ChorusServer
from tests.support.tiny_model import write_tiny_model

DEADLINE = 120.0
"""Far beyond what is allowed here, and far below what was needed before."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChorusServer]:
    folder = tmp_path_factory.mktemp("grammars")
    model = write_tiny_model(folder / "tiny", "llama", vocab_size=512, max_position_embeddings=4096)
    with ChorusServer(model, [], folder) as server:
        yield server


@pytest.fixture
def unharmed(server: ChorusServer) -> Iterator[None]:
    """Front end and engine are the same processes afterwards, and the stream that ran all the while goes on."""
    before = ours(server)
    with Stream(server) as stream:
        yield
        assert ours(server) == before
        stream.wait_for_more()


def ours(server: ChorusServer) -> dict[str, int]:
    names = ("chorus.api", "chorus.engine")
    return {name: server.process_named(name).pid for name in names}


class Stream:
    """A client that has been reading a long answer all the while, without a grammar."""

    def __init__(self, server: ChorusServer) -> None:
        self._url = f"{server.url}/v1/completions"
        self._tokens = 0
        self._moved = threading.Condition()
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Stream:
        self._reader.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._reader.join(DEADLINE)

    def wait_for_more(self) -> None:
        with self._moved:
            seen = self._tokens
            assert self._moved.wait_for(lambda: self._tokens > seen, DEADLINE), "the stream beside it stands still"

    def _read(self) -> None:
        body = {"prompt": "Hello", "max_tokens": 4000, "stream": True, "logit_bias": {"0": -100, "2": -100}}
        while not self._stop.is_set():
            with httpx.stream("POST", self._url, json=body, timeout=DEADLINE) as response:
                for line in response.iter_lines():
                    if self._stop.is_set():
                        return
                    with self._moved:
                        self._tokens += line.startswith("data: {")
                        self._moved.notify_all()


def ask(server: ChorusServer, **options: Any) -> tuple[int, dict[str, Any]]:
    """The status and the body; 0 where the connection broke or nothing came."""
    body = {"prompt": "Hello", "max_tokens": 16, **options}
    try:
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=DEADLINE)
    except httpx.HTTPError:
        return 0, {}
    return response.status_code, response.json()


def answered(server: ChorusServer, **options: Any) -> bool:
    """With an answer, or a refusal that names the field in one line."""
    status, body = ask(server, **options)
    if status != 400:
        return status == 200
    (field,) = options
    return body["error"]["param"] == field and "\n" not in body["error"]["message"]


def chain(length: int, link: Callable[[dict[str, str]], dict[str, Any]]) -> str:
    """Definitions of which each refers to the next."""
    definitions: dict[str, Any] = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    return json.dumps({"$defs": {**definitions, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"})


def rules(count: int) -> str:
    return "\n".join(["start: r0", *(f'r{n}: "a" r{n + 1} | "b"' for n in range(count)), f'r{count}: "c"'])


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    "bomb",
    [
        {"guided_json": chain(800, lambda ref: {"anyOf": [{"type": "null"}, {"type": "array", "items": ref}]})},
        {"guided_json": chain(2500, lambda ref: ref)},
        {"guided_grammar": rules(3000)},
    ],
    ids=["alternatives", "references", "rules"],
)
def test_a_chain_of_definitions_ends_no_process(server: ChorusServer, bomb: dict[str, Any]) -> None:
    """Finding 1."""
    assert answered(server, **bomb)


@pytest.mark.usefixtures("unharmed")
def test_many_lines_before_a_grammar_are_read_in_one_pass(server: ChorusServer) -> None:
    """Finding 3: so many that looking at each once more for each of them would take minutes."""
    assert answered(server, guided_grammar="\n" * 120_000 + 'start: "a"')


GROWING = [{"guided_json": {"type": "integer", "multipleOf": divisor}} for divisor in (6_000_011, 10_000_019)]
SLOW = [
    {"guided_grammar": "start: T24\nT0: /[a-z]/\n" + "\n".join(f"T{n + 1}: T{n} T{n}" for n in range(24))},
    {"guided_json": {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(10_000)}}},
    {"guided_grammar": rules(20_000)},
]


@pytest.mark.usefixtures("unharmed")
def test_grammars_that_grow_or_blow_up_stop_nobody_else(server: ChorusServer) -> None:
    """Finding 20: in time or memory, when they are compiled or when they are followed."""
    with ThreadPoolExecutor() as pool:
        growing = [pool.submit(ask, server, **bomb) for bomb in GROWING]
        slow = [pool.submit(answered, server, **bomb) for bomb in SLOW]
        bombs: list[Future[Any]] = [*growing, *slow]
        while not all(bomb.done() for bomb in bombs):
            assert ask(server, max_tokens=1)[0] == 200
            time.sleep(0.1)
    assert all(bomb.result() for bomb in slow)
    for status, body in [bomb.result() for bomb in growing]:
        assert (status, body["error"]["param"]) == (400, "guided_json")
        assert "engine.grammar_" in body["error"]["message"]


def large_schema() -> dict[str, Any]:
    """Takes its compiler seconds."""
    return {"type": "object", "properties": {f"property_{n}": {"type": "string"} for n in range(5000)}}


def grammar_children(server: ChorusServer) -> list[psutil.Process]:
    return [p for parent in server.processes() if "chorus.text.grammar" in _command(parent) for p in parent.children()]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def until(condition: Callable[[], Any], what: str) -> Any:
    """What the condition says when it comes true."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def test_a_grammar_that_compiles_holds_up_no_other_request(server: ChorusServer) -> None:
    """Finding 13: others with a grammar are submitted, answered and cancelled meanwhile."""
    until(lambda: not grammar_children(server), "those of earlier requests are gone")
    with ThreadPoolExecutor() as pool:
        slow: Future[Any] = pool.submit(ask, server, guided_json=large_schema())
        (compiler,) = until(lambda: grammar_children(server), "its grammar is compiled outside")
        # However long the others take, it is not done before them.
        freeze(compiler)
        for _ in range(3):
            assert ask(server, guided_regex="[ab]{4}")[0] == 200
        assert not slow.done()
        compiler.resume()
        assert slow.result()[0] in (200, 400)


def test_a_client_that_leaves_takes_its_grammar_along(server: ChorusServer) -> None:
    """Finding 13: a cancel is honoured while the grammar compiles."""
    body = {"prompt": "Hello", "guided_json": {"type": "integer", "multipleOf": 6_000_011}}
    until(lambda: not grammar_children(server), "those of earlier requests are gone")
    with asked(f"{server.url}/v1/completions", body):
        (child,) = until(lambda: grammar_children(server), "its grammar is compiled outside")
    until(lambda: not child.is_running(), "its process is gone")
    assert ask(server, guided_regex="[ab]{4}")[0] == 200


def test_neither_the_front_end_nor_the_engine_has_the_compiler_in_it(server: ChorusServer) -> None:
    """Finding 1: what is not there cannot crash it."""
    for name in ("chorus.api", "chorus.engine"):
        maps = server.process_named(name).memory_maps()
        assert [mapped.path for mapped in maps if "llguidance" in mapped.path] == []
