"""A subscription with its assignment, and what a consumer has next to it."""

from __future__ import annotations

from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.events.stream import Events
from aiokafka_lite.consumer.gate import Gate


class State(SubscriptionState):
    """What one consumer is subscribed to and assigned, with what its parts are given, too."""

    __slots__ = ("events", "gate")

    def __init__(self) -> None:
        super().__init__(Observers())
        self.events = Events()
        self.gate = Gate(self.note_raised)
