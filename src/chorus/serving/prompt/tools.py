"""Tools as every protocol means them: functions with a JSON schema, and how freely the model may choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chorus.api.errors import invalid
from chorus.config.sections import Limits
from chorus.serving import measure
from chorus.serving.prompt.voice import Offer


@dataclass(frozen=True)
class Tool:
    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    """Calls of it always have arguments as the parameters say."""

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

    @property
    def forced(self) -> str | Mapping[str, str] | None:
        if not self.forces:
            return None
        return {"name": self.name} if self.name else "required"


@dataclass(frozen=True)
class Toolbox:
    """What the model may call in one answer. Tools it may not call are not shown to it."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice("none")
    parallel: bool = True

    def for_template(self) -> list[dict[str, Any]] | None:
        return [tool.for_template() for tool in self.tools] or None

    def offer(self) -> Offer:
        return Offer(
            tools=[tool.for_template() for tool in self.tools],
            forced=self.choice.forced,
            strict=frozenset(tool.name for tool in self.tools if tool.strict),
            parallel=self.parallel,
        )


NO_TOOLS = Toolbox()


def toolbox(tools: Sequence[Tool], choice: ToolChoice | None, parallel: bool | None, limits: Limits) -> Toolbox:
    names = [tool.name for tool in tools]
    texts = sum(len(tool.name) + len(tool.description or "") for tool in tools)
    measure.tools("tools", [tool.parameters or {} for tool in tools], texts, limits)
    known: set[str] = set()
    for place, name in enumerate(names):
        if name in known:
            raise invalid(f"tools[{place}]: there are two tools named {name!r}.", f"tools[{place}]")
        known.add(name)
    chosen = choice or ToolChoice("auto" if tools else "none")
    if chosen.forces and not tools:
        raise invalid("tool_choice: it asks for a call, but there are no tools.", "tool_choice")
    if chosen.kind == "named" and chosen.name not in names:
        raise invalid(f"tool_choice: there is no tool named {chosen.name!r}.", "tool_choice")
    if chosen.kind == "none" or not tools:
        return NO_TOOLS
    return Toolbox(tuple(tools), chosen, parallel is not False)
