from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from chorus.text.parsers import FAMILIES, choose
from tests.text.parsers.samples import TOOLS, Call, Sample, outcome, run, tool
from tests.text.parsers.vocabulary import vocabularies_in

CALLERS = [family.name for family in FAMILIES if family.calls is not None]
every_caller = pytest.mark.parametrize("family", CALLERS)
both_vocabularies = pytest.mark.parametrize("added", [False, True], ids=["as text", "as tokens"])


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[LLTokenizer, dict[str, int]]]:
    found = vocabularies_in(tmp_path_factory.mktemp("grammar"))
    return {added: (each.tokenizer, each.added) for added, each in found.items()}


@cache
def accepts(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(source), log_level=0)
    assert not matcher.is_error(), matcher.get_error() + "\n" + source
    return matcher


def accepted(tokenizer: LLTokenizer, source: str, text: str) -> bool:
    matcher = accepts(tokenizer, source).deep_copy()
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


def grammar(family: str, choice: Any, parallel: bool, tokens: dict[str, int], **how: Any) -> str:
    made = choose(None, family).tool_grammar(TOOLS, choice, parallel, tokens=tokens, **how)
    assert made is not None
    kind, source = made
    assert kind == "lark"
    return source


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tagged(head: str, parameter: str, end: str, last: str, arguments: dict[str, Any]) -> str:
    values = {key: value if isinstance(value, str) else dumps(value) for key, value in arguments.items()}
    return head + "".join(parameter.replace("KEY", key) + value + end for key, value in values.items()) + last


def gemma(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case dict():
            return "{" + ",".join(f"{key}:{gemma(each, quote)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(gemma(each, quote) for each in value) + "]"
    return dumps(value)


def xtml_kind(value: Any) -> str:
    kinds = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}
    return kinds[type(value)]


