from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from llguidance import LLTokenizer

from chorus.config.front_end import ModelSettings
from chorus.config.grammar import GrammarLimits
from chorus.deploy.supervisor import QUIET
from chorus.platform.process.lifeline import Lifeline
from chorus.text.tokenizer import Tokenizer
from tests.api.grammar_engine import grammar_tokenizer
from tests.api.recorded_clients import MODEL_ID
from tests.api.scripted_engine import DEADLINE, ScriptedEngine
from tests.support import failure_logs
from tests.support.grammars import GrammarHost
from tests.support.sockets import short
from tests.support.tiny_tokenizer import write_tiny_tokenizer

VOCABULARY = 512


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_tokenizer(folder, VOCABULARY)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    return folder


# Like Qwen's: calls in tags, reasoning that the template opens when it is asked to.
TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
Answer, or call within <tool_call></tool_call>:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if reasoning_effort %}{{ 'effort: ' + reasoning_effort + '\n' }}{% endif %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"""


@pytest.fixture(scope="session")
def tool_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tool-model")
    write_tiny_tokenizer(folder, VOCABULARY)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TOOL_TEMPLATE}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["QwenForCausalLM"], "model_type": "qwen"}))
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer.load(model_path)


@pytest.fixture(scope="session")
def shared_engine(tmp_path_factory: pytest.TempPathFactory, tool_model_path: Path) -> Iterator[ScriptedEngine]:
    with GrammarHost(tool_model_path, VOCABULARY, GrammarLimits(compile_seconds=DEADLINE)) as grammars:
        engine = ScriptedEngine(short(tmp_path_factory.mktemp("run")) / "engine.sock", VOCABULARY, grammars=grammars)
        yield engine
        engine.stop()


@pytest.fixture
def engine(shared_engine: ScriptedEngine) -> ScriptedEngine:
    shared_engine.reset()
    return shared_engine


class ApiProcess:
    """A real front-end process behind a listening socket that belongs to the test, as it does to the supervisor."""

    def __init__(self, folder: Path, settings: dict[str, Any], open_files: int | None = None) -> None:
        self._limited = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh"] if open_files else []
        self._lifeline = Lifeline()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        scheme = "https" if settings.get("tls_certificate") else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        if keys := settings.pop("keys", None):
            self.keys_file = folder / "keys.json"
            self.keys_file.write_text(json.dumps({"keys": keys}))
            settings["keys_file"] = str(self.keys_file)
        self._settings = folder / "settings.json"
        self._settings.write_text(json.dumps({**settings, "socket_fds": [self._listener.fileno()]}))
        self.log = folder / "api.log"
        failure_logs.keep("the front end", self.log)
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._limited, sys.executable, "-m", "chorus.api", "--settings", str(self._settings)],
                pass_fds=[self._listener.fileno()],
                env={**os.environ, **QUIET, **self._lifeline.environment()},
                stderr=log,
            )

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return host, port

    def wait_until_live(self) -> None:
        # The socket is open already, so the answer comes as soon as there is somebody to give it.
        httpx.get(f"{self.url}/health/live", timeout=60, verify=False).raise_for_status()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DEADLINE)
            finally:
                self.process.kill()
        self._listener.close()
        self._lifeline.cut()


def settings_for(engine: ScriptedEngine, model_path: Path, **more: Any) -> dict[str, Any]:
    limits = {"shutdown_grace_seconds": 1, **more.pop("limits", {})}
    model = {
        "engine_address": engine.address,
        "id": MODEL_ID,
        "name": "tiny",
        "aliases": ["gpt-4"],
        "path": str(model_path),
        **{name: more.pop(name) for name in ModelSettings.model_fields if name in more},
    }
    return {
        "models": [model],
        "log_json": True,
        "configuration": {"ranks": 1, "dtype": "float32"},
        "limits": limits,
        **more,
    }


@pytest.fixture(scope="session")
def shared_api(
    shared_engine: ScriptedEngine, model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    api = ApiProcess(tmp_path_factory.mktemp("api"), settings_for(shared_engine, model_path))
    api.wait_until_live()
    yield api
    api.stop()


@pytest.fixture
def api(shared_api: ApiProcess, engine: ScriptedEngine) -> ApiProcess:
    return shared_api


@pytest.fixture(scope="session")
def shared_tool_api(
    shared_engine: ScriptedEngine, tool_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    aliases = ["gpt-4o-mini", "gpt-5-tiny", "claude-sonnet-4-tiny"]
    settings = settings_for(shared_engine, tool_model_path, aliases=aliases)
    api = ApiProcess(tmp_path_factory.mktemp("tool-api"), settings)
    api.wait_until_live()
    yield api
    api.stop()


@pytest.fixture
def tool_api(shared_tool_api: ApiProcess, engine: ScriptedEngine) -> Iterator[ApiProcess]:
    """Serves a model that thinks and calls tools, with room for long prompts."""
    engine.description.context_length = 4000
    httpx.get(f"{shared_tool_api.url}/health", timeout=DEADLINE)
    yield shared_tool_api
    engine.description.context_length = 256


@pytest.fixture
def tool_http(tool_api: ApiProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tool_api.url, timeout=DEADLINE) as client:
        yield client


@pytest.fixture(scope="session")
def grammar_tokens(tool_model_path: Path) -> LLTokenizer:
    return grammar_tokenizer(str(tool_model_path))


@pytest.fixture
def start_api(engine: ScriptedEngine, model_path: Path, tmp_path: Path) -> Iterator[Callable[..., ApiProcess]]:
    """For tests that stop the process or need other settings."""
    started: list[ApiProcess] = []

    def start(**settings: Any) -> ApiProcess:
        api = ApiProcess(tmp_path, settings_for(engine, model_path, **settings))
        started.append(api)
        api.wait_until_live()
        return api

    yield start
    for api in started:
        api.stop()


@pytest.fixture
def http(api: ApiProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api.url, timeout=DEADLINE) as client:
        yield client


@pytest.fixture
def client(api: ApiProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="unused", max_retries=0, timeout=DEADLINE) as client:
        yield client


def eventually(condition: Callable[[], bool], what: str) -> None:
    """For what another process does in its own time and tells nobody."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


def open_requests(http: httpx.Client) -> int:
    return int(http.get("/health").json()["requests"]["open"])
