"""The error of everything here."""

from __future__ import annotations

from chorus.errors import ChorusError


class ModelError(ChorusError):
    """A model cannot be used: one line that says what, why, and what to do about it."""
