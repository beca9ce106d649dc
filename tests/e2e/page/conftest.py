from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import TOOL_TEMPLATE, VOCABULARY, ApiProcess, settings_for
from tests.api.scripted_engine import Script, ScriptedEngine
from tests.api.scripted_engine import say as say_tokens
from tests.e2e.page.browser import CHROMIUM, launch
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("there is no Chromium here")
    with sync_playwright() as playwright:
        opened = launch(playwright)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def talking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talking")
    write_tiny_tokenizer(folder, VOCABULARY)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TOOL_TEMPLATE}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["QwenForCausalLM"], "model_type": "qwen"}))
    return folder


@pytest.fixture(scope="session")
def engine_that_says(
    tmp_path_factory: pytest.TempPathFactory, talking_model: Path
) -> Iterator[tuple[ScriptedEngine, Callable[[str], Script]]]:
    """An engine, and what makes it say a text."""
    tokenizer = Tokenizer.load(talking_model)
    socket = short(tmp_path_factory.mktemp("run")) / "engine.sock"
    engine = ScriptedEngine(socket, VOCABULARY, context_length=8000)
    yield engine, lambda text: say_tokens(tokenizer.encode(text))
    engine.stop()


@pytest.fixture
def says(engine_that_says: tuple[ScriptedEngine, Callable[[str], Script]]) -> Callable[[str], ScriptedEngine]:
    """Whatever is asked, the engine says this."""
    engine, script = engine_that_says
    engine.reset()

    def set_text(text: str) -> ScriptedEngine:
        engine.default = script(text)
        return engine

    return set_text


@pytest.fixture
def start(
    engine_that_says: tuple[ScriptedEngine, Callable[[str], Script]], talking_model: Path, tmp_path: Path
) -> Iterator[Callable[..., ApiProcess]]:
    started: list[ApiProcess] = []

    def start_api(**settings: Any) -> ApiProcess:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        api = ApiProcess(folder, settings_for(engine_that_says[0], talking_model, **settings))
        started.append(api)
        api.wait_until_live()
        return api

    yield start_api
    for api in started:
        api.stop()
