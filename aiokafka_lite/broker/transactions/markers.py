"""Writing the markers that end a transaction, to every partition it wrote to.

As a rule all are there before the decision to end is answered: everything is on one loop. What
cannot be written at once (a partition without a leader, an offsets topic being loaded, a disk that
refuses) is tried again until it can; a transaction of very many partitions lets others run
between. Reference: kafka.coordinator.transaction.TransactionMarkerChannelManager.
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

# There is nothing to end any more: the topic was deleted, or someone newer has ended it.
SETTLED: Final = (
    NoError,
    UnknownTopicOrPartitionError,
    InvalidProducerEpoch,
    TransactionCoordinatorFenced,
)


class MarkerWriter:
    """The transactions of one node that are ending.

    Args:
        write: Writes the marker of a transaction to a partition, or says why not.
        finish: Called when every partition has its marker; returns False to be called again.
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
        """Write the markers of a transaction that is ending, at once if possible."""
        self._ending[transaction.transactional_id] = transaction
        self._continue(transaction)

    def forget(self, transactional_id: str) -> None:
        """Write no more for a transaction: another node coordinates it, and will."""
        self._ending.pop(transactional_id, None)
        self._cancel(transactional_id)

    def hold(self) -> None:
        """Write no markers until `release`, so that transactions stay undecided in partitions."""
        self._is_held = True

    def release(self) -> None:
        """Write what was held back."""
        self._is_held = False
        for transaction in tuple(self._ending.values()):
            self._continue(transaction)

    def close(self) -> None:
        """Write no more. What is left is written after the next start."""
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
