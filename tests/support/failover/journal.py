"""What writer and readers write down: a file of lines per process, read while it grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Final, NamedTuple, TypeAlias

UNKNOWN_OFFSET: Final = -1


class Written(NamedTuple):
    """A record that the cluster has acknowledged; times in nanoseconds.

    The offset may not be known: UNKNOWN_OFFSET.
    """

    partition: int
    sequence: int
    offset: int
    sent_ns: int
    acked_ns: int


class Received(NamedTuple):
    """A record that was handed to the application."""

    partition: int
    sequence: int
    offset: int
    sent_ns: int
    at_ns: int


class Rebalanced(NamedTuple):
    """The application was told that partitions were given to it, or taken away."""

    is_assigned: bool
    partitions: list[int]
    at_ns: int


class Failed(NamedTuple):
    """An error that the application was given."""

    reason: str
    at_ns: int


Entry: TypeAlias = Written | Received | Rebalanced | Failed
KINDS: Final[dict[str, type[Entry]]] = {
    kind.__name__: kind for kind in (Written, Received, Rebalanced, Failed)
}


class JournalWriter:
    """Appends entries to a file; `flush` shows them to whoever reads it."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w")

    def note(self, entry: Entry) -> None:
        """Append an entry."""
        self._file.write(json.dumps([type(entry).__name__, *entry]) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Journal:
    """The entries of one process so far, in the order written."""

    def __init__(self, path: Path) -> None:
        self.written: list[Written] = []
        self.received: list[Received] = []
        self.rebalances: list[Rebalanced] = []
        self.failures: list[Failed] = []
        self._path = path
        self._read_bytes = 0

    def read_on(self) -> None:
        """Read what was added since the last time; a line that is not whole waits."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            kind, *fields = json.loads(line)
            self._keep(KINDS[kind](*fields))

    def _keep(self, entry: Entry) -> None:
        if isinstance(entry, Received):
            self.received.append(entry)
        elif isinstance(entry, Written):
            self.written.append(entry)
        elif isinstance(entry, Rebalanced):
            self.rebalances.append(entry)
        else:
            self.failures.append(entry)
