"""What real clients send in ever new forms is one prompt; every rule by itself, and all of them turned off."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from chorus.api.anthropic.request import MessagesRequest
from chorus.api.anthropic.routes import conversation
from chorus.api.openai.chat.request import ChatRequest
from chorus.api.openai.chat.routes import template_messages
from chorus.api.openai.responses.history import messages_of
from chorus.api.openai.responses.request import ResponsesRequest
from chorus.config.front_end import ApiSettings, ModelSettings
from chorus.serving.prompt.conversation import conversation_tokens
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.requests.request import GenerationRequest
from tests.api.conftest import TOOL_TEMPLATE
from tests.api.recorded_clients import (
    CLAUDE_CODE,
    CLAUDE_CODE_DEFERRED,
    CLAUDE_CODE_REMINDER,
    CLAUDE_CODE_RESULT,
    CLAUDE_CODE_SEARCH,
    EPHEMERAL,
)
from tests.serving.chat_templates import LLAMA, served

SETTINGS = ApiSettings(models=(ModelSettings(engine_address="unix:none", id="m", name="m", path=Path("m")),))
ENVIRONMENT = CLAUDE_CODE["messages"][1]["content"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ServedTokenizer:
    return served(tmp_path_factory.mktemp("model"), TOOL_TEMPLATE)


def asked(body: dict[str, Any], **settings: Any) -> GenerationRequest:
    """As it arrives: from JSON."""
    return conversation(MessagesRequest.model_validate_json(json.dumps(body)), SETTINGS.model_copy(update=settings))


def prompt(tokenizer: ServedTokenizer, body: dict[str, Any], **settings: Any) -> str:
    return tokenizer.decode(conversation_tokens(asked(body, **settings), tokenizer).tokens, skip_special=False)


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(CLAUDE_CODE), **fields}


def test_a_billing_block_is_no_prompt() -> None:
    later = changed()
    later["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.325.262; cch=11111; cc_turn_index=1;"
    assert asked(later).messages == asked(CLAUDE_CODE).messages
    assert "billing" not in str(asked(CLAUDE_CODE).messages)
    assert "billing" not in str(asked(changed(system=later["system"][0]["text"])).messages)
    assert "cc_turn_index" in str(asked(later, client_rules=False).messages)


def test_marks_and_ids_are_no_prompt(tokenizer: ServedTokenizer) -> None:
    grown = changed(messages=[*CLAUDE_CODE["messages"], *CLAUDE_CODE_RESULT])
    other = json.loads(
        json.dumps(grown).replace("toolu_1", "toolu_9").replace(f', "cache_control": {json.dumps(EPHEMERAL)}', "")
    )
    assert "cache_control" in json.dumps(grown)
    assert "cache_control" not in json.dumps(other)
    assert prompt(tokenizer, other) == prompt(tokenizer, grown)


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_a_text_is_a_list_with_one_text(role: str) -> None:
    texts = [{"type": "text", "text": "Hello", "cache_control": EPHEMERAL}]
    first, last = CLAUDE_CODE["messages"][:1], [{"role": "user", "content": "And?"}]
    as_list, as_text = (changed(messages=[*first, {"role": role, "content": c}, *last]) for c in (texts, "Hello"))
    assert asked(as_list).messages == asked(as_text).messages
    assert asked(changed(system=texts)).messages == asked(changed(system="Hello")).messages


def test_a_text_is_a_list_with_one_text_in_a_chat_too() -> None:
    def messages(content: Any) -> Any:
        body = ChatRequest.model_validate({"messages": [{"role": "user", "content": content}]})
        return template_messages(body.messages, SETTINGS.limits)

    assert messages([{"type": "text", "text": "Hello"}]) == messages("Hello")


def test_the_environment_stands_before_the_first_prompt() -> None:
    roles = [(message["role"], message["content"]) for message in asked(CLAUDE_CODE).messages or ()]
    assert [role for role, _ in roles] == ["system", "system", "user"]
    assert roles[1][1] == ENVIRONMENT
    sent = asked(CLAUDE_CODE, client_rules=False).messages or ()
    assert [message["role"] for message in sent] == ["system", "user", "system"]


def test_sessions_that_ask_otherwise_share_all_that_comes_before_the_question(tokenizer: ServedTokenizer) -> None:
    other = changed()
    other["messages"][0]["content"] = "Write a poem."
    one, another = prompt(tokenizer, CLAUDE_CODE), prompt(tokenizer, other)
    before = one[: one.index("<system-reminder>")]
    assert ENVIRONMENT in before
    assert another.startswith(before)


def test_later_instructions_stay_where_they_are(tokenizer: ServedTokenizer) -> None:
    turn = [*CLAUDE_CODE["messages"], *CLAUDE_CODE_RESULT]
    reminded = [*turn, {"role": "system", "content": CLAUDE_CODE_REMINDER}]
    told = [message["content"] for message in asked(changed(messages=reminded)).messages or ()]
    assert told[-1] == CLAUDE_CODE_REMINDER
    before = prompt(tokenizer, changed(messages=turn)).removesuffix("<|im_start|>assistant\n<think>\n")
    assert prompt(tokenizer, changed(messages=reminded)).startswith(before.split("effort:")[0])


def test_an_instruction_behind_the_first_answer_is_no_environment() -> None:
    """Moved to the front, it would change what was read before it came."""
    turn = [CLAUDE_CODE["messages"][0], *CLAUDE_CODE_RESULT, {"role": "system", "content": CLAUDE_CODE_REMINDER}]
    roles = [message["role"] for message in asked(changed(messages=turn)).messages or ()]
    assert roles == ["system", "user", "assistant", "tool", "system"]


def test_later_instructions_never_join_the_leading_ones(tmp_path: Path) -> None:
    """Not where the template takes one leading instruction only, either."""
    tokenizer = served(
        tmp_path,
        LLAMA.replace(
            "{%- for message in rest %}",
            "{%- for message in rest %}{% if message.role == 'system' %}{{ raise_exception('once') }}{% endif %}",
        ),
    )
    reminder = {"role": "system", "content": CLAUDE_CODE_REMINDER}
    turn = changed(messages=[*CLAUDE_CODE["messages"], *CLAUDE_CODE_RESULT, reminder], tools=[])
    head, _, rest = prompt(tokenizer, turn).partition("<|im_end|>")
    assert ENVIRONMENT in head
    assert CLAUDE_CODE_REMINDER in rest


def test_deferred_tools_are_described_where_they_are_referred_to(tokenizer: ServedTokenizer) -> None:
    tools = [CLAUDE_CODE["tools"][0], CLAUDE_CODE_DEFERRED, CLAUDE_CODE["tools"][1]]
    before = prompt(tokenizer, CLAUDE_CODE)
    found = changed(tools=tools, messages=[*CLAUDE_CODE["messages"], *CLAUDE_CODE_SEARCH])
    after = prompt(tokenizer, found)
    assert prompt(tokenizer, changed(tools=tools)) == before
    assert after.startswith(before.split("effort:")[0])
    described = '<|im_start|>tool\n{"type": "function", "function": {"name": "CronCreate", "description": "Runs'
    assert described in after
    assert {tool.name for tool in asked(found).tools.functions} == {"Read", "CronCreate", "TaskList"}


def test_without_the_rules_every_tool_leads(tokenizer: ServedTokenizer) -> None:
    found = changed(tools=[CLAUDE_CODE_DEFERRED], messages=[*CLAUDE_CODE["messages"], *CLAUDE_CODE_SEARCH])
    text = prompt(tokenizer, found, client_rules=False)
    assert text.index("Runs something later") < text.index("It is Sunday.")
    assert "<|im_start|>tool\nCronCreate<|im_end|>" in text


def test_a_reference_to_a_tool_that_is_gone_is_its_name(tokenizer: ServedTokenizer) -> None:
    gone = changed(messages=[*CLAUDE_CODE["messages"], *CLAUDE_CODE_SEARCH])
    assert "<|im_start|>tool\nCronCreate<|im_end|>" in prompt(tokenizer, gone)


def test_empty_texts_are_no_prompt() -> None:
    texts = [{"type": "text", "text": text} for text in ("", "Hello", "")]
    empty, plain = (changed(messages=[{"role": "user", "content": content}]) for content in (texts, "Hello"))
    assert asked(empty).messages == asked(plain).messages
    assert asked(empty, client_rules=False).messages != asked(plain).messages


def test_ids_of_codexs_items_are_no_prompt() -> None:
    def messages(number: int) -> Any:
        items = [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hi"}],
                "id": f"msg_{number}",
            },
            {"type": "reasoning", "summary": [], "content": [], "id": f"rs_{number}", "encrypted_content": None},
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}", "id": f"fc_{number}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "ok", "id": f"fco_{number}"},
        ]
        body = ResponsesRequest.model_validate_json(json.dumps({"input": items}))
        return messages_of(body.input, SETTINGS.limits)

    assert messages(1) == messages(2)
