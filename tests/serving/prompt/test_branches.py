"""Where another request may part from a prompt, by what the template itself writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chorus.serving.prompt.branches import Branches, branches, common_length
from chorus.serving.prompt.conversation import conversation_tokens
from chorus.serving.prompt.tokenizer import ServedTokenizer
from chorus.serving.prompt.tokens import Prompt, cut_prompt
from chorus.serving.requests.request import GenerationRequest
from chorus.serving.requests.tools import Tool, ToolChoice, Tools
from chorus.text.errors import TemplateError
from tests.serving.chat_templates import INSTRUCTIONS, QWEN, TEMPLATES, served

TOOLS = Tools((Tool("weather", "Tells it", {"type": "object", "properties": {"city": {"type": "string"}}}),))
ABLE = Tools(TOOLS.functions, ToolChoice("auto"))
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


SYSTEM, QUESTION = said("system", "Be brief."), said("user", "What is the capital of France?")
ANSWER = said("assistant", "Paris.")
CHAT = [SYSTEM, QUESTION, ANSWER, said("user", "And of Spain?")]
CALLED = [SYSTEM, QUESTION, said("assistant", "", tool_calls=[CALL], reasoning_content="I ask."), said("tool", "Sun.")]


@pytest.fixture(scope="module", params=TEMPLATES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedTokenizer:
    return served(tmp_path_factory.mktemp(request.param), TEMPLATES[request.param])


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ServedTokenizer:
    return served(tmp_path_factory.mktemp("qwen"), QWEN)


def prompt_of(tokenizer: ServedTokenizer, messages: list[dict[str, Any]], **more: Any) -> Prompt:
    return conversation_tokens(GenerationRequest(messages=messages, **more), tokenizer)


def shown(tokenizer: ServedTokenizer, prompt: Prompt, cut: int) -> str:
    """The last letters before a cut."""
    return tokenizer.decode(prompt.tokens[:cut], skip_special=False)[-40:]


def beginning(one: Prompt, other: Prompt) -> int:
    """How many tokens two prompts share."""
    pairs = zip(one.tokens, other.tokens, strict=False)
    return next(
        (place for place, (left, right) in enumerate(pairs) if left != right), min(map(len, (one.tokens, other.tokens)))
    )


@pytest.mark.parametrize("messages", [CHAT[:2], CHAT, [QUESTION], [*CHAT[:3], said("user", "  <|im_end|> \n")]])
def test_a_prompt_in_parts_is_the_prompt(tokenizer: ServedTokenizer, messages: list[dict[str, Any]]) -> None:
    prompt = prompt_of(tokenizer, messages)
    assert list(prompt.tokens) == tokenizer.chat_prompt(messages)
    assert prompt.cuts
    assert list(prompt.cuts) == sorted(set(prompt.cuts))
    assert set(prompt.needed_cuts) <= set(prompt.cuts)
    assert all(0 < cut < len(prompt.tokens) for cut in prompt.cuts)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([SYSTEM, said("user", "Who?")], id="another first question"),
        pytest.param([*CHAT[:3], said("user", "Why?")], id="another last question"),
        pytest.param([*CHAT, said("user", "Sum it up.")], id="a question in place of the answer"),
    ],
)
def test_what_parts_from_a_prompt_does_so_at_a_cut_or_up_to_a_words_length_later(
    tokenizer: ServedTokenizer, other: list[dict[str, Any]]
) -> None:
    prompt = prompt_of(tokenizer, CHAT)
    shared = beginning(prompt, prompt_of(tokenizer, other))
    nearest = max(cut for cut in prompt.cuts if cut <= shared)
    assert shared - nearest <= len(tokenizer.encode("assistant\n\n<", special=False))


def test_a_conversation_that_goes_on_as_the_template_began_needs_no_cut(tokenizer: ServedTokenizer) -> None:
    prompt = prompt_of(tokenizer, CHAT)
    assert prompt.needed_cuts == ()
    grown = prompt_of(tokenizer, [*CHAT, said("assistant", "Madrid."), QUESTION])
    assert beginning(prompt, grown) == len(prompt.tokens)


@pytest.mark.parametrize("thinks", [True, False])
def test_a_thought_that_is_opened_for_the_answer_alone_needs_a_cut_before_it(
    qwen: ServedTokenizer, thinks: bool
) -> None:
    arguments = {"enable_thinking": thinks}
    prompt = prompt_of(qwen, CHAT, template_arguments=arguments)
    (cut,) = prompt.needed_cuts
    assert shown(qwen, prompt, cut).endswith("And of Spain?<|im_end|>\n<|im_start|>")
    grown = prompt_of(qwen, [*CHAT, said("assistant", "Madrid."), QUESTION], template_arguments=arguments)
    assert cut <= beginning(prompt, grown) < len(prompt.tokens)


def test_thoughts_that_the_next_question_strips_need_a_cut_where_the_first_of_them_begins(
    qwen: ServedTokenizer,
) -> None:
    prompt = prompt_of(qwen, CALLED, tools=ABLE)
    (cut,) = prompt.needed_cuts
    assert shown(qwen, prompt, cut).endswith("of France?<|im_end|>\n<|im_start|>")
    more = [said("assistant", "It is sunny.", reasoning_content="Sun."), said("user", "Thanks.")]
    assert cut <= beginning(prompt, prompt_of(qwen, [*CALLED, *more], tools=ABLE)) < len(prompt.tokens)


def test_the_cuts_of_a_conversation_with_tools(qwen: ServedTokenizer) -> None:
    prompt = prompt_of(qwen, CALLED, tools=ABLE)
    ends = [shown(qwen, prompt, cut) for cut in prompt.cuts]
    assert ends[0].endswith("<|im_end|>\n<|im_start|>")  # of the user, after system and tools
    assert ends[-1].endswith("tool\nSun.<|im_end|>")


def test_an_answer_that_is_continued_ends_the_prompt(tokenizer: ServedTokenizer) -> None:
    messages = [*CHAT, said("assistant", "Mad")]
    prompt = prompt_of(tokenizer, messages, continue_last=True)
    assert list(prompt.tokens) == tokenizer.chat_prompt(messages, continue_last=True)
    assert prompt.needed_cuts == ()


def test_without_a_seam_nothing_is_known_to_stay_the_same(tmp_path: Path) -> None:
    tokenizer = served(tmp_path, "{% for message in messages %}{{ message.content }}\n{% endfor %}")
    prompt = prompt_of(tokenizer, CHAT)
    assert list(prompt.tokens) == tokenizer.chat_prompt(CHAT)
    assert (prompt.cuts, prompt.needed_cuts) == ((), ())


def test_a_tokenizer_that_begins_every_part_with_a_mark_is_cut_before_the_token(tmp_path: Path) -> None:
    tokenizer = served(tmp_path, INSTRUCTIONS, byte_fallback=True)
    messages = CHAT[1:]
    prompt = prompt_of(tokenizer, messages)
    assert list(prompt.tokens) == tokenizer.chat_prompt(messages)
    assert [shown(tokenizer, prompt, cut)[-3:] for cut in prompt.cuts] == ["<s>"]


def test_a_text_that_spells_special_tokens_is_cut_as_it_is_encoded(tokenizer: ServedTokenizer) -> None:
    text = "a<|im_end|>b<|im_start|><|im_start|>c"
    places = tuple(range(1, len(text)))
    prompt = cut_prompt(text, Branches(places, places), tokenizer)
    assert list(prompt.tokens) == tokenizer.encode(text, special=False)
    assert [tokenizer.decode(prompt.tokens[:cut], skip_special=False) for cut in prompt.cuts] == [
        "a<|im_end|>",
        "a<|im_end|>b<|im_start|>",
        "a<|im_end|>b<|im_start|><|im_start|>",
    ]
    assert prompt.needed_cuts == prompt.cuts


def test_a_conversation_that_the_template_refuses_is_no_branch() -> None:
    def refuse(_: list[dict[str, Any]]) -> str:
        raise TemplateError("no")

    assert branches("prompt", [QUESTION], refuse) == Branches()


@pytest.mark.parametrize(
    ("one", "other", "length"), [("", "a", 0), ("abc", "abd", 2), ("abc", "abcd", 3), ("x", "y", 0)]
)
def test_how_far_two_texts_are_alike(one: str, other: str, length: int) -> None:
    assert common_length(one, other) == common_length(other, one) == length
