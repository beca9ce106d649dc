"""Models that call no tools: text, and reasoning where the template shows some."""

from __future__ import annotations

from chorus.text.parsers.toolkit.family import ParserFamily
from chorus.text.parsers.toolkit.outline import OutlineParser
from chorus.text.parsers.toolkit.source import Malformed, Steps


class PlainParser(OutlineParser):
    def call(self, opened_by: str) -> Steps[None]:
        raise Malformed
        yield


FAMILY = ParserFamily(name="none", parser=PlainParser, calls=None, signs=(), needs_special_tokens=False)
