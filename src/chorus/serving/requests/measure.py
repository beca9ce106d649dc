"""How much a request holds, found before anything is made of it: what is too much is an error with field and limit.

All of it is linear in what was sent, and what was sent is bounded by its bytes before it comes here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from typing import Any, ClassVar, Protocol

from pydantic_core import from_json

from chorus.errors import ChorusError
from chorus.text.parsers.toolkit.values import referred

_JOINING = ("anyOf", "oneOf", "allOf")
# Where a schema holds others: one, a list of them, or some by name.
_ONE = ("items", "additionalProperties", "unevaluatedProperties", "not", "if", "then", "else", "contains")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SHAPES: dict[str, tuple[type[Any], ...]] = {
    **dict.fromkeys((*_JOINING, "prefixItems", "enum", "required"), (list,)),
    **dict.fromkeys(_NAMED, (Mapping,)),
    **dict.fromkeys(_ONE, (Mapping, bool)),
    **dict.fromkeys(("$ref", "pattern", "format"), (str,)),
    **dict.fromkeys(_COUNTS, (int,)),
    "type": (str, list),
}


class BadField(ChorusError, ValueError):
    """The message names the field, and what it may hold."""

    code: ClassVar[str]

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class TooMuch(BadField):
    code = "limit_exceeded"


class NotASchema(BadField):
    code = "invalid_grammar"


class InvalidValue(BadField):
    code = "invalid_value"


class Unsupported(BadField):
    code = "unsupported_parameter"


class Amounts(Protocol):
    """The limits that are looked at here; a server's settings have them."""

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def max_messages(self) -> int: ...
    @property
    def max_tools(self) -> int: ...
    @property
    def max_tools_characters(self) -> int: ...
    @property
    def max_stop_strings(self) -> int: ...
    @property
    def max_stop_characters(self) -> int: ...
    @property
    def max_logit_biases(self) -> int: ...
    @property
    def max_grammar_characters(self) -> int: ...
    @property
    def max_schema_values(self) -> int: ...
    @property
    def max_nesting(self) -> int: ...


def count(field: str, number: int, limit: int, what: str) -> None:
    if number > limit:
        raise TooMuch(field, f"at most {limit} {what} are accepted, {number} were sent")


def _too_deep(deepest: int) -> str:
    return f"it may be nested {deepest} levels deep, and is deeper"


def stops(field: str, strings: Collection[str], limits: Amounts) -> None:
    count(field, len(strings), limits.max_stop_strings, "stop strings")
    longest = max(map(len, strings), default=0)
    if longest > limits.max_stop_characters:
        limit = limits.max_stop_characters
        raise TooMuch(field, f"a stop string has at most {limit} characters, one of {longest} was sent")


def grammar(field: str, source: str, limits: Amounts) -> None:
    limit = limits.max_grammar_characters
    if len(source) > limit:
        raise TooMuch(field, f"a grammar has at most {limit} characters, {len(source)} were sent")


def value(field: str, held: Any, deepest: int) -> int:
    """About how long it is as JSON, which tells how many values it has, too: each counts for at least one."""
    size, depth = 0, 0
    level = [held]
    while level:
        depth += 1
        if depth > deepest:
            raise TooMuch(field, _too_deep(deepest))
        inner: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                size += sum(map(len, each)) + 4 * len(each)
                inner += each.values()
            elif isinstance(each, list):
                size += len(each)
                inner += each
            elif isinstance(each, str):
                size += len(each) + 2
            elif isinstance(each, float) and not isfinite(each):
                raise TooMuch(field, "one of its numbers is too large for anybody to read")
            else:
                size += 8
        level = inner
    return size


def decoded(field: str, text: str, deepest: int) -> Any:
    """What a JSON text holds; ValueError where it is none."""
    try:
        held = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise TooMuch(field, _too_deep(deepest)) from None
        raise
    value(field, held, deepest)
    return held


def arguments(field: str, text: str, deepest: int) -> Any:
    """Of an earlier call. Templates want them as an object; what is no JSON stays as it was written."""
    try:
        return decoded(field, text, deepest) if text.strip() else {}
    except TooMuch:
        raise
    except ValueError:
        return text


