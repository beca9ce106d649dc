"""Chorus: many machines, one voice."""

__version__ = "0.1.0"
