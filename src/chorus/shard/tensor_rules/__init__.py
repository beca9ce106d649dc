"""How each architecture is divided inside its layers. A package that brings an architecture registers its own rule."""

from __future__ import annotations

from chorus.shard.tensor_rules.cuts import Cut, take
from chorus.shard.tensor_rules.parts import Block, Heads, Inner, Rule
from chorus.shard.tensor_rules.registry import of_decoder, register, registered
from chorus.shard.tensor_rules.shares import TensorError

__all__ = ["Block", "Cut", "Heads", "Inner", "Rule", "TensorError", "of_decoder", "register", "registered", "take"]
