"""Chat templates: where a model folder keeps them, and a conversation rendered by one, as transformers would."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from chorus.text.stop_tokens import read_settings

RESERVED_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that change how transformers calls a template rather than what it sees: never the client's to choose."""

_DEFAULT, _TOOL_USE = "default", "tool_use"
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "


def read_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Every template by its name. Files of their own come before what tokenizer_config.json (`settings`) says."""
    found = _named_templates(settings.get("chat_template"))
    if not found:  # where folders of models with pictures used to keep theirs
        found = _named_templates(read_settings(folder / "chat_template.json").get("chat_template"))
    if (file := folder / "chat_template.jinja").is_file():
        found = {_DEFAULT: file.read_text(encoding="utf-8")}
    for file in sorted(folder.glob("additional_chat_templates/*.jinja")):
        found[file.stem] = file.read_text(encoding="utf-8")
    return {name: template for name, template in found.items() if template}


def _named_templates(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    named = value if isinstance(value, dict) else {entry["name"]: entry["template"] for entry in value}
    if not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise ValueError("chat_template is neither a text nor a list of named texts")
    return dict(named)


class ChatTemplates:
    """A model's templates, each compiled when it is first used."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.sources = sources
        self._special_tokens = special_tokens
        self._compiled: dict[str, Template] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        arguments: Mapping[str, Any],
        continue_last: bool = False,
        for_answer: bool = True,
    ) -> str:
        """The prompt as text, and `for_answer` with the beginning of an answer where none is continued; what the client
        got wrong is raised as whatever exception it trips over.
        """
        if not messages:
            raise ValueError("a conversation has at least one message")
        _require_objects("message", messages)
        _require_objects("tool", tools or [])
        _require_objects("document", arguments.get("documents") or [])
        name = self._choose(tools)
        conversation = [_with_reasoning(message) for message in messages]
        last = _mark_end(conversation, self.sources[name]) if continue_last else None
        variables = {"documents": None, **self._special_tokens, **arguments}
        text = self._template(name).render(
            **variables, messages=conversation, tools=tools, add_generation_prompt=for_answer and not continue_last
        )
        return text if last is None else _cut_at_mark(text, last)

    def _choose(self, tools: list[dict[str, Any]] | None) -> str:
        if tools is not None and _TOOL_USE in self.sources:
            return _TOOL_USE
        if _DEFAULT not in self.sources:
            raise LookupError(f"the model has several templates ({', '.join(sorted(self.sources))}), none by default")
        return _DEFAULT

    def _template(self, name: str) -> Template:
        if name not in self._compiled:
            self._compiled[name] = _environment().from_string(self.sources[name])
        return self._compiled[name]


def _require_objects(kind: str, values: Any) -> None:
    for value in values:
        if not isinstance(value, dict):
            raise TypeError(f"a {kind} is an object, not {value!r}")


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Templates read a message's reasoning under one name or another: whichever was sent is seen under both."""
    reasoning = next((message[field] for field in _REASONING_FIELDS if message.get(field) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _mark_end(conversation: list[dict[str, Any]], source: str) -> str:
    """Put a mark behind the last message's text, which is returned; what the template writes after it is cut off."""
    final = conversation[-1]
    content = final.get("content")
    if content is None or "content" not in source:
        raise ValueError("the last message has no content to continue, or the template does not show it")
    if isinstance(content, str):
        final["content"] = content + _CONTINUE_HERE
        return content
    parts = [dict(part) for part in content]
    for part in reversed(parts):
        if "text" in part:
            text = str(part["text"])
            part["text"] = text + _CONTINUE_HERE
            final["content"] = parts
            return text
    raise ValueError("the last message has no text to continue")


def _cut_at_mark(rendered: str, last: str) -> str:
    if last.strip() not in rendered or _CONTINUE_HERE.strip() not in rendered:
        raise ValueError("the template leaves out the last message, or part of it, so that it cannot be continued")
    end = rendered.rindex(_CONTINUE_HERE.strip())
    if rendered.startswith(_CONTINUE_HERE, end):
        return rendered[:end]
    return rendered[:end].rstrip()  # the template trims messages, and would have trimmed this one


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """A model's template is a stranger's program: it runs in jinja2's sandbox and changes nothing it is given."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    return environment


class _GenerationTag(Extension):
    """`{% generation %}` marks, for training, what the model wrote; in a prompt it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter writes for HTML and escapes what a model should read plainly."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class _Dict:
    """`dict(...)` for templates without the class itself, whose attributes lead out of the sandbox."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*values)


class _Namespace(Namespace):
    """jinja2's namespace without names that begin with an underscore, which reach into Python."""

    def __init__(*arguments: Any, **named: Any) -> None:
        # `self` is among the arguments, as in jinja2's own, so that a template may store a value named `self`.
        self, *values = arguments
        attributes = dict(*values, **named)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template cannot store {name!r}: a name begins with a letter")
