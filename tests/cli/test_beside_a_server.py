"""Commands typed in a second terminal beside a real server that asks for keys and has a certificate of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorus.security.key_file import add_key
from tests.support.server import ChorusServer
from tests.support.sockets import short
from tests.support.tiny_model import write_tiny_model

DEADLINE = 120


class Terminal:
    """Somebody's folder, with the settings that are read there."""

    def __init__(self, folder: Path, environment: dict[str, str], laptop: str) -> None:
        self.folder = folder
        self.laptop = laptop
        """The key of that name."""
        self._environment = environment

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CHORUS_", "OPENAI_"))}
        return subprocess.run(
            [sys.executable, "-m", "chorus.cli", *line.split()],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**inherited, "COLUMNS": "300", **self._environment},
            timeout=DEADLINE,
        )


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("beside")
    environment = {"CHORUS_STATE": str(short(folder / "state")), "CHORUS_KEYS_FILE": str(folder / "keys.json")}
    laptop = add_key(folder / "keys.json", "laptop")
    model = write_tiny_model(folder / "model", num_hidden_layers=5)
    with ChorusServer(model, ["--split", "2,3", "--https"], folder, environment) as server:
        typing = folder / "typing"
        typing.mkdir()
        # What the reader has there; any other port of that file would be the one that is asked.
        (typing / ".env").write_text(f"CHORUS_API__PORT={server.url.rpartition(':')[2]}\n")
        yield Terminal(typing, environment, laptop)


def test_status_shows_layers_and_needs_no_key_of_whoever_serves(terminal: Terminal) -> None:
    shown = terminal.type("status")
    assert shown.returncode == 0, shown.stderr
    rows = {cells[1].strip(): cells for line in shown.stdout.splitlines() if len(cells := line.split("│")) > 4}
    assert (rows["0"][4].strip(), rows["1"][4].strip()) == ("3-4", "0-2")
    assert "ready  https://" in shown.stdout
    ranks = json.loads(terminal.type("status --json").stdout)["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_every_small_number_of_tokens_is_answered(terminal: Terminal, tokens: int) -> None:
    shown = terminal.type(f"test --tokens {tokens}")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert "in all" in shown.stdout.splitlines()[-1]
    found = json.loads(terminal.type(f"test --json --tokens {tokens}").stdout)
    assert found["usage"]["completion_tokens"] <= tokens


def test_the_cache_is_shown_and_cleared_without_a_key(terminal: Terminal) -> None:
    assert "entries" in terminal.type("cache").stdout
    assert "forgot" in terminal.type("cache clear").stdout


def test_the_cache_is_shown_with_a_key_and_not_cleared_with_one_that_is_no_admins(terminal: Terminal) -> None:
    assert "entries" in terminal.type(f"cache --api-key {terminal.laptop}").stdout
    refused = terminal.type(f"cache clear --api-key {terminal.laptop}")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "answered 403: The key 'laptop'" in refused.stderr


def test_a_server_is_measured_by_its_address_alone(terminal: Terminal) -> None:
    url = json.loads(terminal.type("status --json").stdout)["url"]
    shown = terminal.type(f"bench {url}/v1 --streams 1,3 --prompt-tokens 16 --tokens 8 --rounds 2 --json -")
    assert shown.returncode == 0, shown.stderr
    one, three = (case["figures"] for case in json.loads(shown.stdout)["cases"])
    for figures in (one, three):
        assert figures["first_token_seconds"] <= figures["first_token_p95_seconds"]
        assert figures["gap_seconds"] <= figures["gap_p99_seconds"] <= figures["longest_pause_seconds"]
        assert figures["prompt_tokens"] > 0
        assert figures["tokens_per_second"] > 0


def test_a_key_that_is_typed_is_the_one_that_is_tried(terminal: Terminal) -> None:
    refused = terminal.type("status --api-key chorus-wrong")
    assert refused.returncode == 1
    assert "does not know this key" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
