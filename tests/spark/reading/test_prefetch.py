"""One item is made ahead, in a thread that ends with its iterator."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from aiokafka_lite.spark.reading import prefetched


def nothing() -> None:
    pass


def test_items_come_in_order_and_errors_behind_them() -> None:
    def source() -> Iterator[int]:
        yield from range(50)
        raise ValueError("broken")

    prefetch = prefetched(source(), nothing)
    assert [next(prefetch) for _ in range(50)] == list(range(50))
    with pytest.raises(ValueError, match="broken"):
        next(prefetch)
    with pytest.raises(StopIteration):
        next(prefetch)
    prefetch.close()


def test_one_item_is_made_ahead_and_no_more() -> None:
    made: list[int] = []
    third = threading.Event()

    def source() -> Iterator[int]:
        for number in range(10):
            made.append(number)
            if number == 2:
                third.set()
            yield number

    prefetch = prefetched(source(), nothing)
    assert next(prefetch) == 0
    assert not third.wait(0.05)  # 1 is made, 2 is not before somebody takes it
    assert next(prefetch) == 1
    assert third.wait(5)
    prefetch.close()
    assert made == [0, 1, 2]


def test_closing_interrupts_what_waits_and_ends_the_thread() -> None:
    interrupted = threading.Event()

    def source() -> Iterator[int]:
        yield 0
        assert interrupted.wait(5)
        raise OSError("interrupted")

    prefetch = prefetched(source(), interrupted.set)
    assert next(prefetch) == 0
    prefetch.close()
    prefetch.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("kafka-fetch")]
