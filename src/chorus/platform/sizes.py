"""Numbers of bytes, for people."""

from __future__ import annotations


def size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
