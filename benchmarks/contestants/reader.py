"""What a contestant is to a task: something that reads."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.measure import Workload

Take = Callable[[Sequence[bytes | None]], bool]
"""Gets the values of the records that came together; returns whether to go on."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What was read, and the lengths of all keys and values; None if these were not looked at."""

    records: int
    touched_bytes: int | None


class Reader(Protocol):
    """A client that is connected and knows the cluster, with no partitions yet.

    Blocking clients block the event loop in `drain`, where nothing else runs; in `read` they have
    a thread.
    """

    @property
    def version(self) -> str:
        """The client's version."""

    async def assign(self) -> None:
        """Assign the workload's partitions."""

    async def rewind(self) -> None:
        """Go back to the first record."""

    async def drain(self, records: int) -> Drained:
        """Read so many records as fast as can be, touching key and value of each.

        Raises:
            StarvedError: No record came for a long time.
        """

    async def read(self, take: Take, pause_s: float = 0.0) -> None:
        """Hand what comes to `take` until that returns False, or until cancelled.

        After each record, or after each get of several, the application sleeps `pause_s` for
        every record.
        """


def open_reader(subject: str, workload: Workload) -> AbstractAsyncContextManager[Reader]:
    """Return the reader that `subject` ("module:function" of this package) opens."""
    module_name, _, function_name = subject.partition(":")
    module = importlib.import_module(f"benchmarks.contestants.{module_name}")
    function: Callable[[Workload], AbstractAsyncContextManager[Reader]]
    function = getattr(module, function_name)
    return function(workload)
