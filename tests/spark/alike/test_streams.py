"""Streams of this source and of Spark's own read the same and log the same in their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.spark.alike.cases import (
    COMMITTED,
    HEADERS,
    MANY,
    POLL,
    all_at,
    at,
    completed,
)
from tests.spark.alike.comparing import OURS, THEIRS
from tests.spark.alike.streaming import Stream
from tests.spark.alike.topics import SPLIT_MS
from tests.spark.alike.writing import Writer, numbered

# The first test of a session starts it, and fills the topics.
pytestmark = [pytest.mark.real_kafka, pytest.mark.java, pytest.mark.timeout(400)]

EARLIEST = {"startingOffsets": "earliest"}


class StreamCase(NamedTuple):
    """A stream that reads what is there.

    Attributes:
        name: What it is about.
        options: As those of `tests.spark.alike.cases`.
        rows: How many it has to write.
        batches: In how many batches.
    """

    name: str
    options: Mapping[str, str]
    rows: int
    batches: int


CASES = (
    StreamCase("all at once", {**MANY, **EARLIEST}, 240, 1),
    StreamCase("so many of a trigger",
               {**MANY, **EARLIEST, "maxOffsetsPerTrigger": "70"}, 240, 4),
    StreamCase("fewer of a trigger than partitions",
               {"subscribe": "$nulls", **EARLIEST, "maxOffsetsPerTrigger": "1"}, 36, 18),
    StreamCase("so few of a trigger that they wait",
               {**MANY, **EARLIEST, "minOffsetsPerTrigger": "1000"}, 240, 1),
    StreamCase("between so few and so many of a trigger",
               {**MANY, **EARLIEST, "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "100"},
               240, 3),
    StreamCase("in tasks", {**MANY, **EARLIEST, "minPartitions": "9",
                            "maxOffsetsPerTrigger": "120"}, 240, 3),
    StreamCase("nothing new", MANY, 0, 1),
    StreamCase("offsets", {**MANY, "startingOffsets": at("many", 10, 0, -1, -2)}, 173, 1),
    StreamCase("timestamp, or the latest",
               {**MANY, "startingTimestamp": str(SPLIT_MS),
                "startingOffsetsByTimestampStrategy": "latest"}, 87, 1),
    StreamCase("timestamps", {**MANY, "startingOffsetsByTimestamp": all_at("many", 1)}, 240, 1),
    StreamCase("transactions", {"subscribe": "$transactions", **EARLIEST, **COMMITTED,
                                "maxOffsetsPerTrigger": "31"}, 100, 6),
    StreamCase("compacted", {"subscribe": "$compacted", **EARLIEST,
                             "maxOffsetsPerTrigger": "12"}, 60, 7),
    StreamCase("contents of several topics",
               {"subscribe": "$headers,$nulls,$stamped,$codecs", **EARLIEST, **HEADERS}, 397, 1),
    StreamCase("log that begins later", {"subscribe": "$trimmed", **EARLIEST}, 23, 1),
)  # fmt: skip


@pytest.mark.slow  # the short form has ../test_checkpoints.py, where both read one stream
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_stream_reads_and_logs_what_the_connector_does(
    case: StreamCase,
    spark_with_connector: SparkSession,
    topics: Mapping[str, str],
    real_kafka: str,
    tmp_path: Path,
) -> None:
    options = completed(case.options, topics, real_kafka)
    theirs = Stream(spark_with_connector, tmp_path / "theirs", options)
    ours = Stream(spark_with_connector, tmp_path / "ours", options)
    for stream, source in ((theirs, THEIRS), (ours, OURS)):
        failure = stream.read_available(source)
        assert failure is None, failure
    assert sum(map(len, theirs.rows().values())) == case.rows
    assert len(theirs.planned()) == case.batches
    assert ours.rows() == theirs.rows()
    assert ours.planned() == theirs.planned()
    assert ours.committed() == theirs.committed()


class Change(NamedTuple):
    """What happens to a topic of two partitions with 20 records each, which streams have read.

    Attributes:
        name: What it is about.
        apply: Does it.
        rows: How many records were read when the stream has gone on, or None if it fails.
        rows_let_go: The same with failOnDataLoss=false.
        goes_on: Ours does so with failOnDataLoss=false even where the connector fails.
    """

    name: str
    apply: Callable[[Writer, str], object]
    rows: int | None
    rows_let_go: int | None
    goes_on: bool = False


def _more(writer: Writer, topic: str) -> None:
    writer.write(topic, numbered(10, 0, first=20))


def _partitions_added(writer: Writer, topic: str) -> None:
    writer.add_partitions(topic, 4)
    writer.write(topic, [*numbered(7, 3), *numbered(2, 1, first=20)])


def _new_partition_trimmed(writer: Writer, topic: str) -> None:
    writer.add_partitions(topic, 3)
    writer.write(topic, numbered(7, 2))
    writer.delete_records(topic, {2: 3})


def _unread_deleted(writer: Writer, topic: str) -> None:
    writer.write(topic, numbered(10, 0, first=20))
    writer.delete_records(topic, {0: 25})


def _read_deleted(writer: Writer, topic: str) -> None:
    writer.write(topic, numbered(10, 0, first=20))
    writer.delete_records(topic, {0: 20, 1: 11})


def _topic_deleted(writer: Writer, topic: str) -> None:
    writer.delete(topic)


def _made_anew_shorter(writer: Writer, topic: str) -> None:
    writer.delete(topic)
    writer.create(topic, 2)
    writer.write(topic, numbered(5, 0, first=500))


def _made_anew_longer(writer: Writer, topic: str) -> None:
    writer.delete(topic)
    writer.create(topic, 2)
    writer.write(topic, [*numbered(30, 0, first=500), *numbered(30, 1, first=500)])


CHANGES = (
    Change("records written", _more, 50, 50),
    Change("partitions added", _partitions_added, 49, 49),
    Change("partition added and trimmed", _new_partition_trimmed, None, 44),
    Change("records deleted before they were read", _unread_deleted, None, 45),
    Change("records deleted that were read", _read_deleted, 50, 50),
    Change("topic deleted", _topic_deleted, None, None, goes_on=True),
    Change("topic made anew, shorter", _made_anew_shorter, None, 40),
    Change("topic made anew, longer", _made_anew_longer, 60, 60),
)


@pytest.mark.slow
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("change", [pytest.param(change, id=change.name) for change in CHANGES])
def test_stream_goes_on_after_a_change_as_the_connector_does(
    change: Change,
    fail_on_data_loss: str,
    spark_with_connector: SparkSession,
    writer: Writer,
    tmp_path: Path,
) -> None:
    topic = writer.create(writer.name("change"), 2)
    for partition in range(2):
        writer.write(topic, numbered(20, partition))
    options = {
        "kafka.bootstrap.servers": writer.bootstrap_servers,
        "subscribe": topic,
        "failOnDataLoss": fail_on_data_loss,
        **EARLIEST,
        **POLL,
    }
    theirs = Stream(spark_with_connector, tmp_path / "theirs", options)
    ours = Stream(spark_with_connector, tmp_path / "ours", options)
    for stream, source in ((theirs, THEIRS), (ours, OURS)):
        failure = stream.read_available(source)
        assert failure is None, failure
    change.apply(writer, topic)
    their_failure, our_failure = theirs.read_available(THEIRS), ours.read_available(OURS)
    expected = change.rows if fail_on_data_loss == "true" else change.rows_let_go
    assert (their_failure is None) == (expected is not None), their_failure
    if change.goes_on and fail_on_data_loss == "false":
        assert our_failure is None, our_failure
        assert ours.rows() == theirs.rows()
        return
    assert (our_failure is None) == (expected is not None), our_failure
    if expected is not None:
        assert sum(map(len, theirs.rows().values())) == expected
    assert ours.rows() == theirs.rows()
    assert ours.planned() == theirs.planned()
    assert ours.committed() == theirs.committed()


@pytest.mark.slow
def test_stream_that_begins_with_the_latest_reads_what_comes_then(
    spark_with_connector: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    topic = writer.create(writer.name("latest"), 2)
    writer.write(topic, numbered(20))
    options = {"kafka.bootstrap.servers": writer.bootstrap_servers, "subscribe": topic}
    streams = [
        (Stream(spark_with_connector, tmp_path / f"{source}", options), source)
        for source in (THEIRS, OURS)
    ]
    queries = [stream.start(source, is_continuous=True) for stream, source in streams]
    try:
        for query in queries:
            query.processAllAvailable()
        for first in (20, 30):
            writer.write(topic, [*numbered(10, 0, first=first), *numbered(10, 1, first=first)])
            for query in queries:
                query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    theirs, ours = (stream for stream, _ in streams)
    assert sum(map(len, theirs.rows().values())) == 40
    assert ours.rows() == theirs.rows()
    assert list(ours.planned().values())[-1] == list(theirs.planned().values())[-1]


REFUSED = {
    "ending offsets": {"endingOffsets": "latest"},
    "ending offsets as JSON": {"endingOffsets": at("many", 1, 1, 1, 1)},
    "ending timestamps": {"endingOffsetsByTimestamp": all_at("many", 1)},
    "more at least than at most": {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"},
    "timestamp after all": {"startingTimestamp": str(SPLIT_MS)},
    "some partitions": {"startingOffsets": json.dumps({"$many": {"0": 1}})},
    "topic that is missing": {"subscribe": "$all.missing"},
    "start behind the log": {"startingOffsets": at("many", 500, 0, 0, 0)},
    "start before the log": {"subscribe": "$trimmed", "startingOffsets": at("trimmed", 5, 0)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_stream_fails_where_the_connectors_does(
    name: str,
    spark_with_connector: SparkSession,
    topics: Mapping[str, str],
    real_kafka: str,
    tmp_path: Path,
) -> None:
    options = completed({**MANY, **EARLIEST, **POLL, **REFUSED[name]}, topics, real_kafka)
    for source in (THEIRS, OURS):
        stream = Stream(spark_with_connector, tmp_path / f"{source}", options)
        failure = stream.failure(source)
        assert failure is not None, source
