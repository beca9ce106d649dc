"""How each architecture is divided inside its layers. A package that brings an architecture registers its own rule."""

from __future__ import annotations

from chorus.rank.tensor.rules.cuts import Cut, take
from chorus.rank.tensor.rules.parts import Block, Heads, Inner, Rule
from chorus.rank.tensor.rules.registry import of_decoder, register, registered
from chorus.rank.tensor.rules.shares import TensorError

__all__ = ["Block", "Cut", "Heads", "Inner", "Rule", "TensorError", "of_decoder", "register", "registered", "take"]
