"""A front end whose models say what each test wants, and terminals in which its commands are typed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import ApiProcess, settings_for
from tests.api.scripted_engine import Run, Script, ScriptedEngine, say
from tests.support.screen import Terminal
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer

VOCABULARY = 512
FIRST, SECOND = "acme/tiny-model", "acme/other-model"


class Talker:
    """Two models behind one address."""

    def __init__(self, folder: Path) -> None:
        model = folder / "model"
        model.mkdir()
        write_tiny_tokenizer(model, VOCABULARY)
        (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
        self._tokenizer = Tokenizer.load(model)
        self.engine = ScriptedEngine(short(folder) / "engine.sock", VOCABULARY, context_length=4000)
        settings = settings_for(self.engine, model)
        other = {**settings["models"][0], "id": SECOND, "name": "other", "aliases": []}
        self.api = ApiProcess(folder, {**settings, "models": [*settings["models"], other]})
        self.api.wait_until_live()
        self.url = self.api.url

    def says(self, *texts: str) -> None:
        self.engine.next(*(say(self.tokens(text)) for text in texts))

    def then(self, script: Script) -> None:
        self.engine.next(script)

    def tokens(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def asked(self, number: int) -> str:
        """The prompt that a model was given, as text."""
        return self._tokenizer.decode(list(self.engine.wait_for_run(number).submit.prompt))

    def run(self, number: int) -> Run:
        return self.engine.wait_for_run(number)

    def close(self) -> None:
        self.api.stop()
        self.engine.stop()


@pytest.fixture(scope="session")
def shared_talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talker]:
    talker = Talker(tmp_path_factory.mktemp("talker"))
    yield talker
    talker.close()


@pytest.fixture
def talker(shared_talker: Talker) -> Talker:
    shared_talker.engine.reset()
    return shared_talker


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Types `chorus …` in a terminal of a user who has no server running."""
    with ExitStack() as opened:
        state = opened.enter_context(tempfile.TemporaryDirectory(prefix="state-", dir="/tmp"))
        environment = {"CHORUS_STATE": state, "CHORUS_KEYS_FILE": str(tmp_path / "keys.json")}

        def start(*words: str, columns: int = 80, lines: int = 24) -> Terminal:
            return opened.enter_context(Terminal(words, tmp_path, environment, columns, lines))

        yield start
