"""The base of every error of ours that tells its reader what to do."""

from __future__ import annotations


class ChorusError(Exception):
    """Something that whoever reads the message can put right: it names the thing and the remedy."""
