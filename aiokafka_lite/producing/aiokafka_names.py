"""Private attributes of aiokafka's producer that existing programs use.

=============================================  =====================================================
attribute                                      used by
=============================================  =====================================================
``client``, ``_client``, ``_metadata``         see client/aiokafka_names.py
``_partitioner``, ``_partition()``             kstreams, OpenTelemetry's instrumentation
``_sender.sender_task.done()``                 health checks: whether the producer still works
``_txn_manager.is_fatal_error()``              programs' own copies of aiokafka's transaction block
``_txn_manager.is_in_transaction()``           programs that abort an open transaction before stop
``_txn_manager.transactional_id``              tests of flechtwerk and kstreams
``_txn_manager.producer_id``, ``.has_pid()``   logs, and tests of fencing
=============================================  =====================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aiokafka_lite._virtual import chance_here
from aiokafka_lite.producing.batch import ProducerIdAndEpoch
from aiokafka_lite.producing.engine import ProducerLife
from aiokafka_lite.producing.transactions import NOBODY
from aiokafka_lite.records.partitioner import partition_for_key


def choose_partition(
    key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]
) -> int:
    """Choose like aiokafka's default partitioner: by the key, or any partition with a leader."""
    if key is None:
        return chance_here("partition").choice(available or all_partitions)
    return all_partitions[partition_for_key(key, len(all_partitions))]


class SenderNames:
    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over

    @property
    def sender_task(self) -> asyncio.Future[None]:
        """A future that is done when the producer sends no more records."""
        future = asyncio.get_running_loop().create_future()
        if self._is_over():
            future.set_result(None)
        return future


class TransactionNames:
    def __init__(self, life: ProducerLife, transactional_id: str | None) -> None:
        self._life = life
        self.transactional_id = transactional_id

    def is_in_transaction(self) -> bool:
        engine = self._life.parts
        transactions = None if engine is None else engine.transactions
        return transactions is not None and transactions.takes_records

    def is_fatal_error(self) -> bool:
        return self._life.fatal is not None

    @property
    def _identity(self) -> ProducerIdAndEpoch:
        engine = self._life.parts
        return (None if engine is None else engine.identity.current) or NOBODY

    @property
    def producer_id(self) -> int:
        """-1 until a broker has assigned one."""
        return self._identity.producer_id

    @property
    def producer_epoch(self) -> int:
        """-1 until a broker has assigned one."""
        return self._identity.epoch

    def has_pid(self) -> bool:
        return self.producer_id != NOBODY.producer_id
