"""What the clients did, in a file for each partition: 14 bytes for each record and client."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aiokafka_lite.simulation.history import Event, Kind
from aiokafka_lite.structs import TopicPartition

INPUT: Final = "input"
COPY: Final = "copy"
PARTITIONS: Final = 12
READERS: Final = ("run", "loop", COPY)
PROCESSES: Final = ("producer", "run-0", "run-1", "loop-0", "loop-1")
_KINDS: Final = (Kind.ACKED, Kind.RETURNED, Kind.ASSIGNED, Kind.REVOKED, Kind.LOST)
_ROW: Final = struct.Struct("<BBfii")  # of both tuples the index, time, offset, number


def value_of(number: int) -> bytes:
    """Return the value of a record, which no other one of its partition has."""
    return b"%050d" % number


class Journal:
    """Appends events.

    Attributes:
        sent, acked: By partition, how many records.
        reached: By reader and partition, up to which record it has them.
        errors: Errors that applications were given.
    """

    def __init__(self, home: Path) -> None:
        self.paths = [home / f"{partition}.rows" for partition in range(PARTITIONS)]
        self._files = [path.open("wb") for path in self.paths]
        self._began = time.monotonic()
        self.sent, self.acked = [0] * PARTITIONS, [0] * PARTITIONS
        self.reached = {name: [0] * PARTITIONS for name in READERS}
        self.errors = Counter[str]()

    def now(self) -> float:
        return time.monotonic() - self._began

    def note(self, kind: Kind, who: str, partition: int, offset: int = -1, number: int = 0) -> None:
        row = (_KINDS.index(kind), PROCESSES.index(who), self.now(), offset, number)
        self._files[partition].write(_ROW.pack(*row))

    def reach(self, name: str, partition: int, value: bytes | None) -> int:
        """Note that a reader has a record; return its number."""
        number = int(value or b"-1")
        self.reached[name][partition] = max(self.reached[name][partition], number + 1)
        return number

    def behind(self, name: str) -> int:
        """Return how many acknowledged records a reader does not have."""
        pairs = zip(self.acked, self.reached[name], strict=True)
        return sum(max(0, acked - reached) for acked, reached in pairs)

    def close(self) -> None:
        for file in self._files:
            file.close()


def events_of(index: int, path: Path, sent: int) -> Iterator[Event]:
    """Yield the events of a partition, to which so many records were sent."""
    tp = TopicPartition(INPUT, index)
    values = [value_of(number) for number in range(sent)]
    yield from (Event(0.0, Kind.SENT, "producer", tp, -1, value) for value in values)
    for kind, who, at_s, offset, number in _ROW.iter_unpack(path.read_bytes()):
        value = values[number] if offset >= 0 else b""
        yield Event(at_s, _KINDS[kind], PROCESSES[who], tp, offset, value)
