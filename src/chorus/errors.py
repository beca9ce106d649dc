"""The bases of every exception of ours: either people read it, or nobody outside its package meets it."""

from __future__ import annotations


class ChorusError(Exception):
    """An error whose message is for people: it names the thing and, where there is one, the remedy."""


class CannotListen(ChorusError, OSError):
    """An address cannot be used: names it and the remedy."""


class InternalSignal(Exception):
    """Control flow inside one package, which catches it itself: callers of the package never meet it."""
