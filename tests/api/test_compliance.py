"""llm-comply, a compliance suite of somebody else's, against each protocol.

Checks that fail on purpose, each with its reason:
- those with an image: the served model reads text only, and such parts are refused by their place in the request;
- those that leave out `model`: here that means the served model, as it does in mlx-lm's server.

Reasoning is left out of the Responses run: the suite knows its events only by the names that Open Responses gave them,
and ours bear the names of OpenAI's own client.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from llguidance import LLTokenizer

from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import ApiProcess
from tests.api.grammar_engine import obey
from tests.api.scripted_engine import ScriptedEngine

ON_PURPOSE = {
    "openai-chat": {"chat-image-input", "chat-error-handling"},
    "open-responses": {"image-input", "error-handling"},
    "anthropic": {"anth-image-input"},
}
MODELS = {"openai-chat": "gpt-5-tiny", "open-responses": "gpt-5-tiny", "anthropic": "claude-sonnet-4-tiny"}


@pytest.mark.parametrize("protocol", sorted(ON_PURPOSE))
def test_every_check_passes_but_those_that_cannot(
    tool_api: ApiProcess,
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    grammar_tokens: LLTokenizer,
    protocol: str,
) -> None:
    text = "Hello dear you." if protocol == "open-responses" else "<think>Three words.</think>Hello dear you."
    engine.default = obey(grammar_tokens, tokenizer.encode(text, special=False))
    command = [sys.executable, "-m", "llm_comply.cli", "--json", "--format", protocol]
    command += ["-u", f"{tool_api.url}/v1", "-k", "x", "-m", MODELS[protocol], "--timeout", "20"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    results = json.loads(run.stdout)["results"]
    failed = {result["id"]: result for result in results if result["status"] == "failed"}
    passed = {result["id"] for result in results if result["status"] == "passed"}
    assert set(failed) == ON_PURPOSE[protocol], json.dumps(failed, indent=1)
    assert len(passed) >= 6
    assert not any(result["status"] == "skipped" for result in results)
