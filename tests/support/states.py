"""A subscription with its assignment, and what a consumer has next to it."""

from __future__ import annotations

from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.events.stream import Events
from aiokafka_lite.consumer.gate import Gate


class State(SubscriptionState):
    """What one consumer is subscribed to and assigned, with what its parts are given, too."""

    __slots__ = ("events", "gate", "reads")

    def __init__(self) -> None:
        observers = Observers()
        self.reads = Reads(observers)
        super().__init__(observers, self.reads)
        self.events = Events()
        self.gate = Gate(self.reads.note_raised)
