"""The consumer's methods for operators: what happens to it, and how it is.

What they take is imported when one of them is first called.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiokafka_lite.consumer.arguments import check_partition
from aiokafka_lite.consumer.engine import Engine
from aiokafka_lite.consumer.monitoring.event_stream import (
    DEFAULT_BUFFERED_EVENTS,
    EventSubscription,
)
from aiokafka_lite.consumer.state import SubscriptionState
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.monitoring.health import Health


class Monitoring:
    """What AIOKafkaConsumer tells of itself."""

    _engine: Engine
    _state: SubscriptionState
    _loop: asyncio.AbstractEventLoop

    def events(self, max_buffered: int = DEFAULT_BUFFERED_EVENTS) -> EventSubscription:
        """Return an iterator of what happens to the consumer from now on: `aiokafka_lite.events`.

        ::

            async for event in consumer.events():
                print(event.name, event)

        May be called before `start`, and any number of times: every iterator gets all events, and
        none holds up the consumer. The iteration ends when the consumer is stopped. Waiting for
        an event may be cancelled; no event is lost by it.

        Args:
            max_buffered: How many events wait for this iterator. When there are more, the oldest
                are dropped, and an event says how many.

        Raises:
            ValueError: `max_buffered` is not positive.
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        self._engine.owner.check_now()
        return self._state.events.subscribe(max_buffered)

    def health(self) -> Health:
        """Return a verdict on the consumer, with reasons that say what to do.

        Works at any time, also before `start`, while it runs and after `stop`. It asks nobody,
        so it may be called as often as a probe likes: some microseconds for each partition that is
        not being fetched just now, less for the others. A thread gets it by
        `loop.call_soon_threadsafe` or `asyncio.run_coroutine_threadsafe`.

        Raises:
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        from aiokafka_lite.consumer.monitoring.health import examine

        self._engine.owner.check_now()

        return examine(self._engine, self._loop.time())

    def explain(self, partition: TopicPartition) -> str:
        """Return a sentence that says why nothing comes of a partition just now.

        Works at any time and for any partition, assigned or not; asks nobody.

        Raises:
            TypeError: It is not a TopicPartition.
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        from aiokafka_lite.consumer.monitoring.diagnosis import diagnose

        self._engine.owner.check_now()
        partition = check_partition(partition)
        self._state.settle()
        return diagnose(self._engine, partition, self._loop.time()).text

    def metrics(self) -> dict[str, object]:
        """Return the consumer's numbers, as values that `json.dumps` takes.

        Names ending in _total count since the consumer was made; docs/monitoring.md lists all.
        "partitions" and "nodes" are lists of dicts. After a stop the counters stay as they were.

        Raises:
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        from aiokafka_lite.consumer.monitoring.metrics import measure

        self._engine.owner.check_now()

        return measure(self._engine, self._loop.time())
