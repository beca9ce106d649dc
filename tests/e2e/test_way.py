"""docs/architecture.md says which way a request takes; one that is watched takes no other."""

from __future__ import annotations

import importlib
import os
import re
import time
from operator import attrgetter
from pathlib import Path

import httpx
import pytest

import chorus
from chorus.serving.workers import AT_ONCE_CHARACTERS
from tests.support.server import ChorusServer

ROOT = Path(__file__).parents[2]
PACKAGE = Path(chorus.__file__).parent
RECORDER = ROOT / "tests" / "support" / "passed_modules"
PROGRAMS = ("chorus.api", "chorus.engine", "chorus.rank")
BY_THE_CLOCK = {
    *("platform", "platform.accelerator.device", "platform.cgroup", "platform.memory.amounts", "platform.memory.metal"),
    *("platform.process.looks", "platform.system", "engine.figures", "engine.lifecycle.process", "messages.figures"),
    *("serving.engine_link.watch", "config.engine", "rank.load", "transport.catalog"),
    *("telemetry.metrics.declared", "telemetry.metrics.engines"),
}
"""A rank looks at its memory once in a while and after a pause, the leader at its ranks, and once a second it tells
the front end what it counts: a request may be there just then.
"""
MOST_STATIONS = 25
DEADLINE = 60.0
NUMBER = re.compile(r"^(\d+)\. ", re.MULTILINE)
STATION = re.compile(r"^\d+\. `([\w.]+): ([\w.]+)` ", re.MULTILINE)


def section() -> tuple[str, str]:
    """The stations, and the helpers after them."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    own = text.partition("\n## The way of a request\n")[2].partition("\n## ")[0]
    stations, found, helpers = own.partition("\n**Helpers.**")
    assert found
    return stations, helpers


def listed() -> tuple[list[tuple[str, str]], set[str]]:
    stations, helpers = section()
    return STATION.findall(stations), set(re.findall(r"`([\w.]+)`", helpers))


@pytest.fixture(scope="module")
def passed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By program, the modules that one streamed chat request passes."""
    notes, folder = tmp_path_factory.mktemp("passed"), tmp_path_factory.mktemp("served")
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(RECORDER), *([inherited] if inherited else [])])
    environment = {"PYTHONPATH": path, "PASSED_MODULES": str(notes)}
    with ChorusServer(tiny_model, ["--ranks", "2", "--transport", "grpc"], folder, environment) as server:
        # What happens once for all requests, such as the session with the engine, has happened.
        assert stream(server).endswith("data: [DONE]\n\n")
        (notes / "begin").touch()
        wait_for(notes, "begun")
        assert stream(server).endswith("data: [DONE]\n\n")
        (notes / "end").touch()
        wait_for(notes, "passed")
    return {program: modules(notes / f"{program}.passed") for program in PROGRAMS}


def stream(server: ChorusServer) -> str:
    """Long enough to be tokenized in a thread of its own."""
    question = {"role": "user", "content": "many machines " * (AT_ONCE_CHARACTERS // 14 + 1)}
    body = {"messages": [question], "stream": True, "max_tokens": 8, "seed": 1}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=DEADLINE)
    assert response.status_code == 200, response.text
    return response.text


def wait_for(folder: Path, what: str) -> None:
    end = time.monotonic() + DEADLINE
    while missing := [program for program in PROGRAMS if not (folder / f"{program}.{what}").exists()]:
        assert time.monotonic() < end, f"never {what}: {missing}"
        time.sleep(0.02)


def modules(file: Path) -> set[str]:
    paths = [Path(line) for line in file.read_text().splitlines()]
    own = [path.relative_to(PACKAGE).with_suffix("") for path in paths if path.is_relative_to(PACKAGE)]
    return {".".join(path.parts).removesuffix(".__init__") for path in own}


def test_the_way_has_few_stations() -> None:
    stations, _ = listed()
    assert [int(number) for number in NUMBER.findall(section()[0])] == list(range(1, len(stations) + 1))
    assert 15 < len(stations) <= MOST_STATIONS


def test_every_station_is_a_function_and_every_helper_a_module() -> None:
    stations, helpers = listed()
    for module, function in stations:
        assert callable(attrgetter(function)(importlib.import_module(f"chorus.{module}"))), (module, function)
    for helper in helpers:
        importlib.import_module(f"chorus.{helper}")
    assert not helpers & {module for module, _ in stations}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_request_passes_no_module_that_is_not_listed(program: str, passed: dict[str, set[str]]) -> None:
    stations, helpers = listed()
    assert passed[program], f"nothing was seen of {program}"
    assert passed[program] - {module for module, _ in stations} - helpers - BY_THE_CLOCK == set()


def test_a_request_passes_every_station_and_every_helper(passed: dict[str, set[str]]) -> None:
    stations, helpers = listed()
    assert ({module for module, _ in stations} | helpers) - set().union(*passed.values()) == set()
