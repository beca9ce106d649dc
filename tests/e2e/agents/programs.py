"""Claude Code and OpenCode from the npm registry, run as their users run them, in a home folder of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chorus.platform.storage.paths import cache_dir

PACKAGES = ("@anthropic-ai/claude-code@2.1.325", "opencode-ai@1.18.33")
INSTALL_SECONDS = 300
TURN_SECONDS = 120
MODEL = "default_model"
CONTEXT = 65536


def installed_clients() -> Path:
    """The folder of their commands; fetched once, then kept beside the models."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed: it brings the clients")
    folder = cache_dir() / "test-clients"
    whole, wanted = folder / "installed.txt", "\n".join(PACKAGES)
    if not whole.is_file() or whole.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        whole.unlink(missing_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        whole.write_text(wanted)
    return folder / "node_modules" / ".bin"


class Agent(ABC):
    """One conversation with a client: each call of `ask` is a run of its program, which goes on with the last one."""

    def __init__(self, programs: Path, url: str, folder: Path, enter: Sequence[str]) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        home = folder / "home"
        home.mkdir()
        self._programs, self._enter = programs, enter
        self._environment = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **self.environment(url),
        }
        self._asked = 0

    @abstractmethod
    def environment(self, url: str) -> dict[str, str]: ...

    @abstractmethod
    def command(self, prompt: str, again: bool) -> list[str]: ...

    @abstractmethod
    def answer(self, output: str) -> str: ...

    def ask(self, prompt: str) -> str:
        program, *arguments = self.command(prompt, again=self._asked > 0)
        self._asked += 1
        process = subprocess.Popen(
            [*self._enter, str(self._programs / program), *arguments],
            cwd=self.work,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=TURN_SECONDS)
        finally:
            # With whatever it started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, output + errors
        return self.answer(output)


class ClaudeCode(Agent):
    def environment(self, url: str) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
        }

    def command(self, prompt: str, again: bool) -> list[str]:
        more = ["--continue"] if again else []
        return [
            "claude",
            "--print",
            *more,
            "--output-format",
            "json",
            "--allowedTools",
            "Read,Write,Edit,Bash",
            "--",
            prompt,
        ]

    def answer(self, output: str) -> str:
        return str(json.loads(output)["result"])


class OpenCode(Agent):
    def environment(self, url: str) -> dict[str, str]:
        models = {MODEL: {"name": "Tiny", "tool_call": True, "limit": {"context": CONTEXT, "output": 8192}}}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1", "apiKey": "none"}}
        config: dict[str, Any] = {
            "provider": {"chorus": {**provider, "models": models}},
            "model": f"chorus/{MODEL}",
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
        }
        return {
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }

    def command(self, prompt: str, again: bool) -> list[str]:
        return ["opencode", "run", *(["--continue"] if again else []), prompt]

    def answer(self, output: str) -> str:
        return output
