"""A checkpoint goes from Spark's own Kafka source to this one and back, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.spark.alike.comparing import OURS, THEIRS, Source
from tests.spark.alike.streaming import Stream
from tests.spark.alike.writing import Record, Writer, numbered

# The first test of a session starts it.
pytestmark = [pytest.mark.real_kafka, pytest.mark.java, pytest.mark.timeout(400)]

PARTITIONS = 3
# Of a partition, each time.
COUNT = 20


@pytest.fixture
def writer(real_kafka: str) -> Iterator[Writer]:
    """Creates topics on the real Kafka, and deletes them in the end."""
    with Writer(real_kafka) as writer:
        yield writer


class HandOver(NamedTuple):
    """A topic that grows, and a stream of it that goes from source to source."""

    writer: Writer
    topic: str
    stream: Stream

    def write(self, partitions: int = PARTITIONS, *, first: int) -> None:
        records: list[Record] = []
        for partition in range(partitions):
            records += numbered(COUNT, partition, first=first)
        self.writer.write(self.topic, records)

    def read(self, source: Source) -> None:
        failure = self.stream.read_available(source)
        assert failure is None, failure

    def assert_has_each_record_once(self, partitions: int = PARTITIONS) -> None:
        expected = self.writer.read(self.topic, partitions)
        assert expected
        read = sorted(
            (partition, row[4], row[0], row[1])
            for (_, partition), rows in self.stream.rows().items()
            for row in rows
        )
        assert read == sorted(expected)


@pytest.fixture
def hand_over(spark_with_connector: SparkSession, writer: Writer, tmp_path: Path) -> HandOver:
    """An empty topic, and a stream of it that has not begun."""
    topic = writer.create(writer.name("checkpoint"), PARTITIONS)
    options: Mapping[str, str] = {
        "kafka.bootstrap.servers": writer.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "40",
    }
    return HandOver(writer, topic, Stream(spark_with_connector, tmp_path, options))


both_ways = pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(THEIRS, OURS, id="connector to ours"),
        pytest.param(OURS, THEIRS, id="ours to connector", marks=pytest.mark.slow),
    ],
)


@both_ways
def test_checkpoint_is_handed_over_and_back(
    hand_over: HandOver, first: Source, second: Source
) -> None:
    for turn, source in enumerate((first, second, first)):
        hand_over.write(first=100 * turn)
        hand_over.read(source)
    hand_over.assert_has_each_record_once()
    # 60 offsets each time, of which 40 go into the first batch: nobody read what another had.
    assert hand_over.stream.committed() == list(range(6))


def _forget_commit(stream: Stream, batch: int) -> None:
    """As when the driver ended after the sink had the batch."""
    for file in (stream.checkpoint / "commits").glob(f"*{batch}*"):
        file.unlink()


def _forget_commit_and_rows(stream: Stream, batch: int) -> None:
    """As when the driver ended while the batch was being written."""
    _forget_commit(stream, batch)
    for file in (stream.table / "_spark_metadata").glob(f"*{batch}*"):
        file.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("forget", [_forget_commit, _forget_commit_and_rows])
@both_ways
def test_batch_that_one_logged_and_did_not_commit_is_done_by_the_other(
    hand_over: HandOver, first: Source, second: Source, forget: Callable[[Stream, int], None]
) -> None:
    hand_over.write(first=0)
    hand_over.read(first)
    assert hand_over.stream.committed() == [0, 1]
    planned = hand_over.stream.planned()
    forget(hand_over.stream, 1)
    hand_over.write(first=100)
    hand_over.read(second)
    assert hand_over.stream.planned()[1] == planned[1]
    hand_over.assert_has_each_record_once()


@pytest.mark.slow
@both_ways
def test_first_batch_that_one_did_not_commit_is_done_by_the_other(
    hand_over: HandOver, first: Source, second: Source
) -> None:
    hand_over.writer.write(hand_over.topic, numbered(30))
    hand_over.read(first)
    assert hand_over.stream.committed() == [0]
    _forget_commit_and_rows(hand_over.stream, 0)
    hand_over.write(first=100)
    hand_over.read(second)
    hand_over.assert_has_each_record_once()


@pytest.mark.slow
@both_ways
def test_partitions_that_were_added_between_are_read_by_the_other(
    hand_over: HandOver, first: Source, second: Source
) -> None:
    hand_over.write(first=0)
    hand_over.read(first)
    for turn, source in enumerate((second, first), start=1):
        partitions = PARTITIONS + turn
        hand_over.writer.add_partitions(hand_over.topic, partitions)
        hand_over.write(partitions, first=100 * turn)
        hand_over.read(source)
    hand_over.assert_has_each_record_once(PARTITIONS + 2)


@pytest.mark.slow
@both_ways
def test_checkpoint_is_the_same_whoever_wrote_it(
    spark_with_connector: SparkSession,
    hand_over: HandOver,
    tmp_path: Path,
    first: Source,
    second: Source,
) -> None:
    """One stream goes from hand to hand, another stays in one: their logs are the same."""
    alone = Stream(spark_with_connector, tmp_path / "alone", hand_over.stream.options)
    for turn, source in enumerate((first, second, first)):
        hand_over.write(first=100 * turn)
        hand_over.read(source)
        assert alone.read_available(first) is None
    assert hand_over.stream.planned() == alone.planned()
    assert hand_over.stream.rows() == alone.rows()
