"""The error of everything here."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be used: one line that says what, why, and what to do about it."""
