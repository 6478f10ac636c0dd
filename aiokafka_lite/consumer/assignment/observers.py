"""Notifies observers of changes of subscription, assignment and partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, ParamSpec

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.structs import TopicPartition

P = ParamSpec("P")


class Departure(NamedTuple):
    partitions: frozenset[TopicPartition]
    # Of the subscription, if it has one.
    listener: ConsumerRebalanceListener | None


class Registrations:
    """Observers that are removed together: those added to signals since `Observers.collect`."""

    def __init__(self) -> None:
        self.entries: list[tuple[Signal[...], Callable[..., None]]] = []

    def close(self) -> None:
        for signal, observer in self.entries:
            signal.observers[:] = [each for each in signal.observers if each is not observer]
        self.entries.clear()


class Signal(Generic[P]):
    """One kind of change: a call notifies its observers, in the order in which they were added."""

    __slots__ = ("_collected", "observers")

    def __init__(self, collected: list[Registrations]) -> None:
        self._collected = collected
        self.observers: list[Callable[P, None]] = []

    def add(self, observer: Callable[P, None]) -> None:
        self.observers.append(observer)
        self._collected[-1].entries.append((self, observer))

    def forget(self, observer: Callable[P, None]) -> None:
        if observer in self.observers:
            self.observers.remove(observer)
            entries = self._collected[-1].entries
            if (self, observer) in entries:
                entries.remove((self, observer))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for observer in self.observers:
            observer(*args, **kwargs)

    def notify_once(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for observer in tuple(self.observers):
            self.forget(observer)
            observer(*args, **kwargs)


class Observers:
    """The signals of one consumer.

    Attributes:
        acted: A read begins, or the application has finished records.
        progressed: A record was finished singly. Each observer is notified once.
        departed: The application's own change removes partitions.
    """

    def __init__(self) -> None:
        self._collected = [Registrations()]
        self.subscription_changed: Signal[[]] = self._new()
        self.assignment_changed: Signal[[]] = self._new()
        self.partition_changed: Signal[[Cursor]] = self._new()
        self.discarded: Signal[[Cursor]] = self._new()
        self.acted: Signal[[]] = self._new()
        self.progressed: Signal[[]] = self._new()
        self.departed: Signal[[Departure]] = self._new()

    def _new(self) -> Signal[Any]:
        return Signal(self._collected)

    def collect(self) -> Registrations:
        """Collect observers from now on. Closing the result removes them."""
        self._collected[-1] = Registrations()
        return self._collected[-1]
