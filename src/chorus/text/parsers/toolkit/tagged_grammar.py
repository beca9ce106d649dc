"""Grammars of calls whose arguments stand between tags: what they let through reads back as the schema says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorus.text.parsers.toolkit import regexes
from chorus.text.parsers.toolkit.lark import Lark
from chorus.text.parsers.toolkit.members import ObjectMember, any_members, checked_name, members
from chorus.text.parsers.toolkit.source import Malformed
from chorus.text.parsers.toolkit.strings import Inexpressible, Parts, Strings, apart
from chorus.text.parsers.toolkit.tagged import CDATA, CDATA_END, Tags
from chorus.text.parsers.toolkit.values import NULLABLE_STRING, STRING, ToolSchema, as_json, is_path, quoted, tidy_path

_NAME = "/[A-Za-z0-9_.-]+/"
_ANY_JSON = {"type": ["object", "array", "number", "boolean", "null"]}
# All that Python takes for space; Rust's \s lacks some of it.
_SPACE = r"[\s\x1c-\x1f]*"
_NULL_IN_SPACE = f"{_SPACE}null{_SPACE}"
_PATH = r"(~?\/|\.\.?\/)[^\n]*"
_SPACED_MARK = regexes.containing(r" [\/.]|[\/.] ")
# Text that no reader takes for JSON or for a Python literal, by its first word alone.
_WORDS = r"[A-Za-z_\/~@<](?s:.*)"
_LITERALS = (
    r"(true|false|null|True|False|None)([^A-Za-z0-9_](?s:.*))?",
    r"[rRbBuUfFtT]{1,2}[\"'](?s:.*)",
    r"[A-Za-z0-9_]*[^\x00-\x7f](?s:.*)",
)


@dataclass(frozen=True)
class Writing:
    """How a family writes one argument; `opens` gives what stands before a value, which may be on several lines."""

    tags: Tags
    opens: Callable[[str, str], tuple[str, ...]]
    """From a parameter's name and the JSON type of its value; strings are told from the rest by `marks_strings`."""
    between: str = ""
    marks_strings: bool = False
    loose_lines: bool = False
    """The line breaks between arguments may be missing."""

    @property
    def closing(self) -> str:
        return f"\n{self.tags.value_end}" if self.tags.own_lines else self.tags.value_end


def arguments_grammar(lark: Lark, tool: ToolSchema, writing: Writing) -> str:
    """Each parameter in the schema's order, the required ones for certain."""
    checked_name(tool, lark.lenient)
    if (any_value := any_members(tool, lark.lenient)) is not None:
        return _free_arguments(lark, tool, writing, any_value)
    parts: list[str] = []
    for member in members(tool, lark.lenient):
        argument = lark.rule(lark.join(_argument(lark, tool, member, writing), _between(lark, writing)))
        parts.append(argument if member.required else f"{argument}?")
    return " ".join(parts)


def _between(lark: Lark, writing: Writing) -> str:
    line = lark.text(writing.between)
    return f"({line})?" if line and writing.loose_lines else line


def _free_arguments(lark: Lark, tool: ToolSchema, writing: Writing, schema: Mapping[str, Any]) -> str:
    """Any parameters: their names are made up by the model."""
    if schema and not lark.lenient:
        raise Inexpressible("parameters of any name with a schema of their own: list them under properties")

    def head(kind: str) -> str:
        first, *others = writing.opens("\0", kind)
        before, _, after = first.partition("\0")
        return lark.join(lark.text(before), _NAME, lark.lines(after, *others))

    ways = [lark.join(head("string"), _raw(lark, [Strings()], writing))]
    if writing.marks_strings:
        value = lark.json(tool.standing_alone(_ANY_JSON))
        ways.append(lark.join(head("object"), value, lark.text(writing.closing)))
    argument = lark.rule(lark.join(lark.either(ways), _between(lark, writing)))
    return f"({argument})*"


def _argument(lark: Lark, tool: ToolSchema, member: ObjectMember, writing: Writing) -> str:
    try:
        _check_header(member.name, writing)
        return _exact_argument(lark, tool, member, writing)
    except Inexpressible as error:
        if not lark.lenient:
            raise Inexpressible(f"parameter {member.name!r}: {error}") from None
        return lark.join(lark.lines(*writing.opens(member.name, "string")), _raw(lark, [Strings()], writing))


