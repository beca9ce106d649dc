"""Bodies that are right, one or more for each endpoint, and what can be done to them so that they are not."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.api import recorded_clients as clients

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
LIMITS = {CHAT: "max_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
"""The field that bounds an answer, by endpoint."""
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "Read", "arguments": '{"file_path": "/w/note.txt"}'}}


@dataclass(frozen=True)
class Sample:
    path: str
    body: dict[str, Any]


SAMPLES: Sequence[Sample] = (
    Sample(MESSAGES, clients.CLAUDE_CODE),
    Sample(MESSAGES, clients.CLAUDE_CODE | {"messages": clients.CLAUDE_CODE["messages"] + clients.CLAUDE_CODE_RESULT}),
    Sample(
        MESSAGES, {"messages": HELLO, "max_tokens": 4, "stop_sequences": ["a", "b"], "top_k": 3, "temperature": 1.0}
    ),
    Sample(
        "/v1/messages/count_tokens", {"messages": HELLO, "system": "Be brief.", "tools": clients.CLAUDE_CODE["tools"]}
    ),
    Sample(CHAT, clients.OPENCODE),
    Sample(CHAT, clients.CLINE),
    Sample(CHAT, clients.OPEN_WEBUI_ADJUSTED),
    Sample(CHAT, {"messages": HELLO, "n": 3, "logprobs": True, "top_logprobs": 20, "seed": 1, "logit_bias": {"5": 1}}),
    Sample(CHAT, {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
    Sample(
        CHAT,
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
                {"role": "tool", "tool_call_id": "call_1", "content": "plum"},
            ],
            "tools": clients.OPENCODE["tools"],
            "tool_choice": {"type": "function", "function": {"name": "Read"}},
            "parallel_tool_calls": False,
            "chat_template_kwargs": {"enable_thinking": True},
            "reasoning_effort": "low",
        },
    ),
    Sample(
        "/chat/completions",
        {
            "messages": [*HELLO, {"role": "assistant", "content": "x", "reasoning": "Hm."}, *HELLO],
            "enable_thinking": True,
            "logprobs": 3,
            "repetition_penalty": 0.0,
            "presence_penalty": 1,
            "presence_context_size": 0,
            "frequency_context_size": 20,
            "num_draft_tokens": 3,
            "draft_model": None,
        },
    ),
    Sample(CHAT, {"messages": HELLO, "role_mapping": {"user": "U: ", "assistant": "A: ", "stop": "\n"}}),
    Sample(COMPLETIONS, {"prompt": "hello", "echo": True, "n": 2, "stop": ["x", "yy"], "return_token_ids": True}),
    Sample(COMPLETIONS, {"prompt": ["one", "two"], "logprobs": 5, "stream": True, "min_p": 0.1, "top_k": 5}),
    Sample(COMPLETIONS, {"prompt": [[5, 6], [7]], "guided_regex": "[a-z]{1,4}", "repetition_penalty": 1.1}),
    Sample(
        COMPLETIONS, {"prompt": "hello", "guided_choice": ["yes", "no"], "xtc_probability": 0.5, "xtc_threshold": 0.1}
    ),
    Sample(COMPLETIONS, {"prompt": "hello", "grammar": 'root ::= "a" | "b"', "presence_penalty": 1}),
    Sample(COMPLETIONS, {"prompt": "hello", "guided_json": SCHEMA}),
    Sample(RESPONSES, {"input": "hello", "instructions": "Be brief.", "metadata": {"a": "b"}, "store": True}),
    Sample(
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"type": "function_call", "call_id": "c1", "name": "Read", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "plum"},
            ],
            "tools": [{"type": "function", "name": "Read", "parameters": clients.READ_PARAMETERS, "strict": True}],
            "tool_choice": "required",
            "stream": True,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 3,
        },
    ),
    Sample(RESPONSES, {"input": "hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}),
    Sample(RESPONSES, {"input": "hello", "previous_response_id": "resp_0"}),
    Sample("/v1/embeddings", {"input": ["one", "two"], "encoding_format": "base64"}),
    Sample("/tokenize", {"prompt": "hello", "return_token_strs": True}),
    Sample("/tokenize", {"messages": HELLO, "tools": clients.OPENCODE["tools"]}),
    Sample("/detokenize", {"tokens": [1, 2, 3, 400]}),
    Sample("/requests/cancel", {"id": "5f0c2a9e"}),
    Sample("/models/pull", {"model": "acme/none", "wait": False}),
    Sample("/cluster/plan", {"add": ["laptop=16GB:10", "24GB"]}),
)
GETS = (
    "/",
    "/health",
    "/health/live",
    "/health/ready",
    "/model/info",
    "/cluster/status",
    "/v1/models",
    "/v1/models/default_model",
    "/v1/responses/resp_0",
    "/openapi.json",
    "/metrics",
    "/events",
    "/static/app/main.js",
    "/requests",
    "/models/pulls",
)

# Put around what must stand in JSON exactly so, though no Python value is written like that.
_VERBATIM = "\x01verbatim:"
NUMBERS: Sequence[Any] = (
    *(0, -1, 1, 2, 16, 64, 65, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 10**40, -(10**40)),
    *(0.5, 1e-320, 1e308, -0.0, 2.0, 1e16),
    *(
        _VERBATIM + text
        for text in ("1e400", "-1e400", "NaN", "Infinity", "-0", "1E-999", "01", "1.", "0x10", "9" * 5000)
    ),
)
TEXTS: Sequence[str] = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "\r\n",
        "\x7f",
        "null",
        "true",
        "{}",
        "[]",
        '"',
        "\\",
        "'; --",
        "../../etc/passwd",
        "%00",
        "%s%n",
    ),
    *(
        "\ud800",
        "\udc00",
        "a\ud800b",
        "\ufffe",
        "\U0010ffff",
        "\u202e",
        "\u0300" * 50,
        "👩‍👩‍👧‍👦",
        "ß" * 9,
        "İ",
        "\u2028",
    ),
    *(
        "<|im_end|>",
        "<|im_start|>system\n",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "{{ 7*7 }}",
        "{% for x in y %}",
    ),
    *("a" * 300, "\n" * 4000, "é" * 3000, "a " * 2500, "\x1b[2J", "🙂" * 1500, "data: [DONE]\n\n"),
)
OTHERS: Sequence[Any] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [{}],
    {"": None},
    [None],
    {"type": "text"},
    {"$ref": "#"},
    [1, "a", None],
)


def written(value: Any) -> bytes:
    """JSON, with numbers that Python would not write."""
    text = json.dumps(value)
    return re.sub(r'"\\u0001verbatim:([^"]*)"', r"\1", text).encode()


def nasty(rng: random.Random) -> Any:
    value = rng.choice(rng.choice((NUMBERS, TEXTS, OTHERS)))
    return copy.deepcopy(value)


def nested(rng: random.Random, value: Any) -> Any:
    """Deep inside lists or objects; Python writes JSON of a few hundred levels, no more."""
    for _ in range(int(10 ** rng.uniform(0, 2.3))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in _places(item, (*path, key)))]


def mutated(rng: random.Random, body: dict[str, Any], times: int) -> dict[str, Any]:
    """The body with some of its values replaced, dropped, repeated, wrapped or joined by others."""
    box = {"body": copy.deepcopy(body)}
    for _ in range(times):
        *outer, last = rng.choice(_places(box)[1:])
        parent: Any = box
        for key in outer:
            parent = parent[key]
        rng.choice(_MUTATIONS)(rng, parent, last)
    return box["body"]


def _replace(rng: random.Random, parent: Any, key: Any) -> None:
    parent[key] = nasty(rng)


def _wrap(rng: random.Random, parent: Any, key: Any) -> None:
    parent[key] = nested(rng, parent[key])


def _drop(rng: random.Random, parent: Any, key: Any) -> None:
    if len(parent) > 1:
        del parent[key]


def _add(rng: random.Random, parent: Any, key: Any) -> None:
    if isinstance(parent[key], dict):
        parent[key][rng.choice((*TEXTS[:40], *_FIELDS))] = nasty(rng)
    elif isinstance(parent[key], list):
        parent[key].insert(rng.randrange(len(parent[key]) + 1), nasty(rng))
    else:
        parent[key] = nasty(rng)


def _repeat(rng: random.Random, parent: Any, key: Any) -> None:
    value = parent[key]
    if isinstance(value, (list, str)):
        parent[key] = value * int(10 ** rng.uniform(0, 3)) if len(str(value)) < 2000 else value
    else:
        parent[key] = [value] * int(10 ** rng.uniform(0, 3))


def _stretch(rng: random.Random, parent: Any, key: Any) -> None:
    if isinstance(parent[key], str):
        at = rng.randrange(len(parent[key]) + 1)
        parent[key] = parent[key][:at] + rng.choice(TEXTS) + parent[key][at:]
    elif isinstance(parent[key], (int, float)):
        parent[key] = rng.choice(NUMBERS)
    else:
        _add(rng, parent, key)


_MUTATIONS: Sequence[Callable[[random.Random, Any, Any], None]] = (
    _replace,
    _replace,
    _wrap,
    _drop,
    _add,
    _repeat,
    _stretch,
)
_FIELDS = sorted({key for sample in SAMPLES for key in sample.body})


def tamed(rng: random.Random, path: str, body: Any) -> Any:
    """Mostly a short answer: requests are to be many, and each engine step is time that others do not have."""
    if path in LIMITS and isinstance(body, dict) and rng.random() < 0.95:
        return {key: value for key, value in body.items() if key != "max_completion_tokens"} | {
            LIMITS[path]: rng.randint(1, 8)
        }
    return body


def damaged(rng: random.Random, body: bytes) -> bytes:
    """The text of a body that is no JSON any more, or not quite."""
    at = rng.randrange(len(body) + 1)
    deep = int(10 ** rng.uniform(1, 5))
    return rng.choice(
        (
            lambda: body[:at],
            lambda: body[:at] + bytes(rng.randrange(256) for _ in range(rng.randint(1, 8))) + body[at:],
            lambda: (
                body[:at]
                + rng.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00"))
                + body[at:]
            ),
            lambda: b"{" + b",".join(rng.choice(_DOUBLED) for _ in range(rng.randint(1, 4))) + b"," + body[1:],
            lambda: b"\xef\xbb\xbf" + body,
            lambda: body.decode().encode("utf-16"),
            lambda: body + rng.choice((b"{}", b"\0", b"\n" * 1000, b"]", body)),
            lambda: b'{"messages": ' + b"[" * deep,
            lambda: b'{"input": ' + b'{"a":' * deep + b"1" + b"}" * deep + b"}",
            lambda: b'{"messages":[{"role":"user","content":"' + b"\\u0041" * deep + b'"}]}',
            lambda: b"[" * deep + b"]" * deep,
            lambda: b'{"prompt": "' + b"\\" * (deep | 1) + b'"}',
            lambda: b'{"prompt": ' + b"9" * deep + b"}",
            lambda: bytes(rng.randrange(256) for _ in range(rng.randint(0, 300))),
        )
    )()


_DOUBLED = (
    b'"model": null',
    b'"messages": null',
    b'"n": 64',
    b'"stream": true',
    b'"": {}',
    b'"__proto__": {}',
    b'"model": "x"',
)


def large(rng: random.Random) -> Sample:
    """Counts that multiply: stop strings and logprobs times choices, tools, long texts, long histories."""
    size = int(10 ** rng.uniform(1, 5))
    choices = rng.choice((1, 2, 16, 64))
    text = rng.choice(("a", "ab" * 10, "\n", "é", "x ")) * size
    turns = [{"role": rng.choice(("user", "assistant")), "content": "hi"} for _ in range(min(size, 3000))]
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    items = [
        {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        for number in range(min(size, 8000))
    ]
    return rng.choice(
        (
            lambda: Sample(
                COMPLETIONS, {"prompt": "hello", "n": choices, "stop": [text[:-1] + str(i) for i in range(4)]}
            ),
            lambda: Sample(CHAT, {"messages": HELLO, "n": choices, "stop": [str(i) for i in range(size)]}),
            lambda: Sample(CHAT, {"messages": HELLO, "n": choices, "logprobs": True, "top_logprobs": 20}),
            lambda: Sample(CHAT, {"messages": HELLO, "tools": [tool | {"n": i} for i in range(min(size, 5000))]}),
            lambda: Sample(
                CHAT,
                {
                    "messages": HELLO,
                    "tool_choice": "required",
                    "tools": [
                        {"type": "function", "function": {"name": f"f{i}", "parameters": SCHEMA, "strict": True}}
                        for i in range(min(size, 300))
                    ],
                },
            ),
            lambda: Sample(CHAT, {"messages": [{"role": "user", "content": text}]}),
            lambda: Sample(CHAT, {"messages": turns}),
            lambda: Sample(
                CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * min(size, 20000)}]}
            ),
            lambda: Sample(CHAT, {"messages": [*HELLO, {"role": "assistant", "tool_calls": [_nested_call(size)]}]}),
            lambda: Sample(MESSAGES, {"messages": HELLO, "max_tokens": 4, "stop_sequences": [text, text + "b"]}),
            lambda: Sample(RESPONSES, {"input": items}),
            lambda: Sample(RESPONSES, {"input": text}),
            lambda: Sample(COMPLETIONS, {"prompt": [5] * min(size * 3, 300000)}),
            lambda: Sample(COMPLETIONS, {"prompt": ["a"] * min(size, 5000), "n": choices}),
            lambda: Sample(COMPLETIONS, {"prompt": "a", "logit_bias": {str(i): 1 for i in range(min(size, 20000))}}),
            lambda: Sample("/tokenize", {"prompt": text, "return_token_strs": True}),
            lambda: Sample("/detokenize", {"tokens": [rng.randrange(512)] * min(size * 5, 400000)}),
            lambda: Sample("/v1/embeddings", {"input": ["a"] * (size if size > 2048 else min(size, 200))}),
        )
    )()


def _nested_call(size: int) -> dict[str, Any]:
    deep = min(size, 30000)
    return CALL | {"function": {"name": "f", "arguments": '{"a":' * deep + "1" + "}" * deep}}
