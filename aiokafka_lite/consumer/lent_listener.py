"""A rebalance listener that the consumer holds, and nothing of what keeps running without it."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable

from aiokafka_lite._compat import override
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.structs import TopicPartition


class LentListener(ConsumerRebalanceListener):
    """Passes calls on to a listener, which often knows the consumer, without keeping it alive."""

    def __init__(self, listener: ConsumerRebalanceListener) -> None:
        self._listener = weakref.ref(listener)

    @override
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Awaitable[None] | None:
        listener = self._listener()
        return None if listener is None else listener.on_partitions_revoked(revoked)

    @override
    def on_partitions_lost(self, lost: set[TopicPartition]) -> Awaitable[None] | None:
        listener = self._listener()
        return None if listener is None else listener.on_partitions_lost(lost)

    @override
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> Awaitable[None] | None:
        listener = self._listener()
        return None if listener is None else listener.on_partitions_assigned(assigned)