def _exact_argument(lark: Lark, tool: ToolSchema, member: ObjectMember, writing: Writing) -> str:
    types = tool.types(member.name)

    def as_text(strings: Sequence[Strings], null: bool | None = None) -> str:
        return lark.join(lark.lines(*writing.opens(member.name, "string")), _raw(lark, strings, writing, null=null))

    def as_value(schema: Any, kinds: frozenset[str] | None) -> str:
        head = lark.lines(*writing.opens(member.name, min((kinds or frozenset()) - STRING, default="object")))
        return lark.join(head, lark.json(tool.standing_alone(schema)), lark.text(writing.closing))

    if types is not None and "string" not in types:
        return as_value(member.schema, types)
    if types == STRING:
        return as_text(_some(apart(member.schema, tool)).strings)
    if types == NULLABLE_STRING and not writing.marks_strings:
        parts = _some(apart(member.schema, tool))
        return as_text(parts.strings, null=parts.rest is not None)
    try:
        parts = apart(member.schema, tool)
    except Inexpressible:
        return as_value(member.schema, types)
    _some(parts)
    if writing.marks_strings:
        ways = [as_text(parts.strings)] if parts.strings else []
        ways += [as_value(parts.rest, types)] if parts.rest is not None else []
        return lark.either(ways)
    ways = [lark.join(lark.json(tool.standing_alone(member.schema)), lark.text(writing.closing))]
    if words := _words(parts, types, writing):
        ways.append(_raw(lark, words, writing, only_words=True))
    return lark.join(lark.lines(*writing.opens(member.name, "string")), lark.either(ways))


def _some(parts: Parts) -> Parts:
    if not parts.strings and parts.rest is None:
        raise Inexpressible("no value fits its schema")
    return parts


def _words(parts: Parts, types: frozenset[str] | None, writing: Writing) -> list[Strings]:
    """The strings that are read as such where other values may stand as well; the others are written as JSON."""
    found = []
    for strings in parts.strings:
        if strings.choices is None:
            found.append(strings)
            continue
        bare = [each for each in strings.choices if as_json(each, types) == quoted(each) and _stays(each, writing.tags)]
        found += [Strings(tuple(bare))] if bare else []
    return found


def _check_header(name: str, writing: Writing) -> None:
    """A name that would not be read back cannot stand in a tag."""
    tags = writing.tags
    header = writing.opens(name, "string")[0].removeprefix(tags.parameter)
    ended = header.find(tags.header_end)
    try:
        read = tags.name_of(header[:ended]) if ended >= 0 and "\n" not in header[:ended] else None
    except Malformed:
        read = None
    if read != name or (not tags.header_end.startswith("<") and "<" in header[:ended]):
        raise Inexpressible("its name cannot stand in a tag: use letters, digits, _ and -")


def _stays(choice: str, tags: Tags) -> bool:
    """True if the reader gives the text back as it was written."""
    tidied = tags.tidy_paths and is_path(choice) and tidy_path(choice) != choice
    return not (tags.value_end in choice or tidied or (tags.cdata and choice.lstrip().startswith(CDATA)))


def _raw(
    lark: Lark, strings: Sequence[Strings], writing: Writing, *, null: bool | None = None, only_words: bool = False
) -> str:
    """Bare text and the tag that ends it. `null`: whether that word may stand there, where it is read as no string."""
    tags = writing.tags
    kinds = [_kind(lark, each, tags, null=null, only_words=only_words) for each in strings]
    kinds += [r"/null/"] if null else []
    not_ended = f"~/{regexes.containing(regexes.literal(tags.value_end))}/"
    every = "|".join(f"({kind})" for kind in kinds)
    text = lark.terminal(f"({every}) & {not_ended}" + (f" & {_not_cdata()}" if tags.cdata else ""))
    plain = lark.ended(text, writing.closing)
    if not tags.cdata or only_words:
        return plain
    block = lark.terminal(f"({every}) & ~/{regexes.containing(regexes.literal(CDATA_END))}/")
    return lark.either([plain, lark.join(lark.text(CDATA), lark.ended(block, f"{CDATA_END}{tags.value_end}"))])


def _not_cdata() -> str:
    return f"~/{_SPACE}{regexes.literal(CDATA)}{regexes.ANY}/"


def _kind(lark: Lark, strings: Strings, tags: Tags, *, null: bool | None, only_words: bool) -> str:
    if strings.choices is not None:
        for choice in strings.choices:
            if not _stays(choice, tags) or (null is not None and choice.strip() == "null"):
                message = f"the value {choice!r} would not be read back as it is: take it out of the enum"
                raise Inexpressible(message)
        return "|".join(f"/({regexes.literal(choice)})/" for choice in strings.choices)
    limits = [f"/{pattern}/" for pattern in strings.patterns]
    if strings.patterns and tags.tidy_paths:
        # Tidying could turn a path that fits into one that does not.
        tidied = lark.terminal(f"/{_PATH}/ & /{_SPACED_MARK}/")
        limits.append(f"~{tidied}")
    if null is False:
        limits.append(f"~/{_NULL_IN_SPACE}/")
    if only_words:
        limits += [f"/{_WORDS}/", *(f"~/{pattern}/" for pattern in _LITERALS)]
    return " & ".join(["/(?s:.*)/", *limits])
