"""Who hears of changes, and until when."""

from __future__ import annotations

import gc
import weakref

from aiokafka_lite.consumer.assignment.observers import Departure, Observers


class Part:
    """What observes, and counts what it is told."""

    def __init__(self, observers: Observers) -> None:
        self.told = 0
        observers.add_listener(self.hear)
        observers.on_assignment_change(self.hear)

    def hear(self) -> None:
        self.told += 1


def tell_all(observers: Observers) -> None:
    observers.subscription_changed()
    observers.assignment_changed()
    for observer in observers.of_gets:
        observer()


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
    observers.on_assignment_change(part.hear)
    observers.assignment_changed()
    registrations.close()
    observers.assignment_changed()
    assert part.told == 3


def test_progress_is_told_once_and_a_departure_to_all_who_ask_for_it() -> None:
    observers = Observers()
    told: list[object] = []

    def ask_again() -> None:
        told.append("progress")
        observers.on_next_progress(lambda: told.append("more"))

    observers.on_next_progress(ask_again)
    for _ in range(3):
        observers.progressed()
    assert told == ["progress", "more"]
    departure = Departure(frozenset(), None)
    observers.on_departure(told.append)
    observers.on_discard(told.append)
    observers.departed(departure)
    assert told[2:] == [departure]
    observers.forget(told.append)
    observers.departed(departure)
    assert len(told) == 3


def test_observers_that_were_forgotten_or_called_for_the_last_time_are_kept_by_nothing() -> None:
    observers = Observers()
    registrations = observers.collect()
    lasting = Part(observers)
    forgotten, called = Part(observers), Part(Observers())
    observers.on_next_progress(called.hear)
    observers.progressed()
    observers.progressed()
    assert called.told == 1
    observers.forget(forgotten.hear)
    left = [weakref.ref(forgotten), weakref.ref(called)]
    del forgotten, called
    gc.collect()
    assert [each() for each in left] == [None, None]
    registrations.close()
    tell_all(observers)
    assert lasting.told == 0
