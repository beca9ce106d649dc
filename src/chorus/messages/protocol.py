"""The version of all that processes of different machines say to each other, and who may work with whom."""

from __future__ import annotations

PROTOCOL = 2
"""Raise it with a change after which an older Chorus would misread, or could not answer, what this one sends: on the
links of agents and ranks, between their tensors, at an agent's door. A field that the other side may ignore is none.
Nodes whose releases did not name a protocol yet say 0.
"""


def misfit(who: str, protocol: int, version: str, own_version: str, here: str) -> str | None:
    """Why somebody of that protocol cannot work with this process; None: they can, whatever their releases are."""
    if protocol == PROTOCOL:
        return None
    older = who if protocol < PROTOCOL else here
    return (
        f"{who} runs Chorus {version or 'of unknown release'} (protocol {protocol}), {here} {own_version} "
        f"(protocol {PROTOCOL}): install a newer Chorus on {older}"
    )
