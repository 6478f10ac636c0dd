"""The parts that a consumer has from its creation to its end, and that its other parts use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff

if TYPE_CHECKING:
    from aiokafka_lite._chance import Chance
    from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
    from aiokafka_lite.consumer.assignment.finished import Finished
    from aiokafka_lite.consumer.assignment.observers import Observers
    from aiokafka_lite.consumer.assignment.reads import Reads
    from aiokafka_lite.consumer.assignment.works import Works
    from aiokafka_lite.consumer.buffer.buffer import Buffer
    from aiokafka_lite.consumer.config import ConsumerConfig
    from aiokafka_lite.consumer.events import Events
    from aiokafka_lite.consumer.gate import Gate


class Core(NamedTuple):
    """The engine makes it. See the class of each part."""

    config: ConsumerConfig
    state: SubscriptionState
    reads: Reads
    works: Works
    finished: Finished
    gate: Gate
    events: Events
    observers: Observers
    buffer: Buffer
    rng: Chance

    def new_backoff(self, longest_s: float = LONGEST_BACKOFF_S) -> Backoff:
        return Backoff(self.config.retry_backoff_s, longest_s, self.rng)
