"""Readers of the asyncio consumers: the very same code reads from aiokafka_lite and aiokafka.

No record of these topics lacks a key or a value, and looking for None would cost time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from benchmarks.contestants.reader import Drained, Take
from benchmarks.measure import StarvedError


class Record(Protocol):
    """What the loops touch of a record."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


Partition = TypeVar("Partition")
Partition_contra = TypeVar("Partition_contra", contravariant=True)


class Consumer(Protocol[Partition_contra]):
    """What both consumers have in common."""

    def assign(self, partitions: Iterable[Partition_contra], /) -> None: ...
    async def seek_to_beginning(self, *partitions: Partition_contra) -> bool: ...
    def __aiter__(self) -> AsyncIterator[Record]: ...


class _AsyncioReader(Generic[Partition]):
    def __init__(
        self, consumer: Consumer[Partition], partitions: Sequence[Partition], version: str
    ) -> None:
        self._consumer: Final = consumer
        self._partitions: Final = partitions
        self.version: Final = version

    async def assign(self) -> None:
        self._consumer.assign(self._partitions)

    async def rewind(self) -> None:
        await self._consumer.seek_to_beginning()


class BatchReader(_AsyncioReader[Partition]):
    """Reads with a method that gives many records at a time."""

    def __init__(
        self,
        consumer: Consumer[Partition],
        partitions: Sequence[Partition],
        version: str,
        get: Callable[[], Awaitable[Mapping[Partition, Sequence[Record]]]],
    ) -> None:
        super().__init__(consumer, partitions, version)
        self._get: Final = get

    async def drain(self, records: int) -> Drained:
        get = self._get
        read = touched_bytes = 0
        while read < records:
            batches = await get()
            if not batches:
                raise StarvedError(f"nothing after {read} records")
            for batch in batches.values():
                read += len(batch)
                for record in batch:
                    touched_bytes += len(record.key) + len(record.value)  # type: ignore[arg-type]
        return Drained(read, touched_bytes)

    async def read(self, take: Take, pause_s: float = 0.0) -> None:
        while True:
            for batch in (await self._get()).values():
                if not take([record.value for record in batch]):
                    return
                if pause_s:
                    await asyncio.sleep(pause_s * len(batch))


class IteratorReader(_AsyncioReader[Partition]):
    """Reads with `async for`; has as long as four waits for all records together."""

    def __init__(
        self,
        consumer: Consumer[Partition],
        partitions: Sequence[Partition],
        version: str,
        wait_s: float,
    ) -> None:
        super().__init__(consumer, partitions, version)
        self._timeout_s: Final = 4 * wait_s

    async def drain(self, records: int) -> Drained:
        return await asyncio.wait_for(self._drain(records), timeout=self._timeout_s)

    async def _drain(self, records: int) -> Drained:
        read = touched_bytes = 0
        async for record in self._consumer:
            touched_bytes += len(record.key) + len(record.value)  # type: ignore[arg-type]
            read += 1
            if read == records:
                break
        return Drained(read, touched_bytes)

    async def read(self, take: Take, pause_s: float = 0.0) -> None:
        async for record in self._consumer:
            if not take((record.value,)):
                return
            if pause_s:
                await asyncio.sleep(pause_s)