def written(family: str, calls: list[Call]) -> str:
    """The calls as a model of the family writes them, in the spelling that its template has."""
    match family:
        case "hermes":
            return "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {dumps(a)}}}\n</tool_call>' for n, a in calls)
        case "llama3":
            return "; ".join(f'{{"name": "{n}", "parameters": {dumps(a)}}}' for n, a in calls)
        case "mistral":
            return "[TOOL_CALLS][" + ", ".join(f'{{"name": "{n}", "arguments": {dumps(a)}}}' for n, a in calls) + "]"
        case "mistral_v11":
            return "".join(f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}" for n, a in calls)
        case "deepseek":
            head = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
            body = "\n".join(f"{head}{n}\n```json\n{dumps(a)}\n```<｜tool▁call▁end｜>" for n, a in calls)
            return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"
        case "deepseek_v31":
            body = "".join(f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜>" for n, a in calls)
            return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"
        case "deepseek_v32":
            body = ""
            for name, arguments in calls:
                body += f'<｜DSML｜invoke name="{name}">\n'
                for key, value in arguments.items():
                    is_string = dumps(isinstance(value, str))
                    text = value if isinstance(value, str) else dumps(value)
                    body += f'<｜DSML｜parameter name="{key}" string="{is_string}">{text}</｜DSML｜parameter>\n'
                body += "</｜DSML｜invoke>\n"
            return f"<｜DSML｜function_calls>\n{body}</｜DSML｜function_calls>"
        case "harmony":
            ((n, a),) = calls
            return f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{dumps(a)}"
        case "kimi":
            body = "".join(
                f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{dumps(a)}<|tool_call_end|>"
                for i, (n, a) in enumerate(calls)
            )
            return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"
        case "kimi_k3":
            body = ""
            for number, (name, arguments) in enumerate(calls, 1):
                body += f'<|open|>call tool="{name}" index="{number}"<|sep|>'
                for key, value in arguments.items():
                    text = value if isinstance(value, str) else dumps(value)
                    body += (
                        f'<|open|>argument key="{key}" type="{xtml_kind(value)}"<|sep|>{text}<|close|>argument<|sep|>'
                    )
                body += "<|close|>call<|sep|>"
            return f"<|open|>tools<|sep|>{body}<|close|>tools<|sep|>"
        case "qwen3_coder":
            return "\n".join(
                tagged(
                    f"<tool_call>\n<function={n}>\n",
                    "<parameter=KEY>\n",
                    "\n</parameter>\n",
                    "</function>\n</tool_call>",
                    a,
                )
                for n, a in calls
            )
        case "glm" | "longcat":
            p = "longcat_" if family == "longcat" else ""
            key = f"<{p}arg_key>KEY</{p}arg_key>\n<{p}arg_value>"
            return "\n".join(
                tagged(f"<{p}tool_call>{n}\n", key, f"</{p}arg_value>\n", f"</{p}tool_call>", a) for n, a in calls
            )
        case "minimax" | "muse_spark":
            p = "" if family == "minimax" else "atem:"
            section = "minimax:tool_call" if family == "minimax" else "atem:function_calls"
            key, end, last = f'<{p}parameter name="KEY">', f"</{p}parameter>\n", f"</{p}invoke>\n"
            body = "".join(tagged(f'<{p}invoke name="{n}">\n', key, end, last, a) for n, a in calls)
            return f"<{section}>\n{body}</{section}>"
        case "minicpm5":
            return "".join(
                tagged(f'<function name="{n}">', '<param name="KEY">', "</param>", "</function>", a) for n, a in calls
            )
        case "gemma4":
            quote = '<|"|>'
            return "".join(f"<|tool_call>call:{n}{gemma(a, quote)}<tool_call|>" for n, a in calls)
        case "function_gemma":
            quote = "<escape>"
            return "".join(f"<start_function_call>call:{n}{gemma(a, quote)}<end_function_call>" for n, a in calls)
        case "pythonic":
            each = (f"{n}({', '.join(f'{k}={dumps(v)}' for k, v in a.items())})" for n, a in calls)
            return f"<|tool_call_start|>[{', '.join(each)}]<|tool_call_end|>"
    raise AssertionError(family)


words = st.text("abc XYZ.,'é日\n\\\"&", min_size=1, max_size=12).filter(lambda text: text == text.strip())


def optional(**values: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return values


weather = st.fixed_dictionaries(
    {"city": words}, optional=optional(days=st.integers(-9, 99), unit=st.sampled_from(["celsius", "kelvin"]))
)
edit = st.fixed_dictionaries(
    {"path": words, "text": words},
    optional=optional(
        force=st.booleans(),
        marks=st.lists(st.integers(0, 9), max_size=3),
        options=st.fixed_dictionaries({}, optional={"mode": words}),
    ),
)


def in_order(arguments: dict[str, Any]) -> dict[str, Any]:
    """Grammars follow the order of the schema."""
    order = [key for each in TOOLS for key in each["function"]["parameters"]["properties"]]
    return {key: arguments[key] for key in order if key in arguments}


one_call = st.one_of(
    st.tuples(st.just("get_weather"), weather.map(in_order)),
    st.tuples(st.just("edit"), edit.map(in_order)),
    st.tuples(st.just("now"), st.just({})),
)


@every_caller
@both_vocabularies
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_valid_call_is_accepted_and_reads_back(
    vocabularies: dict[bool, tuple[LLTokenizer, dict[str, int]]], family: str, added: bool, data: st.DataObject
) -> None:
    tokenizer, tokens = vocabularies[added]
    most = 1 if family == "harmony" else 3
    calls = data.draw(st.lists(one_call, min_size=1, max_size=most))
    text = written(family, calls)
    assert accepted(tokenizer, grammar(family, "required", True, tokens), text), text
    assert outcome(run(Sample(family, "").parser(), [text])).calls == tuple(calls)


def wrong(family: str) -> Iterator[str]:
    yield "The weather is fine."
    yield ""
    yield written(family, [("nosuch", {})])
    yield written(family, [("get_weather", {})])  # the city is required
    yield written(family, [("get_weather", {"city": "Rome", "days": [1]})])
    yield written(family, [("get_weather", {"city": "Rome", "unit": "miles"})])
    yield written(family, [("now", {})])[:-1]


@every_caller
@both_vocabularies
def test_an_invalid_call_is_refused(
    vocabularies: dict[bool, tuple[LLTokenizer, dict[str, int]]], family: str, added: bool
) -> None:
    tokenizer, tokens = vocabularies[added]
    source = grammar(family, "required", True, tokens)
    assert accepted(tokenizer, source, written(family, [("get_weather", {"city": "Rome", "days": 3})]))
    for text in wrong(family):
        assert not accepted(tokenizer, source, text), text


@every_caller
@both_vocabularies
def test_a_named_choice_allows_that_function_alone(
    vocabularies: dict[bool, tuple[LLTokenizer, dict[str, int]]], family: str, added: bool
) -> None:
    tokenizer, tokens = vocabularies[added]
    source = grammar(family, {"type": "function", "function": {"name": "now"}}, True, tokens)
    assert accepted(tokenizer, source, written(family, [("now", {})]))
    assert not accepted(tokenizer, source, written(family, [("get_weather", {"city": "Rome"})]))


@pytest.mark.parametrize("family", [name for name in CALLERS if name != "harmony"])
def test_several_calls_are_refused_unless_they_may_be_parallel(
    vocabularies: dict[bool, tuple[LLTokenizer, dict[str, int]]], family: str
) -> None:
    tokenizer, tokens = vocabularies[True]
    twice = written(family, [("now", {}), ("now", {})])
    assert accepted(tokenizer, grammar(family, "required", True, tokens), twice)
    assert not accepted(tokenizer, grammar(family, "required", False, tokens), twice)


@every_caller
@both_vocabularies
def test_reasoning_before_a_forced_call_stays_free(
    vocabularies: dict[bool, tuple[LLTokenizer, dict[str, int]]], family: str, added: bool
) -> None:
    tokenizer, tokens = vocabularies[added]
    call = written(family, [("now", {})])
    if family == "harmony":
        opened, closed = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
    else:
        opened, closed = "<think>", "</think>\n\n"
    thinking = grammar(family, "required", True, tokens, thinks=True)
    assert accepted(tokenizer, thinking, f"{opened}Which one?\nThis.{closed}{call}")
    assert accepted(tokenizer, thinking, call)
    inside = grammar(family, "required", True, tokens, starts_in_reasoning=True)
    assert accepted(tokenizer, inside, f"Which one?\nThis.{closed}{call}")
    assert not accepted(tokenizer, inside, "Which one?")


def test_a_choice_that_forces_nothing_is_refused() -> None:
    family = choose(None, "hermes")
    with pytest.raises(ValueError, match="'nosuch', which is not among the tools: get_weather, edit, now"):
        family.tool_grammar(TOOLS, {"type": "function", "function": {"name": "nosuch"}}, True)
    with pytest.raises(ValueError, match="'auto' forces no call"):
        family.tool_grammar(TOOLS, "auto", True)
    with pytest.raises(ValueError, match="without tools"):
        family.tool_grammar([], "required", True)


def test_a_family_without_calls_has_no_grammar() -> None:
    assert choose(None, "none").tool_grammar(TOOLS, "required", True) is None


def test_a_tool_with_only_optional_parameters_needs_no_separator(
    vocabularies: dict[bool, tuple[LLTokenizer, dict[str, int]]],
) -> None:
    tokenizer, _ = vocabularies[False]
    tools = [tool("f", a={"type": "integer"}, b={"type": "integer"}, c={"type": "integer"})]
    made = choose(None, "pythonic").tool_grammar(tools, "required", False)
    assert made is not None
    for inside, good in [("", 1), ("a=1", 1), ("c=3", 1), ("a=1, c=3", 1), (", a=1", 0), ("a=1,", 0), ("c=3, a=1", 0)]:
        assert accepted(tokenizer, made[1], f"<|tool_call_start|>[f({inside})]<|tool_call_end|>") == bool(good)
