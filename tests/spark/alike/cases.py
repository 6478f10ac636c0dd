"""What is compared: options, of which the connector of the same Spark says what has to come of it.

In the options' values `$name` stands for a topic of `tests.spark.alike.topics`. How many rows there
are stands beside them, so that two sources that both read nothing are not alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from string import Template
from typing import Final, NamedTuple, Protocol

import pytest
from _pytest.mark import ParameterSet

from tests.spark.alike.topics import MANY_PARTITIONS, SPLIT_MS
from tests.spark.alike.writing import FIRST_MS

# Instead of a number of rows: it is an error.
REFUSED: Final = -1
COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
HEADERS: Final = {"includeHeaders": "true"}
POLL: Final = {"kafkaConsumer.pollTimeoutMs": "2000", "kafka.fetch.max.wait.ms": "100"}
FAR_MS: Final = FIRST_MS + 10**9


class Case(NamedTuple):
    """A query.

    Attributes:
        name: What it is about.
        options: Without the broker's address.
        rows: How many it has to return, or REFUSED.
        is_short: Also in the short form of the tests.
        has_equal_tasks: Each task reads the same as one of the connector's.
    """

    name: str
    options: Mapping[str, str]
    rows: int
    is_short: bool = False
    has_equal_tasks: bool = True


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def is_short(self) -> bool: ...


def parameters(cases: Iterable[_Named]) -> list[ParameterSet]:
    """Return cases as parameters of a test, of which the short form takes some."""
    return [
        pytest.param(case, id=case.name, marks=() if case.is_short else (pytest.mark.slow,))
        for case in cases
    ]


def completed(
    options: Mapping[str, str], topics: Mapping[str, str], bootstrap_servers: str
) -> dict[str, str]:
    """Return options with the names of topics and the address."""
    filled_in = {name: Template(value).safe_substitute(topics) for name, value in options.items()}
    return {"kafka.bootstrap.servers": bootstrap_servers, **filled_in}


def at(topic: str, *offsets: int) -> str:
    """Offsets, or timestamps, of a topic's partitions in the options' JSON."""
    return json.dumps({f"${topic}": {str(p): offset for p, offset in enumerate(offsets)}})


def all_at(topic: str, value: int) -> str:
    """The same offset or timestamp for every partition of `many`."""
    return at(topic, *[value] * MANY_PARTITIONS)


MANY: Final = {"subscribe": "$many"}
SUBSCRIPTIONS: Final = (
    Case("subscribe to one", MANY, 240),
    Case("subscribe to several", {"subscribe": "$many, $empty,$codecs"}, 585),
    Case("subscribe to the same twice", {"subscribe": "$many,$many"}, 240),
    Case("assign", {"assign": '{"$many":[0,2],"$nulls":[1]}'}, 175),
    Case("pattern", {"subscribePattern": "$all.(nulls|headers)"}, 45),
    Case("pattern may match a part of a name", {"subscribePattern": "$all.null"}, 36),
    Case("pattern with Java's syntax", {"subscribePattern": r"\Q$all\E\.n\p{Lower}+s"}, 36),
    Case("options in any case", {"SUBSCRIBE": "$many", "StartingOffsets": "EARLIEST"}, 240),
    Case("topic that is missing", {"subscribe": "$all.missing"}, REFUSED),
    Case("partition that is missing", {"assign": '{"$nulls":[0,7]}'}, 18),
)

EVERYTHING: Final = {
    "subscribe": "$codecs,$nulls,$headers,$stamped,$appended,$transactions,$compacted,$trimmed,"
    "$empty,$large",
    "kafka.max.partition.fetch.bytes": "1000",
    **HEADERS,
}
CONTENTS: Final = (
    Case("everything", EVERYTHING, 700),
    Case("everything, committed", {**EVERYTHING, **COMMITTED}, 617, is_short=True),
    Case("codecs", {"subscribe": "$codecs"}, 345),
    *(Case(f"{codec} by the broker", {"subscribe": f"${codec}"}, 70)
      for codec in ("gzip", "snappy", "lz4", "zstd")),
    Case("nulls and empty", {"subscribe": "$nulls", **HEADERS}, 36),
    Case("headers", {"subscribe": "$headers", **HEADERS}, 9),
    Case("headers not asked for", {"subscribe": "$headers"}, 9),
    Case("timestamps", {"subscribe": "$stamped"}, 7),
    Case("timestamps of the log", {"subscribe": "$appended"}, 25),
    Case("transactions uncommitted", {"subscribe": "$transactions"}, 183),
    Case("transactions committed", {"subscribe": "$transactions", **COMMITTED}, 100),
    Case("compacted", {"subscribe": "$compacted"}, 60),
    Case("compacted, committed", {"subscribe": "$compacted", **COMMITTED}, 60),
    Case("log that begins later", {"subscribe": "$trimmed"}, 23),
    Case("empty topic", {"subscribe": "$empty"}, 0),
    Case("large records", {"subscribe": "$large", "kafka.max.partition.fetch.bytes": "1000"}, 12),
    Case("large records, small fetches",
         {"subscribe": "$large", "kafka.fetch.max.bytes": "1", "kafka.fetch.max.wait.ms": "9"}, 12),
    Case("few at a poll", {"subscribe": "$many", "kafka.max.poll.records": "3"}, 240),
    Case("group of one's own", {**MANY, "kafka.group.id": "alike", "groupIdPrefix": "no"}, 240),
    Case("group with a prefix", {**MANY, "groupIdPrefix": "prefix"}, 240),
)  # fmt: skip

POSITIONS: Final = (
    Case("earliest to latest", {**MANY, "startingOffsets": "earliest", "endingOffsets": "latest"},
         240),
    Case("offsets", {**MANY, "startingOffsets": at("many", 10, 0, 56, 1),
                     "endingOffsets": at("many", 30, 80, 57, 1)}, 101),
    Case("offsets that name the ends",
         {**MANY, "startingOffsets": at("many", -2, 20, -2, -2),
          "endingOffsets": at("many", -1, -1, 5, -1)}, 168),
    Case("start behind the end of the log", {**MANY, "startingOffsets": at("many", 100, 80, 57, 3)},
         0),
    Case("start behind the end",
         {**MANY, "startingOffsets": at("many", 50, 0, 0, 0),
          "endingOffsets": at("many", 40, 10, 10, 1)}, REFUSED),
    Case("start and end in a gap",
         {"subscribe": "$compacted", "startingOffsets": at("compacted", 7, 16),
          "endingOffsets": at("compacted", 17, 19)}, 5),
    Case("start and end in an aborted transaction",
         {"subscribe": "$transactions", "startingOffsets": at("transactions", 20, 20, 20),
          "endingOffsets": at("transactions", 25, 38, 21), **COMMITTED}, 0),
    Case("end behind what is committed",
         {"subscribe": "$transactions", "startingOffsets": at("transactions", 50, 50, 50),
          "endingOffsets": at("transactions", 52, 52, 60), **COMMITTED, **POLL}, REFUSED),
    Case("some partitions only", {**MANY, "startingOffsets": '{"$many":{"0":1}}'}, REFUSED),
    Case("another topic", {**MANY, "startingOffsets": at("nulls", 0, 0)}, REFUSED),
    Case("start at the latest, as JSON", {**MANY, "startingOffsets": all_at("many", -1)}, REFUSED),
    Case("start at the latest", {**MANY, "startingOffsets": "latest"}, REFUSED),
    Case("end at the earliest", {**MANY, "endingOffsets": "earliest"}, REFUSED),
    Case("end at the earliest, as JSON", {**MANY, "endingOffsets": all_at("many", -2)}, REFUSED),
    Case("one timestamp to start", {**MANY, "startingTimestamp": str(SPLIT_MS)}, REFUSED),
    Case("one timestamp to start, or the latest",
         {**MANY, "startingTimestamp": str(SPLIT_MS),
          "startingOffsetsByTimestampStrategy": "latest"}, 87),
    Case("one timestamp to end", {**MANY, "endingTimestamp": str(SPLIT_MS)}, 153),
    Case("timestamps of a partition each",
         {**MANY,
          "startingOffsetsByTimestamp": at("many", SPLIT_MS, FIRST_MS, SPLIT_MS, FIRST_MS),
          "endingOffsetsByTimestamp": at("many", FAR_MS, SPLIT_MS, FAR_MS, FIRST_MS)}, 107,
         is_short=True),
    Case("timestamps of which one is too late",
         {**MANY, "startingOffsetsByTimestamp": at("many", FIRST_MS, FAR_MS, FIRST_MS, FIRST_MS)},
         REFUSED),
    Case("timestamps of which one is too late, or the latest",
         {**MANY, "startingOffsetsByTimestampStrategy": "LATEST",
          "startingOffsetsByTimestamp": at("many", FIRST_MS, FAR_MS, FIRST_MS, FIRST_MS)}, 160),
    Case("timestamps of some partitions",
         {**MANY, "startingOffsetsByTimestamp": '{"$many":{"0":1}}'}, REFUSED),
    Case("timestamps of some partitions to end",
         {**MANY, "endingOffsetsByTimestamp": '{"$many":{"0":1}}'}, REFUSED),
    Case("timestamps of an empty topic",
         {"subscribe": "$empty", "startingTimestamp": "1"}, REFUSED),
    Case("timestamps of an empty topic, or the latest",
         {"subscribe": "$empty", "startingTimestamp": "1",
          "startingOffsetsByTimestampStrategy": "latest"}, 0),
    Case("timestamps of the log",
         {"subscribe": "$appended", "startingTimestamp": str(FIRST_MS)}, 25),
    Case("timestamps among compacted",
         {"subscribe": "$compacted", "startingTimestamp": str(FIRST_MS + 25_000)}, 40),
    Case("one timestamp before all others",
         {**MANY, "startingTimestamp": str(FIRST_MS), "startingOffsets": at("many", 9, 9, 9, 3),
          "startingOffsetsByTimestamp": all_at("many", FAR_MS)}, 240),
    Case("timestamps before offsets",
         {**MANY, "startingOffsets": at("many", 9, 9, 9, 3),
          "startingOffsetsByTimestamp": all_at("many", FIRST_MS)}, 240),
)  # fmt: skip

SPLITS: Final = (
    Case("many tasks", {**MANY, "minPartitions": "10"}, 240, is_short=True),
    Case("fewer tasks than partitions", {**MANY, "minPartitions": "2"}, 240),
    Case("more tasks than records", {"subscribe": "$headers", "minPartitions": "20"}, 9),
    # The connector does not heed maxRecordsPerPartition alone in a batch.
    Case("records of a task", {**MANY, "maxRecordsPerPartition": "7"}, 240, has_equal_tasks=False),
    Case("one record of a task", {"subscribe": "$headers", "maxRecordsPerPartition": "1"}, 9,
         has_equal_tasks=False),
    Case("tasks and records of one", {**MANY, "minPartitions": "9", "maxRecordsPerPartition": "30"},
         240),
    Case("tasks, transactions",
         {"subscribe": "$transactions", "minPartitions": "11", **COMMITTED}, 100),
    Case("tasks, compacted", {"subscribe": "$compacted", "maxRecordsPerPartition": "4"}, 60,
         has_equal_tasks=False),
    Case("tasks of several topics", {"subscribe": "$many,$codecs,$empty", "minPartitions": "23"},
         585),
)  # fmt: skip

LOST: Final = (
    Case("start before the log, which fails",
         {"subscribe": "$trimmed", "startingOffsets": at("trimmed", 5, 0), **POLL}, REFUSED),
    Case("start before the log, which is let go",
         {"subscribe": "$trimmed", "startingOffsets": at("trimmed", 5, 0),
          "failOnDataLoss": "false", **POLL}, 23, is_short=True),
    Case("all before the log, which is let go",
         {"subscribe": "$trimmed", "startingOffsets": at("trimmed", 5, 0),
          "endingOffsets": at("trimmed", 16, 12), "failOnDataLoss": "false", **POLL}, 0),
    Case("end behind the log, which fails",
         {**MANY, "endingOffsets": at("many", 105, 80, 57, 3), **POLL}, REFUSED),
    Case("end behind the log, which is let go",
         {**MANY, "endingOffsets": at("many", 105, 80, 57, 3), "failOnDataLoss": "false", **POLL},
         240),
    Case("start behind the log, which fails",
         {**MANY, "startingOffsets": at("many", 150, 0, 0, 0),
          "endingOffsets": at("many", 160, 80, 57, 3), **POLL}, REFUSED),
    Case("start behind the log, which is let go",
         {**MANY, "startingOffsets": at("many", 150, 0, 0, 0), "failOnDataLoss": "false",
          "endingOffsets": at("many", 160, 80, 57, 3), **POLL}, 140),
)  # fmt: skip

# Where the connector fails of itself: of tasks that share a consumer in one process.
BEYOND: Final = (
    Case(
        "start before the log in tasks, which is let go",
        {
            "subscribe": "$trimmed",
            "startingOffsets": at("trimmed", 5, 0),
            "failOnDataLoss": "false",
            "minPartitions": "8",
            **POLL,
        },
        23,
    ),
)

BATCH: Final = (*SUBSCRIPTIONS, *CONTENTS, *POSITIONS, *SPLITS, *LOST)
