"""What LocalAI is told when something does not work, as types the servicer maps to its results and codes."""

from __future__ import annotations


class LoadFailed(Exception):
    """The model cannot be loaded: names the option, the file or the rank, and why."""


class BadRequest(Exception):
    """The request cannot be served as it is: names the field."""


class NotServing(Exception):
    """The model was loaded and cannot be reached now: it recovers, or it was given up."""
