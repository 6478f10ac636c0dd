"""A topic of small events, with bad ones among them, and what its tables must hold."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from pyspark.sql.types import IntegerType, StringType, StructType, TimestampType

from aiokafka_lite.broker.thread import BrokerThread
from demos.parquet import PipelineOptions, Tables

# As JSON: what parses DDL is a session, and not each test has one.
SCHEMA = (
    StructType()
    .add("carrier", StringType())
    .add("delay", IntegerType())
    .add("time", TimestampType())
    .json()
)
START = datetime(2013, 1, 1, tzinfo=timezone.utc)


class Event(NamedTuple):
    """What goes to the topic: a delay some minutes after `START`."""

    minute: int
    carrier: str = "UA"
    delay: int | None = 1
    partition: int = 0

    def value(self) -> bytes:
        time = (START + timedelta(minutes=self.minute)).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"carrier": self.carrier, "delay": self.delay, "time": time}
        return json.dumps(fields).encode()

    def hour(self) -> datetime:
        return START + timedelta(hours=self.minute // 60)


def produce(broker: BrokerThread, topic: str, events: Iterable[Event]) -> None:
    for event in events:
        broker.produce(topic, event.value(), partition=event.partition)


def options(broker: BrokerThread, topic: str, out: Path, **wanted: object) -> PipelineOptions:
    given: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "topic": topic,
        "out": str(out),
        "schema": SCHEMA,
        "event_time": "time",
        "keys": ("carrier",),
        "measures": ("delay",),
    }
    return PipelineOptions(**{**given, **wanted})  # type: ignore[arg-type]


Aggregate = dict[tuple[datetime, str], tuple[int, int, int | None]]
"""Records, delays and their sum of each hour and carrier."""


def aggregate_of(events: Iterable[Event]) -> Aggregate:
    found: Aggregate = {}
    for event in events:
        records, count, total = found.get((event.hour(), event.carrier), (0, 0, None))
        if event.delay is not None:
            count, total = count + 1, (total or 0) + event.delay
        found[event.hour(), event.carrier] = (records + 1, count, total)
    return found


def aggregate_in(tables: Tables) -> Aggregate:
    rows = tables.aggregate().collect()
    found = {
        (row["window_start"].astimezone(timezone.utc), row["carrier"]): (
            row["records"],
            row["delay_count"],
            row["delay_sum"],
        )
        for row in rows
    }
    assert len(found) == len(rows), "an hour and carrier is there twice"
    return found


def places_in(tables: Tables) -> list[tuple[int, int]]:
    """Where the rows of raw and quarantine come from: partitions and offsets, in order."""
    columns = ("kafka_partition", "kafka_offset")
    rows = tables.raw().select(*columns).union(tables.quarantine().select(*columns)).collect()
    return sorted((row[0], row[1]) for row in rows)
