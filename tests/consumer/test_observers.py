"""Who hears of changes, and until when."""

from __future__ import annotations

import gc
import weakref

from aiokafka_lite.consumer.assignment.observers import Departure, Observers


class Part:
    """What observes, and counts what it is told."""

    def __init__(self, observers: Observers) -> None:
        self.told = 0
        observers.subscription_changed.add(self.hear)
        observers.acted.add(self.hear)
        observers.assignment_changed.add(self.hear)

    def hear(self) -> None:
        self.told += 1


def tell_all(observers: Observers) -> None:
    observers.subscription_changed()
    observers.assignment_changed()
    observers.acted()


def test_parts_hear_nothing_more_once_they_are_closed_and_those_before_them_do() -> None:
    observers = Observers()
    lasting = Part(observers)
    registrations = observers.collect()
    passing = Part(observers)
    tell_all(observers)
    registrations.close()
    registrations.close()
    tell_all(observers)
    assert (lasting.told, passing.told) == (6, 3)


def test_parts_that_are_closed_late_take_nothing_from_the_next_ones() -> None:
    observers = Observers()
    first = observers.collect()
    old = Part(observers)
    observers.collect()
    new = Part(observers)
    first.close()
    tell_all(observers)
    assert (old.told, new.told) == (0, 3)


def test_what_observes_twice_is_forgotten_once() -> None:
    observers = Observers()
    part = Part(observers)
    registrations = observers.collect()
    observers.assignment_changed.add(part.hear)
    observers.assignment_changed()
    registrations.close()
    observers.assignment_changed()
    assert part.told == 3


def test_what_was_closed_may_still_be_forgotten() -> None:
    observers = Observers()
    registrations = observers.collect()
    part = Part(observers)
    registrations.close()
    observers.acted.forget(part.hear)
    tell_all(observers)
    assert part.told == 0


def test_progress_is_told_once_and_a_departure_to_all_who_ask_for_it() -> None:
    observers = Observers()
    told: list[object] = []

    def ask_again() -> None:
        told.append("progress")
        observers.progressed.add(lambda: told.append("more"))

    observers.progressed.add(ask_again)
    for _ in range(3):
        observers.progressed.notify_once()
    assert told == ["progress", "more"]
    departure = Departure(frozenset(), None)
    observers.departed.add(told.append)
    observers.discarded.add(told.append)
    observers.departed(departure)
    assert told[2:] == [departure]
    observers.departed.forget(told.append)
    observers.departed(departure)
    assert len(told) == 3


def test_observers_that_were_forgotten_or_called_for_the_last_time_are_kept_by_nothing() -> None:
    observers = Observers()
    registrations = observers.collect()
    lasting = Part(observers)
    forgotten, called = Part(observers), Part(Observers())
    observers.progressed.add(called.hear)
    observers.progressed.notify_once()
    observers.progressed.notify_once()
    assert called.told == 1
    for signal in (observers.subscription_changed, observers.acted, observers.assignment_changed):
        signal.forget(forgotten.hear)
    left = [weakref.ref(forgotten), weakref.ref(called)]
    del forgotten, called
    gc.collect()
    assert [each() for each in left] == [None, None]
    registrations.close()
    tell_all(observers)
    assert lasting.told == 0
