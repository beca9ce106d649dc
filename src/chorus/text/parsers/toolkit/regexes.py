"""Patterns of JSON schemas as llguidance's regular expressions, which always match a whole text."""

from __future__ import annotations

import re

from chorus.errors import InternalSignal

ANY = "(?s:.*)"
# Stand for anchors while a pattern is taken apart: longer than any character or escape.
_BEGIN, _END = "begin", "end"
_PLAIN = re.compile(r"[A-Za-z0-9_ <>]")
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DATE = (
    "[1-9][0-9]{3}-"
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_CLOCK = "(T[0-9]+H([0-9]+M([0-9]+S)?)?|T[0-9]+M([0-9]+S)?|T[0-9]+S)"
_HEX = "[0-9A-Fa-f]"
_IN_URI = r"([A-Za-z0-9._~:\/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})"

# Each may leave out rare forms; none lets through what is not of the format.
FORMATS = {
    "unknown": ANY,
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([0-9]+W|([0-9]+Y([0-9]+M)?([0-9]+D)?|[0-9]+M([0-9]+D)?|[0-9]+D){_CLOCK}?|{_CLOCK})",
    "email": rf"[A-Za-z0-9]+([._+-][A-Za-z0-9]+)*@{_LABEL}(\.{_LABEL})+",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "ipv6": f"({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}"
    f"|({_HEX}{{1,4}}(:{_HEX}{{1,4}}){{0,2}})?::({_HEX}{{1,4}}(:{_HEX}{{1,4}}){{0,2}})?",
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]*:{_IN_URI}+(#{_IN_URI}*)?",
}


class NotWhole(InternalSignal, ValueError):
    """The pattern looks at more than the text it stands for."""


def literal(text: str) -> str:
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if _PLAIN.match(character) or character > "\x7f":
        return character
    return f"\\x{ord(character):02x}" if character < " " or character == "\x7f" else f"\\{character}"


def containing(pattern: str) -> str:
    return f"{ANY}({pattern}){ANY}"


def length(shortest: int, longest: int | None) -> str:
    return f"(?s:.{{{shortest},{'' if longest is None else longest}}})"


def whole(pattern: str) -> str:
    """A pattern of JSON Schema, which is found anywhere in a text, as one for all of the text. Anchors become the
    absence of what may stand around it, and so may stand at the ends of an alternative only."""
    return "|".join(map(_branch, _branches(pattern)))


def _branches(pattern: str) -> list[list[str]]:
    """The alternatives at the top, each as its characters and escapes."""
    branches: list[list[str]] = [[]]
    depth, class_began, at = 0, -1, 0
    while at < len(pattern):
        step = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(step)
        if class_began >= 0:
            # The first character of a class is not its end; a caret before that is not its first.
            inside = pattern[class_began : at - 1]
            class_began = -1 if step == "]" and inside not in ("", "^") else class_began
        elif step == "|" and not depth:
            branches.append([])
            continue
        else:
            class_began = at if step == "[" else -1
            depth += (step == "(") - (step == ")")
            if step in ("^", "$") and not depth:
                step = _BEGIN if step == "^" else _END
            elif step in ("^", "$", "\\b", "\\B", "\\A", "\\Z", "\\z"):
                raise NotWhole(f"{step} in its middle")
        branches[-1].append(_inside_slashes(step))
    return branches


def _branch(steps: list[str]) -> str:
    begins = steps[:1] == [_BEGIN]
    ends = steps[-1:] == [_END]
    inner = steps[begins : len(steps) - ends]
    if _BEGIN in inner or _END in inner:
        raise NotWhole("an anchor in its middle")
    return f"{'' if begins else ANY}({''.join(inner)}){'' if ends else ANY}"


def _inside_slashes(step: str) -> str:
    """As it stands in a grammar, between slashes and on one line."""
    return {"/": "\\/", "\n": "\\n", "\r": "\\r", "\\\n": "\\n"}.get(step, step)
