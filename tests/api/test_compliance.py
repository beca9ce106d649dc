"""llm-comply, a compliance suite of somebody else's, against each protocol.

Checks that fail on purpose, each with its reason:
- those with an image: the served model reads text only, and such parts are refused by their place in the request;
- those that leave out `model`: here that means the served model, as it does in mlx-lm's server.

Reasoning has a Responses run of its own: the suite knows its events only by the names that Open Responses gave them,
and ours bear the names of OpenAI's own client. There, nothing else may fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

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

THOUGHTFUL = "<think>Three words.</think>Hello dear you."


@pytest.mark.parametrize("protocol", sorted(ON_PURPOSE))
def test_every_check_passes_but_those_that_cannot(
    tool_api: ApiProcess,
    engine: ScriptedEngine,
    tokenizer: Tokenizer,
    grammar_tokens: LLTokenizer,
    protocol: str,
) -> None:
    text = "Hello dear you." if protocol == "open-responses" else THOUGHTFUL
    engine.default = obey(grammar_tokens, tokenizer.encode(text, special=False))
    results = checks(tool_api, protocol)
    passed = {result["id"] for result in results if result["status"] == "passed"}
    failed = failures(results)
    assert set(failed) == ON_PURPOSE[protocol], json.dumps(failed, indent=1)
    assert len(passed) >= 6
    assert not any(result["status"] == "skipped" for result in results)


def test_reasoning_in_responses_fails_by_the_names_of_its_events_and_nothing_else(
    tool_api: ApiProcess, engine: ScriptedEngine, tokenizer: Tokenizer, grammar_tokens: LLTokenizer
) -> None:
    engine.default = obey(grammar_tokens, tokenizer.encode(THOUGHTFUL, special=False))
    failed = failures(checks(tool_api, "open-responses"))
    streamed = set(failed) - ON_PURPOSE["open-responses"]
    assert streamed == {"streaming-response", "streaming-usage"}, json.dumps(failed, indent=1)
    errors = {error for name in streamed for error in failed[name]["errors"]}
    assert errors == {f"unknown SSE event type: response.reasoning_text.{end}" for end in ("delta", "done")}


def checks(api: ApiProcess, protocol: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "llm_comply.cli", "--json", "--format", protocol]
    command += ["-u", f"{api.url}/v1", "-k", "x", "-m", MODELS[protocol], "--timeout", "20"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    results: list[dict[str, Any]] = json.loads(run.stdout)["results"]
    return results


def failures(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {result["id"]: result for result in results if result["status"] == "failed"}
