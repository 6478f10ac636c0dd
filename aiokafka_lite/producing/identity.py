"""Which producer id and epoch this producer has, and how it comes to another one.

A producer without transactions takes the next epoch by itself: the brokers of a partition take any
higher one (KIP-360). Only when the epochs of an id are used up, or a broker knows a higher one, is
another id asked for. With transactions ids and epochs come from the coordinator, and nothing here
is mended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiokafka_lite.producing.batch import ProducerIdAndEpoch
from aiokafka_lite.producing.partition_queue import PartitionQueue

MAX_EPOCH: Final = 2**15 - 1


class CurrentIdentity:
    """The identity under which new batches are sent. One writer: its methods.

    Args:
        on_used_up: Called when another producer id is needed; somebody `renew`s then.
    """

    def __init__(self, on_used_up: Callable[[], None]) -> None:
        self._on_used_up = on_used_up
        self.current: ProducerIdAndEpoch | None = None

    def renew(self, identity: ProducerIdAndEpoch) -> None:
        """Take over what a broker gave."""
        self.current = identity

    def give_up(self) -> None:
        """Do without, until there is another producer id."""
        if self.current is not None:
            self.current = None
            self._on_used_up()

    def mend(self, queue: PartitionQueue) -> None:
        """Let a broken queue begin anew, under another epoch than it has had."""
        if self.current is None:
            return
        if queue.identity == self.current:
            if self.current.epoch >= MAX_EPOCH:
                self.give_up()
                return
            self.current = self.current._replace(epoch=self.current.epoch + 1)
        queue.adopt(self.current)
