"""A subscription with its assignment, and what a consumer has next to it."""

from __future__ import annotations

import random
from typing import Any, Final, cast

from aiokafka_lite._chance import Chance
from aiokafka_lite._compat import override
from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.errors import KafkaError


class Holder:
    """Has a record that is finished singly."""

    size_bytes = 10


# By offset, the holders of the first records of a partition.
HOLDERS: Final = tuple(Holder() for _ in range(10))


class State(SubscriptionState):
    """What one consumer is subscribed to and assigned, with what its parts are given, too."""

    __slots__ = ("events", "finished", "gate", "observers", "reads", "works")

    def __init__(self) -> None:
        self.observers = Observers()
        self.reads = Reads(self.observers)
        super().__init__(self.observers, self.reads)
        self.works = Works(self, self.reads, self.observers)
        self.finished = Finished(self, self.reads, self.works, self.observers)
        self.events = Events()
        self.gate = Gate(self.reads.note_raised)

    def core(
        self, config: Any = None, *, buffer: Any = None, rng: random.Random | None = None
    ) -> Core:
        """What parts of a consumer are given; most need no buffer."""
        return Core(
            ConsumerConfig() if config is None else config,
            self,
            self.reads,
            self.works,
            self.finished,
            self.gate,
            self.events,
            self.observers,
            buffer,
            cast("Chance", random.Random(1) if rng is None else rng),
        )


class NotedGate(Gate):
    """A gate that no read looks at: it notes what is posted."""

    __slots__ = ("posted", "posted_to_poll")

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.posted: list[KafkaError] = []
        self.posted_to_poll: list[Exception] = []

    @override
    def post(self, error: KafkaError) -> None:
        self.posted.append(error)

    @override
    def post_to_poll(self, error: Exception) -> None:
        self.posted_to_poll.append(error)
