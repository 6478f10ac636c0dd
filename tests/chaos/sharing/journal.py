"""What the handlers of a member did: a file for each member, complete also if that is killed."""

from __future__ import annotations

import enum
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple


class Did(enum.IntEnum):
    """What has happened to a delivery of a record."""

    BEGUN = 0
    FINISHED = 1
    # The member is stopping, so it releases the record.
    CANCELLED = 2
    # The client has reported that the lock is over.
    LOST = 3


class Row(NamedTuple):
    """One event. `at_s` is monotonic time, which is the same for all processes."""

    did: Did
    partition: int
    offset: int
    delivery_count: int
    at_s: float
    who: str


_ROW: Final = struct.Struct("<BIqHd")


class Journal:
    """Appends rows to a file, each by one call of the system. It is there once there is a row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def note(self, did: Did, partition: int, offset: int, delivery_count: int = 0) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        row = _ROW.pack(did, partition, offset, delivery_count, time.monotonic())
        os.write(self._file, row)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def rows_of(path: Path) -> Iterator[Row]:
    """Yield the rows of a member. Its name is that of the file."""
    for did, partition, offset, count, at_s in _ROW.iter_unpack(path.read_bytes()):
        yield Row(Did(did), partition, offset, count, at_s, path.stem)
