"""A subscription with its assignment, and what a consumer has next to it."""

from __future__ import annotations

from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.events.stream import Events
from aiokafka_lite.consumer.gate import Gate


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
