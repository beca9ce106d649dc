from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorus.text.parsers import FAMILIES, Content, Piece, ToolCallArguments, ToolCallStart, merged
from tests.support.questions import ask
from tests.text.parsers.samples import CODE, SAMPLES, TOOLS, Sample, coder, hermes, kimi, outcome, run

NAMES = [f"{sample.family}-{number}" for number, sample in enumerate(SAMPLES)]
every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
every_family = pytest.mark.parametrize("family", [family.name for family in FAMILIES])


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@every_sample
def test_an_answer_is_read_the_same_however_it_comes(sample: Sample) -> None:
    ask(
        partial(an_answer_comes_out_as_its_parts, sample),
        partial(single_characters_give_what_the_whole_text_gives, sample),
        partial(any_cuts_give_what_the_whole_text_gives, sample),
        partial(an_answer_that_ends_anywhere_gives_the_same_in_any_cuts, sample),
        partial(what_was_given_before_the_text_was_cut_off_is_never_taken_back, sample),
    )


def an_answer_comes_out_as_its_parts(sample: Sample) -> None:
    found = outcome(run(sample.parser(), [sample.text]))
    assert (found.content, found.reasoning, found.calls) == (sample.content, sample.reasoning, sample.calls)


def single_characters_give_what_the_whole_text_gives(sample: Sample) -> None:
    assert run(sample.parser(), list(sample.text)) == run(sample.parser(), [sample.text])


def any_cuts_give_what_the_whole_text_gives(sample: Sample) -> None:
    @settings(max_examples=25, deadline=None)
    @given(places=st.lists(st.integers(0, 10_000), max_size=12))
    def in_cuts(places: list[int]) -> None:
        assert run(sample.parser(), cut(sample.text, places)) == run(sample.parser(), [sample.text])

    in_cuts()


def an_answer_that_ends_anywhere_gives_the_same_in_any_cuts(sample: Sample) -> None:
    @settings(max_examples=20, deadline=None)
    @given(end=st.integers(0, 10_000), places=st.lists(st.integers(0, 10_000), max_size=6))
    def in_cuts(end: int, places: list[int]) -> None:
        text = sample.text[: end % (len(sample.text) + 1)]
        assert run(sample.parser(), cut(text, places)) == run(sample.parser(), [text])

    in_cuts()


def what_was_given_before_the_text_was_cut_off_is_never_taken_back(sample: Sample) -> None:
    whole = outcome(run(sample.parser(), [sample.text]))
    for end in range(len(sample.text)):
        part = outcome(sample.parser().push(sample.text[:end]))
        assert whole.content.startswith(part.content)
        assert whole.reasoning.startswith(part.reasoning)
        assert whole.starts[: len(part.starts)] == part.starts
        for index, text in part.arguments.items():
            assert whole.arguments[index].startswith(text)


def test_every_family_has_a_sample() -> None:
    assert {family.name for family in FAMILIES} == {sample.family for sample in SAMPLES}


FRAGMENTS = sorted(
    {
        fragment
        for family in FAMILIES
        for holder in [family.parser]
        for kind in ("opens", "inner", "dropped")
        for fragment in getattr(holder, kind, ())
    }
    | {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<think>", "</think>", "\n", " ", "{", "}"}
    | {'"', '{"name": "now"', ', "arguments": {', '"city": "x"', "[", "]", ",", "(", ")", "=", ">", ":", "\\", "now"}
    | {"get_weather", 'name="now"', "function", "analysis", "to=functions.now", "[ARGS]", "```json", "word", "é", "3"}
)


@every_family
@settings(max_examples=60, deadline=None)
@given(fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=25), places=st.lists(st.integers(0, 500), max_size=8))
def test_no_soup_of_markup_upsets_a_parser(family: str, fragments: list[str], places: list[int]) -> None:
    text = "".join(fragments)
    sample = Sample(family, text, thinks=True)
    whole = run(sample.parser(), [text])
    assert run(sample.parser(), cut(text, places)) == whole
    outcome(whole)


