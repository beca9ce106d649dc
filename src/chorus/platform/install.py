"""How Chorus is installed. It is on no package index, so that a hint names a checkout and never a name alone."""

from __future__ import annotations


def install_hint(pip: str = "pip", options: str = "") -> str:
    """What to type, for every kind of machine."""
    words = " ".join(word for word in (pip, "install", options) if word)
    return f"in a checkout of Chorus: {words} '.[cpu]' ('.[cuda13]' with an NVIDIA GPU, plain . on a Mac)"
