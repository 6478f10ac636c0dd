"""Writes the markers that end a transaction (Kafka: TransactionMarkerChannelManager).

Markers are usually written before the EndTxn response. Failed writes are retried: no leader, a
loading coordinator, a failed disk. Transactions with many partitions yield to the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiokafka_lite.broker.transactions.machine import ErrorType, Transaction
from aiokafka_lite.errors import (
    InvalidProducerEpoch,
    NoError,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

MARKERS_AT_ONCE: Final = 200
RETRY_S: Final = 0.1

# Final results. Otherwise the topic was deleted, or a newer marker exists.
SETTLED: Final = (
    NoError,
    UnknownTopicOrPartitionError,
    InvalidProducerEpoch,
    TransactionCoordinatorFenced,
)


class MarkerWriter:
    """The transactions of one node that are ending.

    `finish` is called when every partition has its marker, and again after it returns False.
    """

    def __init__(
        self,
        write: Callable[[Transaction, TopicPartition], ErrorType],
        finish: Callable[[Transaction], bool],
    ) -> None:
        self._write = write
        self._finish = finish
        self._ending: dict[str, Transaction] = {}
        self._timers: dict[str, asyncio.Handle] = {}
        self._is_held = False

    def begin(self, transaction: Transaction) -> None:
        """Write the markers of a transaction, at once if possible."""
        self._ending[transaction.transactional_id] = transaction
        self._continue(transaction)

    def forget(self, transactional_id: str) -> None:
        """Stop a transaction that another node coordinates now."""
        self._ending.pop(transactional_id, None)
        self._cancel(transactional_id)

    def hold(self) -> None:
        """Write no markers until `release`."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        for transaction in tuple(self._ending.values()):
            self._continue(transaction)

    def close(self) -> None:
        for transactional_id in tuple(self._ending):
            self.forget(transactional_id)

    def _continue(self, transaction: Transaction) -> None:
        transactional_id = transaction.transactional_id
        self._cancel(transactional_id)
        if self._is_held:
            return
        failed = False
        partitions = tuple(transaction.unmarked)
        for tp in partitions[:MARKERS_AT_ONCE]:
            error = self._write(transaction, tp)
            if error in SETTLED:
                if error is not NoError:
                    log.info(
                        "the transaction marker of transactional id %r was not written to %s: %s",
                        transactional_id, tp, error.message,
                    )  # fmt: skip
                transaction.marked(tp)
            else:
                failed = True
        if transaction.unmarked:
            self._schedule(transaction, RETRY_S if failed else 0)
        elif self._finish(transaction):
            del self._ending[transactional_id]
        else:
            self._schedule(transaction, RETRY_S)

    def _schedule(self, transaction: Transaction, delay_s: float) -> None:
        self._timers[transaction.transactional_id] = asyncio.get_running_loop().call_later(
            delay_s, self._continue, transaction
        )

    def _cancel(self, transactional_id: str) -> None:
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
