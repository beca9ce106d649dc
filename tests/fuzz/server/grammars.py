"""Grammars and schemas that small limits do not see through: few bytes, much work."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.server.bodies import CHAT, COMPLETIONS, HELLO, MESSAGES, RESPONSES, Sample

Schema = dict[str, Any]


def hostile(rng: random.Random) -> Sample:
    """In any of the fields that take a grammar. Sizes are spread over orders of magnitude: most do no harm."""
    size = max(1, int(10 ** rng.uniform(0, 4.3)))
    if rng.random() < 0.6:
        return _asking_for_schema(rng, rng.choice(SCHEMAS)(rng, size))
    field, source = rng.choice(
        (
            lambda: ("guided_regex", rng.choice(REGEXES)(rng, size)),
            lambda: ("guided_grammar", rng.choice(LARKS)(rng, size)),
            lambda: ("grammar", rng.choice(GBNFS)(rng, size)),
            lambda: ("guided_choice", rng.choice(CHOICES)(rng, size)),
        )
    )()
    if rng.random() < 0.5:
        return Sample(COMPLETIONS, {"prompt": "hello", field: source, "n": rng.choice((1, 1, 2, 8))})
    return Sample(CHAT, {"messages": HELLO, field: source, "stream": rng.random() < 0.5})


def _asking_for_schema(rng: random.Random, schema: Any) -> Sample:
    strict = {"name": "f", "parameters": schema, "strict": True}
    return rng.choice(
        (
            lambda: Sample(
                CHAT, {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
            ),
            lambda: Sample(COMPLETIONS, {"prompt": "hello", "guided_json": schema, "n": rng.choice((1, 4))}),
            lambda: Sample(COMPLETIONS, {"prompt": "hello", "guided_json": json.dumps(schema)}),
            lambda: Sample(
                RESPONSES,
                {"input": "hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
            ),
            lambda: Sample(
                MESSAGES,
                {
                    "messages": HELLO,
                    "max_tokens": 4,
                    "output_config": {"format": {"type": "json_schema", "schema": schema}},
                },
            ),
            lambda: Sample(
                CHAT,
                {"messages": HELLO, "tool_choice": "required", "tools": [{"type": "function", "function": strict}]},
            ),
            lambda: Sample(
                CHAT, {"messages": HELLO, "tools": [{"type": "function", "function": strict}], "stream": True}
            ),
            lambda: Sample(
                MESSAGES,
                {
                    "messages": HELLO,
                    "max_tokens": 4,
                    "tool_choice": {"type": "any"},
                    "tools": [{"name": "f", "input_schema": schema, "strict": True}],
                },
            ),
        )
    )()


def _chain(link: Callable[[str], Schema], size: int) -> Schema:
    """Definitions that each need the next one."""
    names = {f"d{number}": link(f"#/$defs/d{number + 1}") for number in range(size)}
    return {"$defs": names | {f"d{size}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def _nest(link: Callable[[Schema], Schema], size: int) -> Schema:
    schema: Schema = {"type": "string"}
    # Deeper than this Python's own writer gives up before anything is sent.
    for _ in range(min(size, 300)):
        schema = link(schema)
    return schema


def _doubling(size: int) -> Schema:
    """Each definition holds the next one twice: two to the power of the size."""
    both = {
        f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(min(size, 60))
    }
    return {"$defs": both | {f"d{len(both)}": {"type": "null"}}, "$ref": "#/$defs/d0"}


SCHEMAS: Sequence[Callable[[random.Random, int], Any]] = (
    lambda rng, size: _chain(lambda to: {"$ref": to}, size),
    lambda rng, size: _chain(lambda to: {"anyOf": [{"$ref": to}, {"type": "null"}]}, min(size, 3000)),
    lambda rng, size: _chain(lambda to: {"oneOf": [{"$ref": to}, {"const": to}]}, min(size, 3000)),
    lambda rng, size: _chain(lambda to: {"allOf": [{"$ref": to}, {"minLength": 1}]}, min(size, 3000)),
    lambda rng, size: _chain(
        lambda to: {"type": "object", "properties": {"a": {"$ref": to}}, "required": ["a"]}, min(size, 3000)
    ),
    lambda rng, size: _chain(
        lambda to: {"type": "array", "items": {"$ref": to}, "minItems": 2, "maxItems": 3}, min(size, 3000)
    ),
    lambda rng, size: _nest(lambda inner: {"type": "array", "items": inner}, size),
    lambda rng, size: _nest(lambda inner: {"anyOf": [inner, {"type": "integer"}]}, size),
    lambda rng, size: _nest(lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]}, size),
    lambda rng, size: _nest(lambda inner: {"not": inner}, size),
    lambda rng, size: _doubling(size),
    lambda rng, size: {"type": "integer", "multipleOf": int(10 ** rng.uniform(0, 8)) | 1},
    lambda rng, size: {"type": "number", "multipleOf": 10 ** -rng.uniform(0, 12)},
    lambda rng, size: {"type": "integer", "minimum": rng.randrange(10**18), "maximum": 10**18 + rng.randrange(10**18)},
    lambda rng, size: {
        "allOf": [{"type": "integer", "multipleOf": n} for n in rng.sample(range(2, 400), min(size, 40))]
    },
    lambda rng, size: {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(size)}},
    lambda rng, size: {
        "type": "object",
        "properties": {f"p{n}": {} for n in range(size)},
        "required": [f"p{n}" for n in range(0, size, 2)],
    },
    lambda rng, size: {
        "type": "object",
        "patternProperties": {f"^{chr(97 + n % 26)}{{{n}}}": {"type": "null"} for n in range(min(size, 500))},
    },
    lambda rng, size: {
        "type": "object",
        "additionalProperties": True,
        "minProperties": size,
        "maxProperties": size * 2,
    },
    lambda rng, size: {"enum": [f"value {n}" for n in range(size)]},
    lambda rng, size: {"enum": [{"a": n, "b": [n] * 5} for n in range(min(size, 3000))]},
    lambda rng, size: {"const": "x" * size},
    lambda rng, size: {"type": "string", "minLength": size, "maxLength": size * 10},
    lambda rng, size: {"type": "string", "pattern": rng.choice(REGEXES)(rng, min(size, 2000))},
    lambda rng, size: {"type": "string", "pattern": "^" + "(a?)" * min(size, 200) + "$", "minLength": min(size, 200)},
    lambda rng, size: {
        "type": "string",
        "format": rng.choice(("date-time", "email", "uri", "ipv6", "uuid", "regex", "x")),
    },
    lambda rng, size: {"type": "array", "items": {"type": "string"}, "minItems": size, "maxItems": size * 2},
    lambda rng, size: {"type": "array", "uniqueItems": True, "prefixItems": [{"type": "string"}] * min(size, 3000)},
    lambda rng, size: {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    lambda rng, size: {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"},
    lambda rng, size: {
        "$ref": rng.choice(
            ("#", "#/", "#/$defs/none", "http://127.0.0.1:9/x.json", "file:///etc/passwd", "#/$ref", "a" * size)
        )
    },
    lambda rng, size: {
        "oneOf": [{"type": "object", "properties": {"k": {"const": n}}} for n in range(min(size, 2000))]
    },
    lambda rng, size: {"anyOf": [{"type": "string", "pattern": f".*{n}.*"} for n in range(min(size, 60))]},
    lambda rng, size: {"if": {"type": "string"}, "then": {"minLength": size}, "else": {"type": "null"}},
    lambda rng, size: {"type": ["string", "null", "x", 5][: size % 5]},
    lambda rng, size: {
        "x-guidance": {"whitespace_pattern": "(" * min(size, 300) + "a" + ")*" * min(size, 300)},
        "type": "object",
    },
    lambda rng, size: {"x-guidance": {"lark_grammar": "start: /a/"}, "type": "object"},
    lambda rng, size: {"type": "object", "properties": {"\ud800": {}, "": {}, "\0": {}, "é" * min(size, 1000): {}}},
    lambda rng, size: rng.choice(
        (True, False, {}, [], None, "string", {"type": None}, {"properties": []}, {"required": "a"})
    ),
)
REGEXES: Sequence[Callable[[random.Random, int], str]] = (
    lambda rng, size: f"(a{{0,{size}}}){{0,{size}}}",
    lambda rng, size: f"((a{{1,{size}}}b){{1,{size}}}c){{1,{size}}}",
    lambda rng, size: "(.*a)" * min(size, 40),
    lambda rng, size: "(a|b)*a" + "(a|b)" * min(size, 40),
    lambda rng, size: "(" * size + "a" + ")" * size,
    lambda rng, size: "|".join(f"word{n}" for n in range(size)),
    lambda rng, size: f"[\\p{{L}}\\p{{N}}]{{{size}}}",
    lambda rng, size: f".{{{size}}}",
    lambda rng, size: "(?i:" + "straße" * min(size, 2000) + ")",
    lambda rng, size: "a" * size + "?" * min(size, 1000),
    lambda rng, size: rng.choice(
        ("(?=a)b", "(a)\\1", "(?<=a)b", "[", "(", "*", "\\", "a{2,1}", "a{99999999999}", "[z-a]", "\\p{No}", "", "^$")
    ),
    lambda rng, size: "[" + "".join(chr(0x100 + n) for n in range(min(size, 5000))) + "]+",
    lambda rng, size: "(a*)*" * min(size, 1000),
)
LARKS: Sequence[Callable[[random.Random, int], str]] = (
    lambda rng, size: "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(size)) + f'\nr{size}: "a"',
    lambda rng, size: "start: r0\n" + "\n".join(f'r{n}: r{n + 1} | "{n}"' for n in range(size)) + f'\nr{size}: "a"',
    lambda rng, size: (
        "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(min(size, 40))) + f'\nT{min(size, 40)}: "a"'
    ),
    lambda rng, size: (
        "start: r0\n"
        + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(min(size, 64)))
        + f'\nr{min(size, 64)}: "a"?'
    ),
    lambda rng, size: 'start: e\ne: e "+" e | e "*" e | /[0-9]+/ | e e',
    lambda rng, size: 'start: start "a" | ',
    lambda rng, size: f'start: ("a" | "ab"){{{size}}}',
    lambda rng, size: f"start: /(a|b)*a(a|b){{{min(size, 40)}}}/",
    lambda rng, size: "start: T\nT: " + " & ".join(f"/.*{chr(97 + n % 26)}{n}.*/" for n in range(min(size, 40))),
    lambda rng, size: "start: T\nT: ~" + "(" * min(size, 3000) + "/a/" + ")" * min(size, 3000),
    lambda rng, size: "start: %json " + json.dumps(rng.choice(SCHEMAS)(rng, min(size, 1000))),
    lambda rng, size: "start: @" + "a" * min(size, 100),
    lambda rng, size: '%llguidance {"no_forcing": true, "x": 1}\nstart: "a"',
    lambda rng, size: "start: <|im_end|> <[5]> <[0-99999999]> <nope>",
    lambda rng, size: f'start: gen[max_tokens={size}, stop="a", temperature=9] "b"',
    lambda rng, size: "start: " + " | ".join(f'"{n}"' for n in range(size)),
    lambda rng, size: "start: " + "(" * size + '"a"' + ")" * size,
    lambda rng, size: "start: " + '"a"? ' * min(size, 5000),
    lambda rng, size: "%import common.INT\n%ignore /" + " " * min(size, 1000) + "/\nstart: INT",
    lambda rng, size: rng.choice(
        ("", "start", "start:", 'START: "a"', "start: undefined", "\n" * size, "start: /[/", "// only a comment")
    ),
)
GBNFS: Sequence[Callable[[random.Random, int], str]] = (
    lambda rng, size: "\n" * size * 3,
    lambda rng, size: " \n" * size + 'root ::= "a"',
    lambda rng, size: "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(size)) + f'\nr{size} ::= "a"',
    lambda rng, size: "root ::= " + "(" * min(size, 3000) + '"a"' + ")" * min(size, 3000),
    lambda rng, size: 'root ::= root "a" | "b"',
    lambda rng, size: f"root ::= [a-z]{{{size},}}",
    lambda rng, size: "root ::= " + "a" * size,
    lambda rng, size: 'root ::= "' + "\\" * size,
    lambda rng, size: "root ::= " + " | ".join(f'"{n}"' for n in range(size)),
    lambda rng, size: "root ::= [" + "^" * min(size, 100) + "\\u" + "]",
    lambda rng, size: "a-" * size + " ::= b",
)
CHOICES: Sequence[Callable[[random.Random, int], Any]] = (
    lambda rng, size: [f"choice {n}" for n in range(min(size, 1500))],
    lambda rng, size: ["a" * n for n in range(1, min(size, 900))] or ["a"],
    lambda rng, size: ["x" * size],
    lambda rng, size: ["\ud800"],
    lambda rng, size: ["a", "a", "", '"', "\\", "\n", "\0"],
)
