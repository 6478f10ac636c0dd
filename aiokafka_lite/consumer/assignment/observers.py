"""Tells others of changes of a consumer's subscription, assignment and partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.structs import TopicPartition


class Departure(NamedTuple):
    """Partitions that the application gives up: by `unsubscribe`, or of those that it assigned."""

    partitions: frozenset[TopicPartition]
    # That of the subscription; None: nobody is to be told.
    listener: ConsumerRebalanceListener | None


# Those who hear of one kind of change.
Listeners = list[Callable[..., None]]


class Registrations:
    """Collects observers that are forgotten together; see `Observers.collect`."""

    def __init__(self) -> None:
        self._entries: list[tuple[Listeners, Callable[..., None]]] = []

    def note(self, listeners: Listeners, observer: Callable[..., None]) -> None:
        """Note one that was added."""
        self._entries.append((listeners, observer))

    def drop(self, listeners: Listeners, observer: Callable[..., None]) -> None:
        """Drop one that was forgotten before."""
        for number, (added_to, each) in enumerate(self._entries):
            if added_to is listeners and each == observer:
                del self._entries[number]
                return

    def close(self) -> None:
        """Forget them: what they belong to is stopped. Idempotent."""
        for listeners, observer in self._entries:
            listeners[:] = [each for each in listeners if each is not observer]
        self._entries.clear()


class Observers:
    """Holds callables for each kind of change, and calls them in the order of their adding."""

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
        """Call `observer` after each change of topics, pattern or mode."""
        self._add(self._subscription, observer)

    def add_listener(self, observer: Callable[[], None]) -> None:
        """Call `observer` after each change of the subscription, and when a get begins."""
        self._add(self._subscription, observer)
        self._add(self.of_gets, observer)

    def on_assignment_change(self, observer: Callable[[], None]) -> None:
        """Call `observer` after partitions were assigned or taken away."""
        self._add(self._assignment, observer)

    def on_partition_change(self, observer: Callable[[Cursor], None]) -> None:
        """Call `observer` after a partition was paused, resumed, moved, or fetched from anew."""
        self._add(self._partition, observer)

    def on_discard(self, observer: Callable[[Cursor], None]) -> None:
        """Call `observer` when what is buffered of a partition must not be handed out."""
        self._add(self._discard, observer)

    def on_next_progress(self, observer: Callable[[], None]) -> None:
        """Call `observer` once, when more may be committed as a record was finished by itself."""
        self._add(self.of_progress, observer)

    def on_departure(self, observer: Callable[[Departure], None]) -> None:
        """Call `observer` before the application gives up partitions."""
        self._add(self._departure, observer)

    def forget(self, observer: Callable[..., None]) -> None:
        """Call an observer no more, whatever it was added for."""
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
        """Collect the observers that are added from now on; closing the result forgets them."""
        self._collecting = Registrations()
        return self._collecting

    def _add(self, listeners: Listeners, observer: Callable[..., None]) -> None:
        listeners.append(observer)
        self._collecting.note(listeners, observer)

    # --- What has happened ----------------------------------------------------------------
    def subscription_changed(self) -> None:
        """Tell that topics, pattern or mode have changed."""
        for observer in self._subscription:
            observer()

    def assignment_changed(self) -> None:
        """Tell that partitions were assigned or taken away."""
        for observer in self._assignment:
            observer()

    def progressed(self) -> None:
        """Tell that a record was finished by itself."""
        told = self.of_progress[:]
        self.of_progress.clear()
        for observer in told:
            self._collecting.drop(self.of_progress, observer)
            observer()

    def acted(self) -> None:
        """Tell that the application has finished something, as a get's beginning does."""
        for observer in self.of_gets:
            observer()

    def partition_changed(self, partition: Cursor) -> None:
        """Tell that a partition was paused, resumed, moved, or is fetched from anew."""
        for observer in self._partition:
            observer(partition)

    def discarded(self, partition: Cursor) -> None:
        """Tell that what is buffered of a partition must not be handed out."""
        for observer in self._discard:
            observer(partition)

    def departed(self, departure: Departure) -> None:
        """Tell that the application is about to give up partitions."""
        for observer in self._departure:
            observer(departure)
