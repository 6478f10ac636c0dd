"""The recorded corpus: frames of real Kafkas in one compressed file. `recording.py` writes it."""

from __future__ import annotations

import enum
import lzma
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = Path(__file__).parent / "corpus.xz"
_HEAD: Final = struct.Struct(">BBhhI")


class Kind(enum.IntEnum):
    """What an entry is."""

    RESPONSE = 0  # a frame, from the correlation id on
    REQUEST = 1  # a frame, from the API key on
    RECORDS = 2  # a record set, as a broker returns it
    GROUP_RECORDS = 3  # a record set of __consumer_offsets
    TRANSACTION_RECORDS = 4  # a record set of __transaction_state


class Entry(NamedTuple):
    """One recorded frame, and the version of Kafka that it is of."""

    kind: Kind
    source: str
    api_key: int
    version: int
    content: bytes


def packed(entries: Iterable[Entry]) -> bytes:
    parts = []
    for kind, source, api_key, version, content in entries:
        name = source.encode()
        parts += [_HEAD.pack(kind, len(name), api_key, version, len(content)), name, content]
    return lzma.compress(b"".join(parts), preset=9)


def unpacked(content: bytes) -> Sequence[Entry]:
    content, found, pos = lzma.decompress(content), [], 0
    while pos < len(content):
        kind, name_size, api_key, version, size = _HEAD.unpack_from(content, pos)
        pos += _HEAD.size
        source = content[pos : pos + name_size].decode()
        pos += name_size
        found.append(Entry(Kind(kind), source, api_key, version, content[pos : pos + size]))
        pos += size
    return found


@cache
def recorded() -> Sequence[Entry]:
    return unpacked(FILE.read_bytes()) if FILE.exists() else ()


def recorded_of(kind: Kind) -> list[Entry]:
    return [entry for entry in recorded() if entry.kind is kind]
