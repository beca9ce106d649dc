"""Who shares what is kept of a prompt, and which conversation it belongs to: told to the engine as digests, so that no
key and no client's own name leaves the front end."""

from __future__ import annotations

import hashlib
import json

LONGEST_NAME = 1024
"""Of a salt or of a conversation's name, in characters."""


def scope_of(salt: str, owner: str) -> str:
    """Empty where everybody shares; `owner` is empty unless each has a scope of its own."""
    return _digest("scope", salt, owner) if salt or owner else ""


def conversation_of(name: str, owner: str) -> str:
    """Empty for a conversation without a name; the same name means another conversation to another owner."""
    return _digest("conversation", name, owner) if name else ""


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
