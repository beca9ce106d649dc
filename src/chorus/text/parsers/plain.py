"""Models that call no tools: text, and reasoning where the template shows some."""

from __future__ import annotations

from chorus.text.parsers.family import ParserFamily
from chorus.text.parsers.outline import OutlineParser
from chorus.text.parsers.source import Malformed, Steps


class PlainParser(OutlineParser):
    def call(self, opened_by: str) -> Steps[None]:
        raise Malformed
        yield


FAMILY = ParserFamily(name="none", parser=PlainParser, calls=None, signs=(), needs_special_tokens=False)
