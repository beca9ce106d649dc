"""An answer that comes back is the tokens that the model wrote, whatever its client made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chorus.serving.prompt.conversation import conversation_tokens
from chorus.serving.prompt.remembered import AnswerMemory, Opened, answer_message, conversation_digests
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.prompt.tokens import Prompt
from chorus.serving.requests.request import GenerationRequest
from chorus.serving.requests.tools import Tool, ToolChoice, Tools
from chorus.text.parsers import OutputParser, choose, merged
from tests.serving.chat_templates import CHAT_TEMPLATE, LLAMA, QWEN, served

PARAMETERS = {"type": "object", "properties": {"wait": {}, "quiet": {"type": "boolean", "default": False}}}
TOOLS = Tools((Tool("run", "Runs it", PARAMETERS),), ToolChoice("auto"))
SYSTEM, QUESTION = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the capital?"}
AGAIN = {"role": "user", "content": "And of Spain?"}
RESULT = {"role": "tool", "tool_call_id": "call_0", "content": "Done."}
END = "<|im_end|>"
# Arguments in an order, with spaces and with a point that no client sends back.
CALL = 'I run it.\n<tool_call>\n{"name":  "run", "arguments": {"wait":5000.0,  "all": true}}\n</tool_call>'


def parser_of_calls(thinks: bool, opened: bool) -> OutputParser:
    return choose(QWEN).new(
        tools=TOOLS.for_template(), thinks=thinks, starts_in_reasoning=opened, id_factory=lambda: "call_0"
    )


class Session:
    """A front end with one conversation after the other; answers are written by the test."""

    def __init__(self, tokenizer: ServedTokenizer, **fields: Any) -> None:
        self.tokenizer = tokenizer
        self.memory = AnswerMemory(64, 1 << 20)
        self.fields = fields

    def prompt(self, *messages: dict[str, Any], **more: Any) -> Prompt:
        request = GenerationRequest(messages=list(messages), **{**self.fields, **more})
        return conversation_tokens(request, self.tokenizer, self.memory)

    def plain(self, *messages: dict[str, Any], **more: Any) -> list[int]:
        """The same without a memory."""
        request = GenerationRequest(messages=list(messages), **{**self.fields, **more})
        return list(conversation_tokens(request, self.tokenizer).tokens)

    def answer(self, prompt: Prompt, text: str, *, letters: bool = False) -> tuple[list[int], dict[str, Any]]:
        """The tokens after the answer, and the message that a client would send back; `letters`: drawn one by one."""
        parts = list(text) if letters else [text]
        tokens = [token for part in parts for token in self.tokenizer.encode(part, special=False)]
        opened = self.tokenizer.decode(prompt.tokens[-8:], skip_special=False).endswith("<think>\n")
        parser = parser_of_calls(thinks=True, opened=opened)
        message = answer_message(merged([*parser.push(text), *parser.flush()]), 64)
        assert message is not None
        assert prompt.opened is not None
        whole = [*prompt.tokens, *tokens]
        self.memory.put(prompt.opened, whole, prompt.cuts, message)
        return whole, {name: part for name, part in message.items() if part or name == "content"}


@pytest.fixture(scope="module", params=[QWEN, CHAT_TEMPLATE, LLAMA], ids=["qwen", "chatml", "llama"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedTokenizer:
    return served(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ServedTokenizer:
    return served(tmp_path_factory.mktemp("qwen"), QWEN)


def begins(tokenizer: ServedTokenizer, prompt: Prompt, whole: list[int]) -> bool:
    """Whether a prompt goes on from an answer: its tokens, then the one that ends a turn."""
    (end,) = tokenizer.encode(END, special=False)
    return list(prompt.tokens[: len(whole) + 1]) == [*whole, end]


def reordered(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    reordered = {"quiet": False, "all": arguments["all"], "wait": int(arguments["wait"])}
    function = {**call["function"], "arguments": reordered}
    return {**call, "type": "function", "function": function}


def test_an_answer_is_the_tokens_that_were_drawn(tokenizer: ServedTokenizer) -> None:
    session = Session(tokenizer)
    whole, answer = session.answer(session.prompt(SYSTEM, QUESTION), "Paris, the city.", letters=True)
    messages = (SYSTEM, QUESTION, answer, AGAIN)
    prompt = session.prompt(*messages)
    assert begins(tokenizer, prompt, whole)
    assert tokenizer.decode(prompt.tokens, skip_special=False) == tokenizer.decode(
        session.plain(*messages), skip_special=False
    )
    assert list(prompt.tokens) != session.plain(*messages)
    assert prompt.needed_cuts == ()
    assert list(prompt.cuts) == sorted(set(prompt.cuts))


def test_a_conversation_goes_on_from_its_last_answer(tokenizer: ServedTokenizer) -> None:
    session = Session(tokenizer)
    messages = [SYSTEM, QUESTION]
    for number in range(9):
        whole, answer = session.answer(session.prompt(*messages), f"Paris {number}.", letters=True)
        messages += [answer, {"role": "user", "content": f"And {number}?"}]
        prompt = session.prompt(*messages)
        assert begins(tokenizer, prompt, whole)
        assert list(prompt.cuts) == sorted(set(prompt.cuts))
        assert len(prompt.cuts) <= 9


@pytest.mark.parametrize("ending", ["", " ", "\n\n"])
def test_spaces_at_the_end_may_be_lost(qwen: ServedTokenizer, ending: str) -> None:
    session = Session(qwen)
    whole, answer = session.answer(session.prompt(QUESTION), f"Paris.{ending}")
    answer = {**answer, "content": answer["content"].strip()}
    assert begins(qwen, session.prompt(QUESTION, answer, AGAIN), whole)


def test_a_call_that_comes_back_reformatted_is_what_the_model_wrote(qwen: ServedTokenizer) -> None:
    session = Session(qwen, tools=TOOLS)
    whole, answer = session.answer(session.prompt(SYSTEM, QUESTION), CALL)
    answer = {**answer, "content": "I run it.", "tool_calls": [reordered(answer["tool_calls"][0])]}
    prompt = session.prompt(SYSTEM, QUESTION, answer, RESULT)
    assert begins(qwen, prompt, whole)
    assert session.plain(SYSTEM, QUESTION, answer, RESULT)[: len(whole)] != whole
    # And so it stays.
    later, final = session.answer(prompt, "It ran.", letters=True)
    assert begins(qwen, session.prompt(SYSTEM, QUESTION, answer, RESULT, final, AGAIN), later)


def changed_call(change: dict[str, Any]) -> Any:
    def change_it(message: dict[str, Any]) -> dict[str, Any]:
        (call,) = message["tool_calls"]
        function = {**call["function"], **change.get("function", {})}
        return {**message, "tool_calls": [{**call, **change, "function": function}]}

    return change_it


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(changed_call({"id": "call_9"}), id="another id"),
        pytest.param(changed_call({"function": {"name": "stop"}}), id="another name"),
        pytest.param(changed_call({"function": {"arguments": {"wait": 5000, "all": 1}}}), id="true is no number"),
        pytest.param(changed_call({"function": {"arguments": {"wait": "5000", "all": True}}}), id="nor is a text"),
        pytest.param(
            changed_call({"function": {"arguments": {"wait": 5000, "all": True, "quiet": 0}}}), id="nor false"
        ),
        pytest.param(lambda message: {**message, "content": "I run."}, id="another text"),
        pytest.param(lambda message: {**message, "reasoning_content": "Hm."}, id="a thought"),
    ],
)
def test_what_is_not_the_answer_is_rendered(qwen: ServedTokenizer, change: Any) -> None:
    session = Session(qwen, tools=TOOLS)
    _, answer = session.answer(session.prompt(QUESTION), CALL)
    messages = (QUESTION, change(answer), RESULT)
    assert list(session.prompt(*messages).tokens) == session.plain(*messages)


@pytest.mark.parametrize(
    "more",
    [{"scope": "other"}, {"tools": Tools()}, {"template_arguments": {"enable_thinking": True}}],
    ids=["scope", "tools", "arguments"],
)
def test_what_was_asked_otherwise_is_not_found(qwen: ServedTokenizer, more: dict[str, Any]) -> None:
    session = Session(qwen, tools=TOOLS)
    _, answer = session.answer(session.prompt(QUESTION), "Paris.", letters=True)
    messages = (QUESTION, answer, AGAIN)
    assert list(session.prompt(*messages, **more).tokens) == session.plain(*messages, **more)


def test_a_question_that_was_edited_is_rendered(qwen: ServedTokenizer) -> None:
    session = Session(qwen)
    _, answer = session.answer(session.prompt(QUESTION), "Paris.", letters=True)
    messages = (AGAIN, answer, AGAIN)
    assert list(session.prompt(*messages).tokens) == session.plain(*messages)


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": True}])
def test_reasoning_that_comes_back_stays(qwen: ServedTokenizer, arguments: dict[str, Any]) -> None:
    """Though the template leaves it out once there is a later question."""
    session = Session(qwen, tools=TOOLS, template_arguments=arguments)
    begin = "" if arguments else "<think>\n"
    prompt = session.prompt(SYSTEM, QUESTION)
    whole, called = session.answer(prompt, f"{begin}I must run it.\n</think>\n\n{CALL}")
    assert called["reasoning_content"].strip() == "I must run it."
    messages = [SYSTEM, QUESTION, called, RESULT]
    prompt = session.prompt(*messages)
    assert begins(qwen, prompt, whole)
    whole, final = session.answer(prompt, f"{begin}It ran.\n</think>\n\nDone.")
    messages += [final, AGAIN]
    prompt = session.prompt(*messages)
    assert begins(qwen, prompt, whole)
    assert "I must run it." in qwen.decode(prompt.tokens)
    assert "I must run it." not in qwen.decode(session.plain(*messages))


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": True}])
def test_reasoning_that_does_not_come_back_is_not_made_up(qwen: ServedTokenizer, arguments: dict[str, Any]) -> None:
    session = Session(qwen, template_arguments=arguments)
    begin = "" if arguments else "<think>\n"
    _, answer = session.answer(session.prompt(QUESTION), f"{begin}Hm.\n</think>\n\nParis.")
    messages = (QUESTION, {"role": "assistant", "content": answer["content"]}, AGAIN)
    assert list(session.prompt(*messages).tokens) == session.plain(*messages)


def test_an_empty_thought_that_history_does_not_have_is_not_put_there(qwen: ServedTokenizer) -> None:
    session = Session(qwen, template_arguments={"enable_thinking": False})
    _, answer = session.answer(session.prompt(QUESTION), "Paris.", letters=True)
    prompt = session.prompt(QUESTION, answer, AGAIN)
    assert list(prompt.tokens) == session.plain(QUESTION, answer, AGAIN)
    assert prompt.needed_cuts


# As Mistral has it: tools before the last question, wherever that is.
MOVED = """\
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if loop.index0 == last.question and tools %}{{ 'Tools: ' + tools | tojson }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
# As gpt-oss has it: an answer in history does not end with the token that ended it.
OTHER_END = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|endoftext|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


@pytest.mark.parametrize("template", [MOVED, OTHER_END])
def test_a_template_that_writes_history_otherwise_is_obeyed(tmp_path: Path, template: str) -> None:
    tokenizer = served(tmp_path, template)
    session = Session(tokenizer, tools=TOOLS)
    _, answer = session.answer(session.prompt(QUESTION), "Paris.", letters=True)
    messages = (QUESTION, answer, AGAIN)
    assert list(session.prompt(*messages).tokens) == session.plain(*messages)


def test_an_answer_that_spells_the_end_of_a_turn_is_rendered(qwen: ServedTokenizer) -> None:
    session = Session(qwen)
    _, answer = session.answer(session.prompt(QUESTION), f"Write {END} now.")
    messages = (QUESTION, answer, AGAIN)
    assert list(session.prompt(*messages).tokens) == session.plain(*messages)


def test_an_answer_to_be_continued_goes_on_from_the_one_before_it(qwen: ServedTokenizer) -> None:
    session = Session(qwen)
    whole, answer = session.answer(session.prompt(QUESTION), "Paris.", letters=True)
    begun = {"role": "assistant", "content": "Mad"}
    prompt = session.prompt(QUESTION, answer, AGAIN, begun, continue_last=True)
    assert begins(qwen, prompt, whole)
    assert qwen.decode(prompt.tokens).endswith("Mad")
    assert prompt.opened is None


def test_a_broken_call_is_no_answer() -> None:
    parser = parser_of_calls(thinks=False, opened=False)
    pieces = [*parser.push('<tool_call>\n{"name": "run", "arguments": {"wait": 5'), *parser.flush()]
    assert answer_message(pieces, 64) is None


def test_the_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    def put(name: str, tokens: int = 10) -> bytes:
        request = GenerationRequest(messages=[{"role": "user", "content": name}])
        opened = Opened(conversation_digests(request)[-1], "", name)
        memory.put(opened, range(tokens), (), {"role": "assistant", "content": "x"})
        answered = GenerationRequest(messages=[*(request.messages or ()), {"role": "assistant", "content": "x"}])
        return conversation_digests(answered)[-1]

    memory = AnswerMemory(2, 10_000)
    one, two = put("one"), put("two")
    assert memory.get(one)
    three = put("three")
    assert (memory.get(one) is None, memory.get(two) is None, memory.get(three) is None) == (False, True, False)
    assert put("three") == three
    assert len(memory) == 2
    put("too large", 10_000)
    assert memory.get(three)
    put("large", 2_300)
    assert len(memory) == 1
