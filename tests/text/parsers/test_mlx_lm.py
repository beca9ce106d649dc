"""The calls that mlx-lm's own parsers read, ours read too; where the two differ, it is on purpose."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from typing import Any

import mlx_lm.tool_parsers
import pytest

from tests.text.parsers.samples import (
    CODE,
    NOW,
    PARIS,
    ROME,
    TOOLS,
    Sample,
    coder,
    glm,
    hermes,
    invoke,
    kimi,
    outcome,
    run,
    xtml,
)

OTHER_PARSERS = [module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)]
MANY = ("edit", {"path": "/srv/app/main.py", "text": "a < b", "force": True, "marks": [1, 2], "options": {"mode": "x"}})
MANY_WORDS = {
    "path": "/srv/app/main.py",
    "text": "a < b",
    "force": "true",
    "marks": "[1, 2]",
    "options": '{"mode": "x"}',
}
GEMMA_MANY = "call:edit{path:Q/srv/app/main.pyQ,text:Qa < bQ,force:true"

SAMPLES: list[tuple[str, str]] = [
    ("json_tools", hermes(*PARIS)),
    ("json_tools", hermes(*MANY)),
    ("qwen3_coder", coder("get_weather", city="Rome", days="3")),
    ("qwen3_coder", coder("get_weather", city="12", unit="kelvin")),
    ("qwen3_coder", coder("edit", **{**MANY_WORDS, "text": CODE})),
    ("qwen3_coder", coder("edit", path="a", text="x", force="True")),
    ("qwen3_coder", coder("now")),
    *(
        sample
        for name in ("glm47", "laguna")
        for sample in [
            (name, glm("get_weather", city="Rome", days="3")),
            (name, glm("edit", **MANY_WORDS)),
            (name, glm("get_weather", city="Rome", days="3").replace("\n", "")),
            (name, glm("edit", path="a", text="x", marks="(1, 2)")),
            (name, "<tool_call>now</tool_call>"),
            (name, hermes(*ROME)),
            (name, '<tool_call>{"tool": {"name": "get_weather", "arguments": {"city": "Rome"}}}</tool_call>'),
            (name, '<tool_call>get_weather\n{"city": "Rome", "days": 3}\n</tool_call>'),
        ]
    ),
    ("longcat", glm("get_weather", "longcat_", city="Rome", days="3")),
    ("longcat", glm("edit", "longcat_", **MANY_WORDS)),
    ("longcat", '<longcat_tool_call>{"name": "now", "arguments": {}}</longcat_tool_call>'),
    ("kimi_k2", kimi(PARIS, ROME, NOW)),
    ("kimi_k2", kimi(MANY)),
    (
        "kimi_k3",
        "<|open|>tools<|sep|>"
        + xtml("get_weather", 1, city=("string", "Rome"), days=("integer", "3"))
        + xtml("edit", 2, path=("string", "5"), text=("string", "&quot;"), force=("boolean", "true"))
        + "<|close|>tools<|sep|>",
    ),
    (
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="edit" index="1"<|sep|><|open|>json type="object"<|sep|>'
        f"{json.dumps(MANY[1])}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        "minimax_m2",
        f"<minimax:tool_call>\n{invoke('get_weather', city='Rome', days='3')}{invoke('now')}</minimax:tool_call>",
    ),
    ("minimax_m2", f"<minimax:tool_call>\n{invoke('edit', path='/a/b.py', marks='[1, 2]')}</minimax:tool_call>"),
    ("minimax_m2", f"<minimax:tool_call>\n{invoke('edit', path='~/a', text='x', force='yes')}</minimax:tool_call>"),
    ("minimax_m2", f"<minimax:tool_call>\n{invoke('edit', path='../a.b', text='1', force='0')}</minimax:tool_call>"),
    ("minicpm5", '<function name="get_weather"><param name="city">Rome</param><param name="days">3</param></function>'),
    ("minicpm5", f'<function name="edit"><param name="text"><![CDATA[{CODE}]]></param></function>'),
    ("minicpm5", "<function name='edit'><param name=\"marks\">[1, 2]</param></function>"),
    (
        "muse_spark",
        f"<atem:function_calls>\n{invoke('edit', 'atem:', **MANY_WORDS)}{invoke('now', 'atem:')}</atem:function_calls>",
    ),
    ("mistral", f"[TOOL_CALLS][{json.dumps({'name': 'get_weather', 'arguments': ROME[1]})}]"),
    ("mistral", f"[TOOL_CALLS][{json.dumps({'name': 'now', 'arguments': '{}', 'id': 'abc'})}]"),
    ("mistral", f"[TOOL_CALLS]edit[ARGS]{json.dumps(MANY[1])}now[ARGS]{{}}"),
    ("gemma4", "<|tool_call>" + GEMMA_MANY.replace("Q", '<|"|>') + ",marks:[1,2]}<tool_call|>"),
    ("gemma4", '<|tool_call>call:edit{options:{mode:<|"|>{x}<|"|>}}call:now{}<tool_call|>'),
    ("function_gemma", "<start_function_call>" + GEMMA_MANY.replace("Q", "<escape>") + "}<end_function_call>"),
    ("function_gemma", "<start_function_call>call:get_weather{city:Rome,days:3}<end_function_call>"),
    ("pythonic", '<|tool_call_start|>[get_weather(city="Rome", days=3), now()]<|tool_call_end|>'),
    (
        "pythonic",
        "<|tool_call_start|>[edit(path='a', force=True, marks=[1, 2], options={\"mode\": null})]<|tool_call_end|>",
    ),
    ("pythonic", "<|tool_call_start|>[get_weather(city=Rome, days=3)]<|tool_call_end|>"),
    ("pythonic", '<|tool_call_start|>[maps.find(city="Rome")]<|tool_call_end|>'),
]


def read_by_mlx_lm(name: str, text: str) -> list[tuple[str, Any]]:
    """As its server does: each section's inside goes to the parser."""
    parser = import_module(f"mlx_lm.tool_parsers.{name}")
    calls: list[tuple[str, Any]] = []
    for section in text.split(parser.tool_call_start)[1:]:
        inside = section.partition(parser.tool_call_end)[0] if parser.tool_call_end else section
        found = parser.parse_tool_call(inside, TOOLS)
        for call in found if isinstance(found, list) else [found]:
            calls.append((call["name"], json.loads(json.dumps(call["arguments"]))))
    return calls


