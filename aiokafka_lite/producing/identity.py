"""The producer id and epoch, and how the producer changes them.

A producer without transactions increments its epoch locally: the brokers of a partition accept any
higher one (KIP-360). It gets another id only when the epochs of an id are used up, or when a broker
has a higher one. With transactions the coordinator assigns ids and epochs, and this module does not
change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiokafka_lite.producing.batch import ProducerIdAndEpoch
from aiokafka_lite.producing.partition_queue import PartitionQueue

MAX_EPOCH: Final = 2**15 - 1


class CurrentIdentity:
    """The producer id and epoch of new batches. One writer: its methods.

    Args:
        on_used_up: Called when another producer id is needed. `renew` follows.
    """

    def __init__(self, on_used_up: Callable[[], None]) -> None:
        self._on_used_up = on_used_up
        self.current: ProducerIdAndEpoch | None = None

    def renew(self, identity: ProducerIdAndEpoch) -> None:
        """Set the id and epoch from a broker."""
        self.current = identity

    def give_up(self) -> None:
        """Drop the producer id until there is another one."""
        if self.current is not None:
            self.current = None
            self._on_used_up()

    def mend(self, queue: PartitionQueue) -> None:
        """Restart the sequences of a broken queue, under an epoch that it has not had."""
        if self.current is None:
            return
        if queue.identity == self.current:
            if self.current.epoch >= MAX_EPOCH:
                self.give_up()
                return
            self.current = self.current._replace(epoch=self.current.epoch + 1)
        queue.adopt(self.current)
