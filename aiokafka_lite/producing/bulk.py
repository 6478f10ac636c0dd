"""A producer for one caller with many records: it counts outcomes and makes no futures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aiokafka_lite._compat import Self
from aiokafka_lite._virtual import chance_for
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.producing.batch import Output
from aiokafka_lite.producing.config import AnyProducerConfig
from aiokafka_lite.producing.engine import ProducerLife
from aiokafka_lite.structs import RecordMetadata

# The size of unacknowledged records, in bytes, at which `send` waits. Less than buffer_memory,
# which limits the size of one record here: more records would only age behind a slow connection.
MOST_WAITING_BYTES: Final = 2 << 20


class LostRecords(NamedTuple):
    """Records that were not acknowledged because of one error, with their numbers from 1."""

    numbers: Sequence[int]
    error: KafkaError

    @property
    def at_fault(self) -> Sequence[int]:
        """The records that the broker names in its error (KIP-467), or all if it names none."""
        return [self.numbers[index] for index in self.error.batch_indexes] or self.numbers


class BulkProducer:
    """Writes records like `AIOKafkaProducer`, and numbers them in the order of `send`.

    The config has no transactional id. `on_loss` is called when records are not acknowledged.
    """

    def __init__(self, config: AnyProducerConfig, on_loss: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        chance = chance_for(config.seed, config.chance_name, loop)
        self._life = ProducerLife(config, chance, loop, self._tell)
        self._on_loss = on_loss
        self.acknowledged_count = 0
        self.losses: list[LostRecords] = []

    async def __aenter__(self) -> Self:
        await self._life.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, timeout: float | None = None) -> None:
        """Send the buffered records, wait for acknowledgements and disconnect. Idempotent.

        After `timeout` seconds the other records fail. None waits up to `delivery_timeout_ms`.
        """
        await self._life.stop(timeout)

    def send_nowait(self, output: Output) -> bool:
        """Put a record into a batch. Return False if the record has to wait (`send`)."""
        accumulator = self._life.accumulator
        return (
            accumulator is not None
            and accumulator.used_bytes < MOST_WAITING_BYTES
            and accumulator.append(*output) is not None
        )

    async def send(self, output: Output) -> None:
        """Put a record into a batch once there is room. Raises as `AIOKafkaProducer.send`."""
        engine = self._life.running

        def must_wait() -> bool:
            self._life.raise_if_fatal()
            return engine.accumulator.used_bytes >= MOST_WAITING_BYTES

        await engine.append(output, must_wait)

    def _tell(self, numbers: Sequence[int], outcome: RecordMetadata | KafkaError) -> None:
        if isinstance(outcome, RecordMetadata):
            self.acknowledged_count += len(numbers)
        elif numbers:
            self.losses.append(LostRecords(numbers, outcome))
            self._on_loss()