def read_by_us(name: str, text: str) -> list[tuple[str, Any]]:
    return list(outcome(run(Sample(name, "").parser(), [text])).calls)


def test_every_parser_of_mlx_lm_is_compared() -> None:
    assert {name for name, _ in SAMPLES} == set(OTHER_PARSERS)


@pytest.mark.parametrize(("name", "text"), SAMPLES)
def test_both_read_the_same_calls(name: str, text: str) -> None:
    assert read_by_us(name, text) == read_by_mlx_lm(name, text)


@pytest.mark.parametrize(
    ("name", "text", "ours", "theirs"),
    [
        # A schema that says string is taken at its word.
        ("qwen3_coder", coder("get_weather", city="null"), {"city": "null"}, {"city": None}),
        (
            "muse_spark",
            f"<atem:function_calls>{invoke('get_weather', 'atem:', city='5')}</atem:function_calls>",
            {"city": "5"},
            {"city": 5},
        ),
        # What a schema refers to counts.
        (
            "minimax_m2",
            f"<minimax:tool_call>{invoke('edit', options='{}')}</minimax:tool_call>",
            {"options": {}},
            {"options": "{}"},
        ),
        # The space around a string belongs to it: it may be code.
        ("glm47", glm("get_weather", city=" Rome "), {"city": " Rome "}, {"city": "Rome"}),
        # MiniMax puts spaces into paths.
        (
            "minimax_m2",
            f"<minimax:tool_call>{invoke('get_weather', city='/usr / lib . so')}</minimax:tool_call>",
            {"city": "/usr/lib.so"},
            {"city": "/usr / lib . so"},
        ),
        # The end of a value inside a JSON string is no end.
        (
            "minicpm5",
            '<function name="edit"><param name="options">{"mode": "</param>"}</param></function>',
            {"options": {"mode": "</param>"}},
            {"options": '{"mode": "'},
        ),
    ],
)
def test_where_they_differ_ours_keeps_to_the_schema(name: str, text: str, ours: Any, theirs: Any) -> None:
    assert read_by_us(name, text)[0][1] == ours
    assert read_by_mlx_lm(name, text)[0][1] == theirs