@every_family
@settings(max_examples=25, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_text_without_markup_passes_through_unchanged(family: str, text: str) -> None:
    text = "A" + text.replace("<", "").replace("[", "")
    assert run(Sample(family, text, thinks=True).parser(), list(text)) == [Content(text)]


@every_family
def test_plain_text_is_never_delayed(family: str) -> None:
    parser = Sample(family, "").parser()
    assert parser.push("The answer") == [Content("The answer")]
    assert parser.push(" is ") == [Content(" is ")]
    assert parser.push("2.\n\n") == [Content("2.\n\n")]


def pushes(sample: Sample, *chunks: str) -> list[list[Piece]]:
    parser = sample.parser()
    return [parser.push(chunk) for chunk in chunks]


def test_json_arguments_stream_as_they_form() -> None:
    steps = pushes(
        Sample("hermes", ""), '<tool_call>{"name": "get_weather"', ', "arguments": {"ci', 'ty": "Pa', 'ris"}', "}</tool"
    )
    assert steps == [
        [ToolCallStart(0, "id0", "get_weather")],
        [ToolCallArguments(0, '{"ci')],
        [ToolCallArguments(0, 'ty": "Pa')],
        [ToolCallArguments(0, 'ris"}')],
        [],
    ]


def test_tagged_strings_stream_as_they_form() -> None:
    steps = pushes(Sample("qwen3_coder", ""), "<tool_call>\n<function=edit>", "\n<parameter=text>\nab", '"c\n', "d\n</")
    assert steps == [
        [ToolCallStart(0, "id0", "edit")],
        [ToolCallArguments(0, '{"text": "ab')],
        [ToolCallArguments(0, '\\"c')],
        [ToolCallArguments(0, "\\nd")],
    ]


def test_a_call_cut_off_after_its_name_keeps_its_arguments_open() -> None:
    text = hermes("get_weather", {"city": "Paris"})
    found = outcome(run(Sample("hermes", "").parser(), [text[: text.index("ris")]]))
    assert (found.content, found.starts[0].name, found.arguments[0]) == ("", "get_weather", '{"city": "Pa')
    text = coder("edit", path="/a", text=CODE)
    found = outcome(run(Sample("qwen3_coder", "").parser(), [text[: text.index("return")]]))
    assert (found.content, found.arguments[0]) == ("", '{"path": "/a", "text": "def f():\\n    ')


@pytest.mark.parametrize(
    ("family", "text", "arguments"),
    [
        ("qwen3_coder", "<function=now>\n<parameter=a>\n[1, 2", '{"a": [1, 2'),
        ("minimax", '<minimax:tool_call><invoke name="edit"><parameter name="path">/ab c', '{"path": "/ab c'),
        ("pythonic", "<|tool_call_start|>[now(a=1, b=[2, 3", '{"a": 1, "b": [2, 3'),
        ("gemma4", "<|tool_call>call:now{a:1,b:23", '{"a": 1, "b": 23'),
        ("harmony", ' to=functions.now<|channel|>commentary<|message|>{"a": ', '{"a": '),
        ("deepseek_v31", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{"a": "x', '{"a": "x'),
    ],
)
def test_a_value_cut_off_in_the_middle_is_not_lost(family: str, text: str, arguments: str) -> None:
    found = outcome(run(Sample(family, "").parser(), list(text)))
    assert (found.content, found.arguments[0]) == ("", arguments)


def test_a_call_cut_off_before_its_name_becomes_content_without_markers() -> None:
    assert run(Sample("hermes", "").parser(), ['Ok. <tool_call>\n{"name": "get_w']) == [Content('Ok. {"name": "get_w')]
    assert run(Sample("qwen3_coder", "").parser(), ["<tool_call>\n<function=get_w"]) == [Content("get_w")]
    assert run(Sample("qwen3_coder", "").parser(), ["<tool_call>\n<func"]) == []
    begun = kimi(("now", {}), ("get_weather", {}))
    pieces = run(Sample("kimi", "").parser(), [begun[: begun.index("weather")]])
    assert pieces[1:] == [ToolCallArguments(0, "{}"), Content("functions.get_")]


def test_markup_mentioned_in_prose_is_content() -> None:
    for family, text in [
        ("hermes", "Put it into <tool_call> and </tool_call>, as in <tool_call>[1]</tool_call>."),
        ("qwen3_coder", "Use <function=\nname> or <tool_call>."),
        ("minicpm5", "A <function> or <function name>, a <functional> one."),
        ("mistral", "[TOOL_CALLS] is a token"),
        ("pythonic", "<|tool_call_start|>[1, 2]"),
        ("gemma4", "<|tool_call>text"),
    ]:
        assert run(Sample(family, "").parser(), list(text)) == [Content(text)]


def test_arguments_that_are_not_json_reach_the_client_as_written() -> None:
    text = '<tool_call>{"name": "now", "arguments": {\'a\': 1}}</tool_call>Done.'
    found = outcome(run(Sample("hermes", "").parser(), [text]))
    assert (found.arguments[0], found.content) == ("{'a': 1}}", "Done.")


def test_reasoning_opens_only_where_an_answer_may_begin() -> None:
    text = "Write <think> to think."
    assert run(Sample("hermes", "", thinks=True).parser(), list(text)) == [Content(text)]


def test_half_a_marker_at_the_end_is_content() -> None:
    assert run(Sample("hermes", "").parser(), ["1 <tool"]) == [Content("1 <tool")]


def test_kimi_calls_keep_the_ids_that_the_model_gave() -> None:
    found = outcome(run(Sample("kimi", "").parser(), [kimi(("now", {}), ("now", {}))]))
    assert [start.id for start in found.starts] == ["functions.now:0", "functions.now:1"]


def test_mistral_calls_keep_the_id_that_the_model_gave() -> None:
    found = outcome(run(Sample("mistral", "").parser(), ["[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}"]))
    assert [start.id for start in found.starts] == ["abc"]


def test_half_a_surrogate_pair_can_still_be_sent() -> None:
    for family, text in [
        ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>'),
        ("pythonic", '<|tool_call_start|>[now(a="\\ud800")]<|tool_call_end|>'),
    ]:
        found = outcome(run(Sample(family, "").parser(), [text]))
        assert found.arguments[0].encode()
        assert found.calls == (("now", {"a": "\ud800"}),)


def test_deep_nesting_does_not_exhaust_a_parser() -> None:
    for family, text in [
        ("hermes", '<tool_call>{"x": ' + "[" * 5000 + "]" * 5000 + "}</tool_call>"),
        ("gemma4", "<|tool_call>call:now{a:" + "[" * 5000),
        ("qwen3_coder", "<function=now><parameter=a>" + "[" * 5000 + "</parameter></function>"),
        ("pythonic", "<|tool_call_start|>[now(a=" + "[" * 5000 + "]" * 5000 + ")]"),
    ]:
        assert merged(run(Sample(family, "").parser(), [text]))


def test_tools_of_either_shape_are_understood() -> None:
    flat = [tool["function"] for tool in TOOLS]
    anthropic = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in flat]
    text = coder("get_weather", city="5")
    for tools in (flat, anthropic):
        assert outcome(run(Sample("qwen3_coder", "", tools=tools).parser(), [text])).calls[0][1] == {"city": "5"}