def schema(field: str, held: Mapping[str, Any], limits: Amounts) -> int:
    """About how long it is as JSON. Raises where its parts, its depth or its references are too many."""
    size = value(field, held, limits.max_nesting)
    if size > limits.max_grammar_characters:
        raise TooMuch(field, f"a schema has at most {limits.max_grammar_characters} characters, it has about {size}")
    _references(field, held, limits.max_nesting)
    _written_out(field, held, limits)
    return size


def template_arguments(held: Mapping[str, Any], limits: Amounts, field: str = "chat_template_kwargs") -> None:
    size = value(field, held, limits.max_nesting)
    if size > limits.max_tools_characters:
        raise TooMuch(field, f"they have at most {limits.max_tools_characters} characters, these have about {size}")


def tools(field: str, schemas: Collection[Mapping[str, Any]], texts: int, limits: Amounts) -> None:
    """`texts` is the length of their names and descriptions."""
    count(field, len(schemas), limits.max_tools, "tools")
    size = texts + sum(schema(f"{field}[{place}]", held, limits) for place, held in enumerate(schemas))
    limit = limits.max_tools_characters
    if size > limit:
        raise TooMuch(field, f"all tools together have at most {limit} characters, these have about {size}")


def well_formed(field: str, held: Mapping[str, Any]) -> None:
    """Raises where a keyword that grammars are made from has a value of the wrong type."""
    left: list[Any] = [held]
    while left:
        part = left.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            raise NotASchema(field, f"a JSON schema is an object, true or false, not {part!r:.40}")
        for keyword in _SHAPES.keys() & part.keys():
            if not _shaped(keyword, part[keyword]):
                raise NotASchema(field, f"in a JSON schema {keyword} cannot be {part[keyword]!r:.40}")
        left += _subschemas(part)


def _shaped(keyword: str, held: Any) -> bool:
    if not isinstance(held, _SHAPES[keyword]) or (isinstance(held, bool) and keyword in _COUNTS):
        return False
    if keyword in (*_JOINING, "enum"):
        return bool(held)
    return keyword not in ("type", "required") or all(isinstance(each, str) for each in held)


def _subschemas(part: Mapping[str, Any]) -> Iterator[Any]:
    for keyword in _ONE:
        if keyword in part:
            yield part[keyword]
    for keyword in (*_JOINING, "prefixItems"):
        yield from part.get(keyword, ())
    for keyword in _NAMED:
        yield from part.get(keyword, {}).values()


def _references(field: str, root: Mapping[str, Any], farthest: int) -> None:
    """Definitions count as far away as the references that lead there; each part is looked at once."""
    seen: set[int] = set()
    following: list[Any] = [root]
    for _ in range(farthest + 1):
        following = [referred(reference, root) for reference in _references_in(following, seen)]
        if not following:
            return
    raise TooMuch(field, f"a reference may lead to others {farthest} times in a row, and more follow")


def _references_in(parts: list[Any], seen: set[int]) -> set[str]:
    found: set[str] = set()
    left = list(parts)
    while left:
        part = left.pop()
        if not isinstance(part, Mapping | list) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, list):
            left += part
            continue
        if isinstance(part.get("$ref"), str):
            found.add(part["$ref"])
        left += [inner for keyword, inner in part.items() if keyword not in ("$defs", "definitions")]
    return found


def _written_out(field: str, root: Mapping[str, Any], limits: Amounts) -> None:
    """Alternatives that refer to alternatives are few to write and many to read: what each stands for is counted."""
    known: dict[int, int] = {}

    def stands_for(part: Any, depth: int) -> int:
        if not isinstance(part, Mapping):
            return 1
        if id(part) not in known:
            if depth > limits.max_nesting:
                raise TooMuch(field, f"its alternatives may refer to others {limits.max_nesting} times in a row")
            known[id(part)] = 0
            joined = [each for keyword in _JOINING if isinstance(part.get(keyword), list) for each in part[keyword]]
            if isinstance(part.get("$ref"), str):
                joined.append(referred(part["$ref"], root))
            parts = 1 + sum([stands_for(each, depth + 1) for each in joined])
            count(field, parts, limits.max_schema_values, "values, with all that it refers to,")
            known[id(part)] = parts
        elif not known[id(part)]:
            raise TooMuch(field, "its references go in a circle")
        return known[id(part)]

    total = 0
    left: list[Any] = [root]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            total += stands_for(part, 0)
            left += part.values()
        elif isinstance(part, list):
            left += part
        count(field, total, limits.max_schema_values, "values, with all that it refers to,")
