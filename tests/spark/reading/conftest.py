"""Ranges read from the cluster of a test, as a task of Spark would."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeAlias, TypeVar

import pytest

from aiokafka_lite.spark import worker
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.spark.reading import read_ranges
from aiokafka_lite.spark.schema import default_schema

P = ParamSpec("P")
T = TypeVar("T")
Row: TypeAlias = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key and value."""


@pytest.fixture(autouse=True)
def empty_worker() -> Iterator[None]:
    """Have each test find a worker that keeps nothing, and leave no connection open."""
    worker.close_all()
    yield
    worker.close_all()


def options_for(servers: str, **more: str) -> SourceOptions:
    """Options of a query; names of options have dots where these have two underscores."""
    named = {name.replace("__", "."): value for name, value in more.items()}
    raw = {
        "kafka.bootstrap.servers": servers,
        "subscribe": "any",
        "kafkaConsumer.pollTimeoutMs": "20000",
        **named,
    }
    return worker.options_of(raw, is_streaming=False)


def read(
    options: SourceOptions,
    ranges: Sequence[KafkaOffsetRange],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
) -> list[Row]:
    """Read ranges to their ends."""
    schema = default_schema(include_headers=True)
    rows: list[Row] = []
    for batch in read_ranges(ranges, options, schema, clock=clock, sleep=sleep):
        assert batch.num_rows
        batch.validate(full=True)
        named = batch.to_pydict()
        rows += zip(named["partition"], named["offset"], named["key"], named["value"], strict=True)
    return rows


def offsets(rows: Sequence[Row]) -> list[int]:
    return [offset for _, offset, _, _ in rows]


class Clock:
    """Time that passes when somebody sleeps, and a little with each look."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        self.now += delay_s
