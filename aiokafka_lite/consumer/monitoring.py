"""The consumer's methods for operators: what happens to it, and how it is."""

from __future__ import annotations

from aiokafka_lite.consumer.event_stream import DEFAULT_BUFFERED_EVENTS, EventSubscription
from aiokafka_lite.consumer.state import SubscriptionState


class Monitoring:
    """What AIOKafkaConsumer tells of itself."""

    _state: SubscriptionState

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
        """
        return self._state.events.subscribe(max_buffered)
