"""What models of each family really write, and what it means."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from chorus.text.parsers import (
    Content,
    OutputParser,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
    choose,
    merged,
)


def tool(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    tool(
        "get_weather",
        ("city",),
        city={"type": "string"},
        days={"type": "integer"},
        unit={"enum": ["celsius", "kelvin"]},
    ),
    tool(
        "edit",
        ("path", "text"),
        path={"type": "string"},
        text={"type": "string"},
        force={"type": "boolean"},
        marks={"type": "array", "items": {"type": "integer"}},
        options={"$ref": "#/$defs/options"},
    ),
    tool("now"),
]
TOOLS[1]["function"]["parameters"]["$defs"] = {
    "options": {"type": "object", "properties": {"mode": {"type": "string"}}}
}

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Sample:
    family: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    thinks: bool = False
    starts_in_reasoning: bool = False
    tools: Any = field(default_factory=lambda: TOOLS)
    template: str | None = None

    def parser(self) -> OutputParser:
        numbers = count()
        return choose(self.template, self.family).new(
            tools=self.tools,
            thinks=self.thinks,
            starts_in_reasoning=self.starts_in_reasoning,
            id_factory=lambda: f"id{next(numbers)}",
        )


@dataclass
class Outcome:
    content: str = ""
    reasoning: str = ""
    starts: list[ToolCallStart] = field(default_factory=list)
    arguments: dict[int, str] = field(default_factory=dict)

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple((start.name, json.loads(self.arguments[start.index])) for start in self.starts)


def outcome(pieces: list[Piece]) -> Outcome:
    found = Outcome()
    for piece in pieces:
        match piece:
            case Content(text):
                found.content += text
            case Reasoning(text):
                found.reasoning += text
            case ToolCallStart():
                assert piece.index == len(found.starts)
                found.starts.append(piece)
            case ToolCallArguments(index, text):
                assert index == len(found.starts) - 1
                found.arguments[index] = found.arguments.get(index, "") + text
    return found


def run(parser: OutputParser, chunks: list[str]) -> list[Piece]:
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)]
    return merged(pieces + parser.flush())


PARIS: Call = ("get_weather", {"city": "Paris"})
ROME: Call = ("get_weather", {"city": "Rome", "days": 3})
NOW: Call = ("now", {})
CODE = 'def f():\n    return "<b>\\d & é 😀"\n'
EDIT: Call = ("edit", {"path": "/a b.py", "text": CODE, "force": True, "marks": [1, 2], "options": {"mode": "x"}})
J = json.dumps


def hermes(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{J({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def coder(name: str, **arguments: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def glm(name: str, prefix: str = "", **arguments: str) -> str:
    body = "".join(
        f"<{prefix}arg_key>{key}</{prefix}arg_key>\n<{prefix}arg_value>{value}</{prefix}arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<{prefix}tool_call>{name}\n{body}</{prefix}tool_call>"


def invoke(name: str, prefix: str = "", **arguments: str) -> str:
    body = "".join(f'<{prefix}parameter name="{k}">{v}</{prefix}parameter>\n' for k, v in arguments.items())
    return f'<{prefix}invoke name="{name}">\n{body}</{prefix}invoke>\n'


def kimi(*calls: Call) -> str:
    body = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{J(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


def xtml(name: str, number: int, **arguments: tuple[str, str]) -> str:
    body = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, (kind, value) in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="{number}"<|sep|>{body}<|close|>call<|sep|>'


def fenced(*calls: Call) -> str:
    body = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{J(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def bare(*calls: Call) -> str:
    body = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{J(arguments)}<｜tool▁call▁end｜>" for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


EDIT_WORDS = {"path": "/a b.py", "text": CODE, "force": "true", "marks": "[1, 2]", "options": '{"mode": "x"}'}
DSML = "<｜DSML｜"
ANALYSIS = "<|channel|>analysis<|message|>Need data.<|end|>"
HEAD = "<|start|>assistant"

SAMPLES: list[Sample] = [
    Sample("hermes", hermes(*PARIS), calls=(PARIS,)),
    Sample("hermes", f"Let me look.\n{hermes(*PARIS)}\n{hermes(*ROME)}", "Let me look.\n", calls=(PARIS, ROME)),
    Sample("hermes", hermes(*EDIT), calls=(EDIT,)),
    Sample("hermes", f"<think>\nHm, 2 < 3.\n</think>\n\n{hermes(*NOW)}", "", "Hm, 2 < 3.", (NOW,), thinks=True),
    Sample("hermes", "Hm.\n</think>\n\nIt is 4.\n", "It is 4.\n", "Hm.", starts_in_reasoning=True),
    Sample("hermes", "<think>\n\n</think>\n\nYes.", "Yes.", thinks=True),
    Sample("hermes", "<think>again</think>ok", "ok", "again", thinks=True, starts_in_reasoning=True),
    Sample("hermes", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>', calls=(PARIS,)),
    Sample("hermes", '<tool_call>{"name": "now"}</tool_call>', calls=(NOW,)),
    Sample("hermes", '<tool_call>{"name": "now", "arguments": null}', calls=(NOW,)),
    Sample(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        calls=(PARIS,),
    ),
    Sample(
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}',
        calls=(PARIS,),
    ),
    Sample(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb</tool_call>"}}</tool_call>',
        calls=(("get_weather", {"city": "a\nb</tool_call>"}),),
    ),
    Sample("llama3", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', calls=(PARIS,)),
    Sample("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}}<|eom_id|>', calls=(PARIS,)),
    Sample(
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
        calls=(PARIS, NOW),
    ),
    Sample("llama3", '<function=get_weather>{"city": "Paris"}</function><|eot_id|>', calls=(PARIS,)),
    Sample("llama3", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}'),
    Sample("llama3", '{"answer": 42}', '{"answer": 42}'),
    Sample("llama3", 'Say {"name": "now"}', 'Say {"name": "now"}'),
    Sample("mistral", f"[TOOL_CALLS][{J({'name': 'get_weather', 'arguments': PARIS[1]})}]", calls=(PARIS,)),
    Sample(
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        calls=(PARIS, NOW),
    ),
    Sample(
        "mistral", f"Ok.[TOOL_CALLS]get_weather[ARGS]{J(PARIS[1])}[TOOL_CALLS]now[ARGS]{{}}", "Ok.", "", (PARIS, NOW)
    ),
    Sample("mistral", f"[TOOL_CALLS]get_weather{J(ROME[1])}", calls=(ROME,)),
    Sample("mistral_v11", f"[TOOL_CALLS]edit[CALL_ID]abc123def[ARGS]{J(EDIT[1])}", calls=(EDIT,)),
    Sample("mistral", "[THINK]Hm.[/THINK]Yes.", "Yes.", "Hm.", thinks=True, template="[TOOL_CALLS] [THINK] [/THINK]"),
    Sample("qwen3_coder", coder("get_weather", city="Rome", days="3"), calls=(ROME,)),
    Sample(
        "qwen3_coder", f"I edit.\n\n{coder('edit', **EDIT_WORDS)}\n{coder('now')}", "I edit.\n\n", calls=(EDIT, NOW)
    ),
    Sample("qwen3_coder", "<function=now>\n</function>\n</tool_call>", calls=(NOW,)),
    Sample(
        "qwen3_coder",
        coder("get_weather", city="5", other="5", third="five"),
        calls=(("get_weather", {"city": "5", "other": 5, "third": "five"}),),
    ),
    Sample("deepseek", f"Ok{fenced(PARIS, ROME)}<｜end▁of▁sentence｜>", "Ok", calls=(PARIS, ROME)),
    Sample("deepseek", fenced(EDIT), calls=(EDIT,)),
    Sample("deepseek_v31", bare(PARIS, NOW, EDIT), calls=(PARIS, NOW, EDIT)),
    Sample("deepseek_v31", f"Hm.{bare(PARIS)}", "", "Hm.", (PARIS,), starts_in_reasoning=True),
    Sample(
        "deepseek_v32",
        f'{DSML}function_calls>\n{DSML}invoke name="get_weather">\n'
        f'{DSML}parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
        f'{DSML}parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        f'{DSML}invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        calls=(ROME, NOW),
    ),
    Sample(
        "harmony",
        f"{ANALYSIS}{HEAD}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f"{J(PARIS[1])}<|call|>",
        "",
        "Need data.",
        (PARIS,),
    ),
    Sample("harmony", f"{ANALYSIS}{HEAD}<|channel|>final<|message|>It is 4.<|return|>", "It is 4.", "Need data."),
    Sample(
        "harmony",
        f"<|channel|>commentary<|message|>I look.<|end|>{HEAD} to=functions.edit<|channel|>commentary json<|message|>"
        f"{J(EDIT[1])}",
        "I look.",
        calls=(EDIT,),
    ),
    Sample("harmony", " to=functions.now<|channel|>commentary<|message|><|call|>", calls=(NOW,)),
    Sample("harmony", "Plain text.", "Plain text."),
    Sample("glm", glm("get_weather", city="Rome", days="3"), calls=(ROME,)),
    Sample("glm", f"<think>Hm</think>\nI edit.{glm('edit', **EDIT_WORDS)}", "I edit.", "Hm", (EDIT,), thinks=True),
    Sample("glm", "<tool_call>now</tool_call>\n" + glm("get_weather", city="Paris"), calls=(NOW, PARIS)),
    Sample("glm", hermes(*PARIS), calls=(PARIS,)),
    Sample("glm", "Write <tool_call> and a name.", "Write <tool_call> and a name."),
    Sample("longcat", glm("get_weather", "longcat_", city="Rome", days="3"), calls=(ROME,)),
    Sample(
        "minimax",
        f"<minimax:tool_call>\n{invoke('get_weather', city='Rome', days='3')}{invoke('now')}</minimax:tool_call>",
        calls=(ROME, NOW),
    ),
    Sample(
        "minimax",
        "<minimax:tool_call>" + invoke("edit", path="/usr / local/ x . py", text="a / b . c", extra="~/ a . b"),
        calls=(("edit", {"path": "/usr/local/x.py", "text": "a / b . c", "extra": "~/a.b"}),),
    ),
    Sample(
        "minimax",
        "<minimax:tool_call>"
        + invoke("edit", path="../ a", text="// see / it. It is\nlong . \n")
        + "</minimax:tool_call>",
        calls=(("edit", {"path": "../a", "text": "// see / it. It is\nlong . \n"}),),
    ),
    Sample(
        "muse_spark",
        f"<atem:function_calls>\n{invoke('edit', 'atem:', **EDIT_WORDS)}</atem:function_calls>",
        calls=(EDIT,),
    ),
    Sample(
        "minicpm5",
        '<function name="get_weather"><param name="city">Rome</param><param name="days">3</param></function>'
        '<function name="edit"><param name="path">/a b.py</param>'
        f'<param name="text"><![CDATA[{CODE}]]></param></function>',
        calls=(ROME, ("edit", {"path": "/a b.py", "text": CODE})),
    ),
    Sample("kimi", f"I look.{kimi(PARIS, ROME, NOW)}<|im_end|>", "I look.", calls=(PARIS, ROME, NOW)),
    Sample("kimi", f"<think>Hm.{kimi(EDIT)}", "", "Hm.", (EDIT,), thinks=True),
    Sample(
        "kimi_k3",
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>"
        "<|open|>tools<|sep|>"
        + xtml("get_weather", 1, city=("string", "Rome"), days=("integer", "3"))
        + '<|open|>call tool="now" index="2"<|sep|><|open|>json type="object"<|sep|>{}<|close|>json<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        "I look.",
        "Hm.",
        (ROME, NOW),
        thinks=True,
        template="<|open|>think<|sep|>",
    ),
    Sample("gemma4", '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>', calls=(ROME,)),
    Sample(
        "gemma4",
        '<|channel>thought\nHm.\n<channel|>Ok.<|tool_call>call:edit{path:<|"|>/a b.py<|"|>,text:<|"|>'
        + CODE
        + '<|"|>,force:true,marks:[1,2],options:{mode:<|"|>x<|"|>}}<tool_call|><|tool_call>call:now{}<tool_call|>',
        "Ok.",
        "Hm.",
        (EDIT, NOW),
        thinks=True,
        template="<|channel>thought",
    ),
    Sample(
        "function_gemma",
        "<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}<end_function_call>",
        calls=(ROME,),
    ),
    Sample(
        "pythonic",
        '<|tool_call_start|>[get_weather(city="Rome", days=3), now()]<|tool_call_end|>Done.',
        "Done.",
        calls=(ROME, NOW),
    ),
    Sample(
        "pythonic",
        f"<|tool_call_start|>[edit(path='/a b.py', text={CODE!r}, force=True, marks=[1, 2],"
        " options={\"mode\": 'x'})]",
        calls=(EDIT,),
    ),
    Sample("none", "<think>\nHm.</think>\n<tool_call>{}", "<tool_call>{}", "Hm.", thinks=True),
    Sample("hermes", hermes(*PARIS), hermes(*PARIS), tools=None),
]
