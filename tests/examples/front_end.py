"""A front end of an example's tree, before an engine that says what a test tells it to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import VOCABULARY, ApiProcess, settings_for
from tests.api.scripted_engine import DEADLINE, ScriptedEngine
from tests.examples.support import patched
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer


@contextmanager
def front_end(example: str, folder: Path, template: str | None = None) -> Iterator[tuple[httpx.Client, ScriptedEngine]]:
    write_tiny_tokenizer(folder, VOCABULARY)
    if template is not None:
        config = folder / "tokenizer_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    engine = ScriptedEngine(short(folder) / "engine.sock", VOCABULARY)
    engine.description.context_length = 4000
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(patched(example) / "src"))
            api = ApiProcess(folder, settings_for(engine, folder))
        try:
            api.wait_until_live()
            with httpx.Client(base_url=api.url, timeout=DEADLINE) as client:
                yield client, engine
        finally:
            api.stop()
    finally:
        engine.stop()
