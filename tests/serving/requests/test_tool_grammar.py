"""Whatever a grammar of calls lets through, the family's parser reads as arguments that the tool's schema allows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from chorus.messages.grammar import Grammar
from chorus.serving.requests.tool_grammar import CHANNELS, CannotEnforce, _opening, forced_calls, strict_calls
from chorus.text.parsers import FAMILIES, ParserFamily, choose
from tests.text.parsers.samples import Sample, outcome, run
from tests.text.parsers.vocabulary import END_OF_TEXT, Vocabulary, vocabularies_in

CALLERS = [family.name for family in FAMILIES if family.calls is not None]
every_caller = pytest.mark.parametrize("family", CALLERS)
both_vocabularies = pytest.mark.parametrize("added", [False, True], ids=["as text", "as tokens"])
SCHEMAS_EACH = 6

DEFS = {
    "unit": {"type": "string", "enum": ["C", "F"]},
    "tree": {
        "type": "object",
        "properties": {"leaf": {"type": "string"}, "next": {"$ref": "#/$defs/tree"}},
        "required": ["leaf"],
        "additionalProperties": False,
    },
}
# Texts that one reader or another may take for something else.
TRAPS = [
    "null",
    " null ",
    "5",
    '"q"',
    "'q'",
    "true",
    "None",
    "",
    " a ",
    "a\nb",
    "/a / b . c",
    "~/x",
    "<b",
    "é日",
    "{}",
    "[1",
    "</",
    "</p",
    "</parameter",
    "<![CDATA[",
    "]]>",
    "&quot;",
    "\\",
    '"',
    "1e5",
    "(1)",
    "#",
    "</parameter>",
    "<parameter=x>",
    "</arg_value>",
    "</param>",
    "</atem:parameter>",
    "</｜DSML｜parameter>",
    "<|close|>argument<|sep|>",
    '<|"|>',
    "<escape>",
    "</function>",
    "</tool_call>",
    "}",
    "```",
    "<tool_call>",
    "<invoke",
]
ENUM = ["red", "5", "1.5", "null", "a b", "x\ny", 'say "q"', "/usr/lib", "é", "<i>", "true", "None", ""]


def strings(random: Random) -> dict[str, Any]:
    return random.choice(
        [
            {"type": "string"},
            {"type": "string", "description": "any"},
            {"type": "string", "pattern": random.choice(["^[A-Z][a-z]{2,5}$", "^a|b$", "[0-9]+/[0-9]+", "^/.*[.]py$"])},
            {"type": "string", "minLength": random.randrange(4), "maxLength": 4 + random.randrange(6)},
            {"type": "string", "minLength": 2, "pattern": "^[^<]*$"},
            {"type": "string", "format": random.choice(["date", "uuid", "ipv4", "date-time", "email"])},
            {"type": "string", "enum": random.sample(ENUM, 3)},
            {"enum": random.sample(ENUM, 2)},
            {"const": random.choice(ENUM)},
            {"$ref": "#/$defs/unit"},
            {"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^[a-c]+$"}]},
            {"anyOf": [{"type": "string", "pattern": "^x+$"}, {"type": "string", "maxLength": 2}]},
        ]
    )


def mixed(random: Random) -> dict[str, Any]:
    return random.choice(
        [
            {"type": ["string", "null"]},
            {"type": ["string", "null"], "pattern": "^n.l.*$"},
            {"anyOf": [strings(random), {"type": "null"}]},
            {"anyOf": [strings(random), {"type": "integer", "minimum": 10}]},
            {"type": ["string", "boolean", "object"], "additionalProperties": {"type": "integer"}},
            {"enum": ["a", 1, None, "1", "None", True]},
            {"type": ["string", "array"], "items": {"type": "string"}, "maxItems": 2},
            {},
        ]
    )


def others(random: Random) -> dict[str, Any]:
    return random.choice(
        [
            {"type": "integer", "minimum": 1, "maximum": 99},
            {"type": "number"},
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["integer", "null"]},
            {"enum": [1, 2.5, None]},
            {"type": "array", "items": strings(random), "maxItems": 3},
            {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            {"type": "object", "properties": {"k": strings(random), "o": mixed(random)}, "required": ["k"]},
            {"type": "object", "additionalProperties": {"type": "boolean"}},
            {"$ref": "#/$defs/tree"},
            {"anyOf": [{"type": "array", "items": {"type": "null"}}, {"type": "boolean"}]},
        ]
    )


def random_tool(random: Random) -> dict[str, Any]:
    names = ["city", "a_b", "x1", "path"][: random.randint(1, 4)]
    kinds: list[Callable[[Random], dict[str, Any]]] = [strings, strings, mixed, others]
    schema = {
        "type": "object",
        "properties": {name: random.choice(kinds)(random) for name in names},
        "required": [name for name in names if random.random() < 0.6],
        "additionalProperties": False,
        "$defs": DEFS,
    }
    return {"type": "function", "function": {"name": "act", "parameters": schema}}


@dataclass(frozen=True)
class Walker:
    """A model that tries what the grammar might have forgotten to forbid, and likes to come to an end."""

    vocabulary: Vocabulary
    random: Random
    closers: list[str]

    def walk(self, grammar: Grammar, said: str) -> str | None:
        """The text; None where it did not come to an end."""
        tokenizer = self.vocabulary.tokenizer
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.source), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        spoken = tokenizer.tokenize_str(said, parse_special=True)
        assert matcher.try_consume_tokens(spoken) == len(spoken), said
        for step in range(150):
            if forced := matcher.compute_ff_tokens():
                assert matcher.consume_tokens(forced)
                spoken += forced
            allowed = self._allowed(matcher)
            ended = END_OF_TEXT in allowed
            if ended and (len(allowed) == 1 or self.random.random() < 0.4):
                return self.vocabulary.decode(spoken)
            spoken += self._say(matcher, [token for token in allowed if token != END_OF_TEXT], step)
        return None

    def _say(self, matcher: LLMatcher, allowed: list[int], step: int) -> list[int]:
        if len(allowed) > 40:
            wants_end = self.random.random() < (0.4 if step < 40 else 0.95)
            fragment = self.random.choice(self.closers if wants_end else TRAPS)
            tokens = self.vocabulary.tokenizer.tokenize_str(fragment, parse_special=True)
            if taken := matcher.try_consume_tokens(tokens):
                return tokens[:taken]
        token = self.random.choice(allowed)
        assert matcher.consume_token(token)
        return [token]

    def _allowed(self, matcher: LLMatcher) -> list[int]:
        mask = allocate_token_bitmask(1, self.vocabulary.tokenizer.vocab_size)
        fill_next_token_bitmask(matcher, mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return [*map(int, np.flatnonzero(bits))]


def closers(family: ParserFamily) -> list[str]:
    inner = [mark for mark in (*getattr(family.parser, "inner", ()),) if "/" in mark or "|" in mark or "escape" in mark]
    return [
        *inner,
        *(f"\n{mark}" for mark in inner),
        '"',
        '"',
        "}",
        "]",
        '"}',
        '"]',
        "]]></param>",
        "1/2",
        "b",
        ".py",
        "x",
    ]


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Vocabulary]:
    return vocabularies_in(tmp_path_factory.mktemp("calls"))


def cuts(text: str, random: Random) -> list[str]:
    places = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(8)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@every_caller
@both_vocabularies
def test_all_that_a_grammar_lets_through_reads_back_as_the_schema_says(
    vocabularies: dict[bool, Vocabulary], family: str, added: bool
) -> None:
    chosen, vocabulary = choose(None, family), vocabularies[added]
    finished = refused = called = 0
    for seed in range(SCHEMAS_EACH):
        random = Random(f"{family} {added} {seed}")
        tools = [random_tool(random)]
        schema = tools[0]["function"]["parameters"]
        walker = Walker(vocabulary, random, closers(chosen))
        try:
            forced = forced_calls(chosen, tools, "required", True, vocabulary.added, ["act"])
            strict = strict_calls(chosen, tools, ["act"], True, vocabulary.added)
        except CannotEnforce:
            refused += 1
            continue
        opening = _opening(chosen) if family != CHANNELS else "<|channel|>commentary to"
        said = f"Well.{opening}" if opening and family != CHANNELS else opening or '{"'
        for grammar, beginning in ((forced, ""), (strict, said)):
            assert grammar is not None
            if (text := walker.walk(grammar, beginning)) is None:
                continue
            finished += 1
            pieces = run(Sample(family, "", tools=tools).parser(), [text])
            found = outcome(pieces)
            for name, arguments in found.calls:
                assert name == "act"
                assert_valid(arguments, schema, text)
            called += len(found.calls)
            assert found.calls, text
            assert run(Sample(family, "", tools=tools).parser(), cuts(text, random)) == pieces
    assert refused <= SCHEMAS_EACH // 2
    assert finished >= SCHEMAS_EACH
    assert called >= finished


def assert_valid(arguments: Any, schema: dict[str, Any], text: str) -> None:
    try:
        jsonschema.validate(arguments, schema)
    except jsonschema.ValidationError as error:
        raise AssertionError(f"{error.message} in {arguments}\nof {text!r}\nby {json.dumps(schema)}") from None


def tool(name: str = "act", required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def allows(vocabulary: Vocabulary, grammar: Grammar | None, text: str) -> bool:
    assert grammar is not None
    matcher = LLMatcher(vocabulary.tokenizer, LLMatcher.grammar_from_lark(grammar.source), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = vocabulary.tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


TEXT = {"type": "string"}
STRICT = ["fine", "odd"]


@pytest.mark.parametrize(
    ("family", "parameters", "why"),
    [
        ("qwen3_coder", {"x": {"enum": ["a", "</parameter>"]}}, "parameter 'x'.*</parameter>.*take it out of the enum"),
        ("qwen3_coder", {"x": {**TEXT, "pattern": "(^a)b"}}, "parameter 'x'.*anchors at its ends"),
        ("glm", {"x": {**TEXT, "format": "json-pointer"}}, "json-pointer.*give a pattern"),
        ("glm", {"x": {**TEXT, "enum": ["a" * 40 + "!"], "pattern": "^(a+)+$"}}, "leave the pattern out"),
        ("glm", {"x": {"allOf": [{"anyOf": [{"const": str(n)} for n in range(40)]}] * 9}}, "write it as one schema"),
        ("glm", {"a b": TEXT}, "'a b'.*use letters"),
        ("minimax", {"x": {"const": "/a / b"}}, "'/a / b' would not be read back"),
        ("minimax", {"x": {"$ref": "#/properties/y"}, "y": TEXT}, "#/properties/y.*under \\$defs"),
        ("minicpm5", {"x": {"type": ["string", "null"], "enum": ["null", None]}}, "'null' would not be read back"),
        ("minimax", {"x": True, "y": {**TEXT, "format": "iri"}}, "parameter 'y'.*'iri'"),
        ("gemma4", {"x": {"type": "object", "minProperties": 1}}, "minProperties.*by required"),
        ("pythonic", {"a-b": TEXT}, "'a-b'.*letters, digits and _"),
        ("gemma4", {"x": {"enum": ['<|"|>']}}, "ends a string"),
        ("gemma4", {"x": {"type": "array", "prefixItems": [TEXT]}}, "prefixItems of a list"),
    ],
)
@pytest.mark.parametrize("forced", [False, True])
def test_what_a_markup_cannot_be_held_to_is_refused_by_name(
    family: str, parameters: dict[str, Any], why: str, forced: bool
) -> None:
    chosen, tools = choose(None, family), [tool("fine", x=TEXT), tool("odd", **parameters)]
    with pytest.raises(CannotEnforce, match=f"{family}.*'odd'.*{why}") as refusal:
        _ = (
            forced_calls(chosen, tools, "required", True, {}, STRICT)
            if forced
            else strict_calls(chosen, tools, STRICT, True, {})
        )
    assert refusal.value.tool == "odd"


@every_caller
def test_a_forced_call_is_possible_whatever_the_schema_says(family: str) -> None:
    odd = tool(
        "odd", ("a b", "gone"), **{"a b": TEXT, '<|"|>': True, "never": False, "x": {**TEXT, "pattern": "(^a)b"}}
    )
    grammar = forced_calls(choose(None, family), [odd], "required", True, {})
    assert grammar is not None
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar.source)) == ""


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": TEXT}}, "anyOf beside"),
        ({"type": "object", "additionalProperties": TEXT}, "any name"),
        ({"type": "object", "maxProperties": 2}, "maxProperties"),
        ({"type": "object", "properties": {"a": TEXT}, "required": ["b"], "additionalProperties": False}, "required"),
    ],
)
def test_arguments_that_cannot_be_written_one_by_one_are_refused(schema: dict[str, Any], why: str) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    with pytest.raises(CannotEnforce, match=f"'odd'.*{why}"):
        strict_calls(choose(None, "glm"), [odd], ["odd"], True, {})


def test_a_tool_named_as_the_mark_of_a_format_is_refused() -> None:
    with pytest.raises(CannotEnforce, match="another one"):
        strict_calls(choose(None, "deepseek_v31"), [tool("function")], ["function"], True, {})


def test_a_forced_call_that_is_not_strict_lets_through_what_cannot_be_held(
    vocabularies: dict[bool, Vocabulary],
) -> None:
    odd = tool(required=("x", "n"), x={**TEXT, "pattern": "(^a)b"}, n={"type": "integer"})
    grammar = forced_calls(choose(None, "minicpm5"), [odd], "required", False, {})
    call = '<function name="act"><param name="x">any</param><param name="n">{}</param></function>'
    assert allows(vocabularies[False], grammar, call.replace("{}", "5"))
    assert not allows(vocabularies[False], grammar, call.replace("{}", "five"))


@pytest.mark.parametrize(
    ("value", "possible"),
    [("Rome", True), ("rome", False), ("null", True), ("Null", True), ("Rome</parameter>", False), ("", False)],
)
def test_a_string_is_bare_text_of_its_pattern_and_null_is_a_word(
    vocabularies: dict[bool, Vocabulary], value: str, possible: bool
) -> None:
    nullable = tool(required=("x",), x={"type": ["string", "null"], "pattern": "^[A-Z][a-z]+$"})
    call = f"<tool_call>\n<function=act>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    strict = strict_calls(choose(None, "qwen3_coder"), [nullable], ["act"], True, {})
    assert allows(vocabularies[False], strict, f"See: {call}") is possible


@pytest.mark.parametrize(
    ("family", "schema", "value", "possible"),
    [
        # A word that is read as something else than the string it would be.
        ("qwen3_coder", {"anyOf": [TEXT, {"type": "boolean", "enum": [False]}]}, "true", False),
        ("qwen3_coder", {"anyOf": [TEXT, {"type": "boolean", "enum": [False]}]}, "false", True),
        ("qwen3_coder", {"anyOf": [TEXT, {"type": "boolean", "enum": [False]}]}, "truely", True),
        ("qwen3_coder", {"anyOf": [{**TEXT, "pattern": "^u"}, {"type": "array", "maxItems": 0}]}, "u'ab'", False),
        ("qwen3_coder", {"anyOf": [{**TEXT, "pattern": "^u"}, {"type": "array", "maxItems": 0}]}, "unit", True),
        ("qwen3_coder", {"anyOf": [TEXT, {"type": "integer", "minimum": 9}]}, "5", False),
        ("qwen3_coder", {"anyOf": [TEXT, {"type": "integer", "minimum": 9}]}, '"5"', True),
        ("qwen3_coder", {"allOf": [{"type": ["string", "null"]}, TEXT]}, "null", False),
        ("qwen3_coder", {"allOf": [{"type": ["string", "null"]}, TEXT]}, "nil", True),
        # Tidied, this path would not fit.
        ("minimax", {**TEXT, "pattern": "^/a / b"}, "/a / b", False),
        ("minimax", {**TEXT, "pattern": "^/a b"}, "/a b/c", True),
        ("minimax", TEXT, "/a / b", True),
    ],
)
def test_what_would_be_read_as_something_else_is_not_let_through(
    vocabularies: dict[bool, Vocabulary], family: str, schema: dict[str, Any], value: str, possible: bool
) -> None:
    grammar = forced_calls(choose(None, family), [tool(required=("x",), x=schema)], "required", True, {}, ["act"])
    if family == "minimax":
        inside = f'<invoke name="act">\n<parameter name="x">{value}</parameter>\n</invoke>\n'
        call = f"<minimax:tool_call>\n{inside}</minimax:tool_call>"
    else:
        call = f"<tool_call>\n<function=act>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert allows(vocabularies[False], grammar, call) is possible


def test_parameters_keep_to_the_order_of_the_schema_and_others_are_refused(
    vocabularies: dict[bool, Vocabulary],
) -> None:
    ordered = tool(required=("a",), a=TEXT, b=TEXT)
    grammar = strict_calls(choose(None, "glm"), [ordered], ["act"], True, {})

    def call(*names: str, line: str = "\n") -> str:
        body = "".join(f"<arg_key>{name}</arg_key>{line}<arg_value>v</arg_value>{line}" for name in names)
        return f"<tool_call>act{line}{body}</tool_call>"

    for names, possible in ((("a", "b"), 1), (("a",), 1), (("b",), 0), (("b", "a"), 0), (("a", "c"), 0), ((), 0)):
        for line in ("\n", ""):
            assert allows(vocabularies[False], grammar, call(*names, line=line)) is bool(possible), names


@every_caller
@both_vocabularies
def test_a_tool_that_is_not_strict_may_have_any_arguments(
    vocabularies: dict[bool, Vocabulary], family: str, added: bool
) -> None:
    """Its calls are read as calls, and none of a strict tool hides in them."""
    chosen, vocabulary = choose(None, family), vocabularies[added]
    tools = [tool("loose", x=TEXT)]
    held = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    strict_tool = {"type": "function", "function": {"name": "held", "parameters": held}}
    grammar = strict_calls(chosen, [*tools, strict_tool], ["held"], True, vocabulary.added)
    opening = _opening(chosen) if family != CHANNELS else "<|channel|>commentary to"
    for seed in range(3):
        walker = Walker(vocabulary, Random(f"{family} {added} loose {seed}"), closers(chosen))
        if (text := walker.walk(grammar, opening or '{"')) is None:
            continue
        for name, arguments in outcome(run(Sample(family, "", tools=[*tools, strict_tool]).parser(), [text])).calls:
            if name == "held":
                assert_valid(arguments, held, text)
            assert isinstance(arguments, dict)


def test_kimi_k3_may_wrap_its_answer_as_it_was_trained_to(vocabularies: dict[bool, Vocabulary]) -> None:
    grammar = strict_calls(choose(None, "kimi_k3"), [tool()], ["act"], True, vocabularies[True].added)
    said = "<|open|>response<|sep|>I look.<|close|>response<|sep|>"
    call = '<|open|>tools<|sep|><|open|>call tool="act" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    for text in (said, said + call, f"{said}{call}<|close|>message<|sep|>", call):
        assert allows(vocabularies[True], grammar, text), text
    assert not allows(vocabularies[True], grammar, said + call.replace('"act"', '"other"'))


def test_markup_with_a_token_in_its_middle_is_written_with_that_token(vocabularies: dict[bool, Vocabulary]) -> None:
    added = vocabularies[True].added
    grammar = strict_calls(choose(None, "deepseek_v32"), [tool(x=TEXT)], ["act"], True, added)
    text = (
        'Well.<｜DSML｜function_calls>\n<｜DSML｜invoke name="act">\n<｜DSML｜parameter name="x" string="true">a < b'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    )
    assert added["｜DSML｜"] in vocabularies[True].tokenizer.tokenize_str(text, parse_special=True)
    assert allows(vocabularies[True], grammar, text)
