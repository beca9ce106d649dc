"""Which symbols a Linux library offers and asks for, read from the file: loading it would have side effects."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_SECTION_DYNSYM = 11


@dataclass(frozen=True)
class Symbols:
    defined: frozenset[str]
    wanted: frozenset[str]


def dynamic_symbols(library: Path) -> Symbols:
    """Reads 64-bit little-endian ELF, which is every Linux that MLX has wheels for."""
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{library} is not a 64-bit little-endian ELF library")
    try:
        return _symbols(data)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ValueError(f"{library} is damaged: {error}") from error


def _symbols(data: bytes) -> Symbols:
    (sections_at,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    # Per section: type, file offset, size, index of the linked section (its string table).
    sections = [struct.unpack_from("<4xI16xQQI", data, sections_at + index * entry_size) for index in range(count)]
    defined: set[str] = set()
    wanted: set[str] = set()
    for kind, offset, size, link in sections:
        if kind != _SECTION_DYNSYM:
            continue
        strings_at = sections[link][1]
        for at in range(offset, offset + size, 24):
            name_at, section = struct.unpack_from("<IxxH", data, at)
            start = strings_at + name_at
            name = data[start : data.index(b"\0", start)].decode("ascii", "replace")
            if name:
                (wanted if section == 0 else defined).add(name)
    return Symbols(frozenset(defined), frozenset(wanted))
