"""What LocalAI is told when something does not work, as types the servicer maps to its results and codes."""

from __future__ import annotations

from chorus.errors import ChorusError


class LoadFailed(ChorusError):
    """The model cannot be loaded: names the option, the file or the rank, and why."""


class BadRequest(ChorusError):
    """The request cannot be served as it is: names the field."""


class NotServing(ChorusError):
    """The model was loaded and cannot be reached now: it recovers, or it was given up."""
