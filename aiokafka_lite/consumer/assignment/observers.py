"""Notifies observers of changes of subscription, assignment and partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.structs import TopicPartition


class Departure(NamedTuple):
    partitions: frozenset[TopicPartition]
    # Of the subscription, if it has one.
    listener: ConsumerRebalanceListener | None


# The observers of one kind of change.
Listeners = list[Callable[..., None]]


class Registrations:
    """Observers that are removed together. See `Observers.collect`."""

    def __init__(self) -> None:
        self._entries: list[tuple[Listeners, Callable[..., None]]] = []

    def note(self, listeners: Listeners, observer: Callable[..., None]) -> None:
        self._entries.append((listeners, observer))

    def drop(self, listeners: Listeners, observer: Callable[..., None]) -> None:
        for number, (added_to, each) in enumerate(self._entries):
            if added_to is listeners and each == observer:
                del self._entries[number]
                return

    def close(self) -> None:
        for listeners, observer in self._entries:
            listeners[:] = [each for each in listeners if each is not observer]
        self._entries.clear()


class Observers:
    """Callables per kind of change, in the order in which they were added."""

    def __init__(self) -> None:
        self._subscription: list[Callable[[], None]] = []
        self._assignment: list[Callable[[], None]] = []
        self._partition: list[Callable[[Cursor], None]] = []
        self._discard: list[Callable[[Cursor], None]] = []
        # Called by each get as it begins.
        self.of_gets: list[Callable[[], None]] = []
        # Called by the next record that is finished by itself, and then no more.
        self.of_progress: list[Callable[[], None]] = []
        self._departure: list[Callable[[Departure], None]] = []
        self._collecting = Registrations()

    def on_subscription_change(self, observer: Callable[[], None]) -> None:
        self._add(self._subscription, observer)

    def add_listener(self, observer: Callable[[], None]) -> None:
        """Call `observer` when the subscription changes, and when a read begins."""
        self._add(self._subscription, observer)
        self._add(self.of_gets, observer)

    def on_assignment_change(self, observer: Callable[[], None]) -> None:
        self._add(self._assignment, observer)

    def on_partition_change(self, observer: Callable[[Cursor], None]) -> None:
        self._add(self._partition, observer)

    def on_discard(self, observer: Callable[[Cursor], None]) -> None:
        self._add(self._discard, observer)

    def on_next_progress(self, observer: Callable[[], None]) -> None:
        """Call `observer` once, when a record is finished singly."""
        self._add(self.of_progress, observer)

    def on_departure(self, observer: Callable[[Departure], None]) -> None:
        self._add(self._departure, observer)

    def forget(self, observer: Callable[..., None]) -> None:
        for listeners in (
            self._subscription,
            self._assignment,
            self._partition,
            self._discard,
            self.of_gets,
            self.of_progress,
            self._departure,
        ):
            if observer in listeners:
                listeners.remove(observer)
                self._collecting.drop(listeners, observer)

    def collect(self) -> Registrations:
        """Collect observers from now on. Closing the result removes them."""
        self._collecting = Registrations()
        return self._collecting

    def _add(self, listeners: Listeners, observer: Callable[..., None]) -> None:
        listeners.append(observer)
        self._collecting.note(listeners, observer)

    # --- What has happened ----------------------------------------------------------------
    def subscription_changed(self) -> None:
        for observer in self._subscription:
            observer()

    def assignment_changed(self) -> None:
        for observer in self._assignment:
            observer()

    def progressed(self) -> None:
        told = self.of_progress[:]
        self.of_progress.clear()
        for observer in told:
            self._collecting.drop(self.of_progress, observer)
            observer()

    def acted(self) -> None:
        """Notify that the application finished records, as the begin of a read does."""
        for observer in self.of_gets:
            observer()

    def partition_changed(self, partition: Cursor) -> None:
        for observer in self._partition:
            observer(partition)

    def discarded(self, partition: Cursor) -> None:
        for observer in self._discard:
            observer(partition)

    def departed(self, departure: Departure) -> None:
        for observer in self._departure:
            observer(departure)
