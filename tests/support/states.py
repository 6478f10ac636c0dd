"""A subscription with its assignment, and what a consumer has next to it."""

from __future__ import annotations

from aiokafka_lite.consumer.assignment.subscription import SubscriptionState


class State(SubscriptionState):
    """What one consumer is subscribed to and assigned, with what its parts are given, too."""

    __slots__ = ()
