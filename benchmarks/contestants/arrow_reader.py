"""The reader of Arrow record batches, whose rows are touched by pyarrow, a column at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from aiokafka_lite import AIOKafkaConsumer, TopicPartition, __version__
from benchmarks.contestants.reader import Drained, Take


class ArrowReader:
    """Reads with `async for batch in consumer.batches()`; has as long as four waits for all."""

    version: Final = f"{__version__}, pyarrow {pa.__version__}"

    def __init__(
        self, consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition], wait_s: float
    ) -> None:
        self._consumer: Final = consumer
        self._partitions: Final = partitions
        self._timeout_s: Final = 4 * wait_s

    async def assign(self) -> None:
        self._consumer.assign(self._partitions)

    async def rewind(self) -> None:
        await self._consumer.seek_to_beginning()

    async def drain(self, records: int) -> Drained:
        return await asyncio.wait_for(self._drain(records), timeout=self._timeout_s)

    async def _drain(self, records: int) -> Drained:
        read = touched_bytes = 0
        async for batch in self._consumer.batches():
            read += batch.num_rows
            for name in ("key", "value"):
                touched_bytes += pc.sum(pc.binary_length(batch.column(name))).as_py()
            if read >= records:
                break
        return Drained(read, touched_bytes)

    async def read(self, take: Take, pause_s: float = 0.0) -> None:
        async for batch in self._consumer.batches():
            if not take(batch.column("value").to_pylist()):
                return
            if pause_s:
                await asyncio.sleep(pause_s * batch.num_rows)
