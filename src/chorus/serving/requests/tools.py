"""Tools as every protocol means them: functions with a JSON schema, and how freely the model may choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chorus.serving.requests import measure
from chorus.serving.requests.measure import Amounts, InvalidValue


@dataclass(frozen=True)
class Tool:
    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    """Calls of it always have arguments as the parameters say."""
    deferred: bool = False
    """Described in the conversation, where something refers to it, and not before it."""

    def for_template(self) -> dict[str, Any]:
        """In OpenAI's form, which is the one that chat templates are written for."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolChoice:
    kind: Literal["none", "auto", "required", "named"]
    name: str | None = None

    @property
    def forces(self) -> bool:
        return self.kind in ("required", "named")


@dataclass(frozen=True)
class Tools:
    """What the model may call in one answer. Tools it may not call are not shown to it."""

    functions: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice("none")
    parallel: bool = True

    def for_template(self) -> list[dict[str, Any]]:
        return [tool.for_template() for tool in self.functions]

    @property
    def leading(self) -> tuple[Tool, ...]:
        """Those that are described before the conversation."""
        return tuple(tool for tool in self.functions if not tool.deferred)

    @property
    def forced(self) -> str | Mapping[str, str] | None:
        """`required`, or the name of the one tool to call."""
        if not self.choice.forces:
            return None
        return {"name": self.choice.name} if self.choice.name else "required"

    @property
    def strict(self) -> frozenset[str]:
        """The tools whose arguments must be as their schema says, whenever the model calls them."""
        return frozenset(tool.name for tool in self.functions if tool.strict)


NO_TOOLS = Tools()


def checked_tools(tools: Sequence[Tool], choice: ToolChoice | None, parallel: bool | None, limits: Amounts) -> Tools:
    """The tools of a request whose protocol calls them `tools` and `tool_choice`."""
    names = [tool.name for tool in tools]
    texts = sum(len(tool.name) + len(tool.description or "") for tool in tools)
    measure.tools("tools", [tool.parameters or {} for tool in tools], texts, limits)
    known: set[str] = set()
    for place, name in enumerate(names):
        if name in known:
            raise InvalidValue(f"tools[{place}]", f"there are two tools named {name!r}")
        known.add(name)
    chosen = choice or ToolChoice("auto" if tools else "none")
    if chosen.forces and not tools:
        raise InvalidValue("tool_choice", "it asks for a call, but there are no tools")
    if chosen.kind == "named" and chosen.name not in names:
        raise InvalidValue("tool_choice", f"there is no tool named {chosen.name!r}")
    if chosen.kind == "none" or not tools:
        return NO_TOOLS
    return Tools(tuple(tools), chosen, parallel is not False)
