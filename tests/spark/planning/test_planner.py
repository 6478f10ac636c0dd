"""What a query reads, found by asking a cluster: the embedded one and a real Kafka."""

from __future__ import annotations

import asyncio
import logging

import pytest
from confluent_kafka import Producer

from aiokafka_lite.client.offsets import EARLIEST, LATEST, Offsets
from aiokafka_lite.errors import KafkaError, OptionError, UnknownTopicOrPartitionError
from aiokafka_lite.spark.errors import DataLossError
from aiokafka_lite.spark.options import (
    Position,
    Subscribed,
)
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.structs import TopicPartition
from tests.spark.planning.conftest import Planners
from tests.support.cluster import KafkaHandle, unique
from tests.support.threads import wait


async def filled(kafka: KafkaHandle, *sizes: int, name: str | None = None) -> str:
    """Create a topic whose partitions have so many records each, and return its name."""
    topic = await kafka.create_topic(name, partitions=len(sizes))
    for partition, size in enumerate(sizes):
        await fill(kafka, topic, partition, size)
    return topic


async def fill(kafka: KafkaHandle, topic: str, partition: int, size: int) -> None:
    if size:
        await kafka.produce(topic, partition, [(None, b"value")] * size)


def bounds_of(ranges: list[KafkaOffsetRange]) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in ranges}


def offsets(topic: str, *each: int) -> Offsets:
    return {TopicPartition(topic, partition): offset for partition, offset in enumerate(each)}


# --- Partitions ------------------------------------------------------------------------------
async def test_topics_and_assigned_partitions_are_found(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await kafka.create_topic(partitions=3)
    all_three = [TopicPartition(topic, partition) for partition in range(3)]
    planner = new_planner(kafka.bootstrap_servers, topic)
    assert await wait(planner.partitions) == all_three
    planner = new_planner(
        kafka.bootstrap_servers, Subscribed("assign", partitions=(all_three[2], all_three[0]))
    )
    assert await wait(planner.partitions) == [all_three[0], all_three[2]]


async def test_pattern_finds_topics_anywhere_in_their_names_but_no_internal_ones(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    stem = unique("pattern")
    for name in (f"a-{stem}-1", f"b-{stem}-2"):
        await kafka.create_topic(name, partitions=2)
    planner = new_planner(
        kafka.bootstrap_servers, Subscribed("subscribePattern", pattern=f"{stem}-[12]")
    )
    assert {tp.topic for tp in await wait(planner.partitions)} == {f"a-{stem}-1", f"b-{stem}-2"}
    planner = new_planner(
        kafka.bootstrap_servers, Subscribed("subscribePattern", pattern="^__consumer_offsets$")
    )
    assert await wait(planner.partitions) == []
    assert await wait(planner.batch_ranges) == []


async def test_pattern_without_topics_warns_and_reads_those_that_come(
    kafka: KafkaHandle, new_planner: Planners, caplog: pytest.LogCaptureFixture
) -> None:
    stem = unique("none-yet")
    planner = new_planner(
        kafka.bootstrap_servers, Subscribed("subscribePattern", pattern=stem), is_streaming=True
    )
    with caplog.at_level(logging.WARNING, "aiokafka_lite.spark"):
        assert (await wait(planner.beginning))[0] == {}
    assert "subscribePattern" in caplog.text
    assert await wait(planner.latest, {}) == {}
    topic = await filled(kafka, 4, name=f"{stem}-1")
    latest = await wait(planner.latest, {})
    assert latest == offsets(topic, 4)
    assert bounds_of(await wait(planner.stream_ranges, {}, latest)) == {0: (0, 4)}


async def test_missing_topic_is_an_error_that_names_it_after_some_attempts(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic, missing = await kafka.create_topic(), unique("missing")
    slept: list[float] = []
    for subscription in (
        missing,
        Subscribed("assign", partitions=(TopicPartition(topic, 0), TopicPartition(missing, 0))),
    ):
        planner = new_planner(
            kafka.bootstrap_servers,
            subscription,
            fetch_retries=4,
            fetch_retry_interval_s=7.0,
            sleep=slept.append,
        )
        with pytest.raises(UnknownTopicOrPartitionError, match=missing):
            await wait(planner.batch_ranges)
        assert slept.count(7.0) == 3
        slept.clear()


async def test_topic_that_comes_late_is_read(kafka: KafkaHandle, new_planner: Planners) -> None:
    topic = unique("late")
    planner = new_planner(kafka.bootstrap_servers, topic, fetch_retries=500)
    planning = asyncio.create_task(wait(planner.batch_ranges))
    await kafka.create_topic(topic)
    assert await planning == []


async def test_assigned_partition_that_is_not_there_is_left_out_with_a_warning(
    kafka: KafkaHandle, new_planner: Planners, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await filled(kafka, 5)
    assigned = Subscribed("assign", partitions=(TopicPartition(topic, 0), TopicPartition(topic, 9)))
    planner = new_planner(kafka.bootstrap_servers, assigned)
    with caplog.at_level(logging.WARNING, "aiokafka_lite.spark"):
        assert bounds_of(await wait(planner.batch_ranges)) == {0: (0, 5)}
    assert "partition 9" in caplog.text


# --- Batches ---------------------------------------------------------------------------------
async def test_batch_reads_all_there_is_and_knows_the_leaders(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 3, 0, 7)
    planner = new_planner(kafka.bootstrap_servers, topic)
    ranges = await wait(planner.batch_ranges)
    assert bounds_of(ranges) == {0: (0, 3), 2: (0, 7)}
    for each in ranges:
        assert each.leader is not None
        assert each.leader_epoch >= 0
        assert each.topic_id == planner.view.topic_id(topic)
    tasks = await wait(planner.tasks, ranges)
    assert tasks == [tuple(ranges)]


async def test_batch_begins_where_records_are_left(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 10)
    await kafka.delete_records(topic, 0, 4)
    planner = new_planner(kafka.bootstrap_servers, topic)
    assert bounds_of(await wait(planner.batch_ranges)) == {0: (4, 10)}


async def test_batch_reads_between_offsets_that_are_given(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 10, 10, 10)
    planner = new_planner(
        kafka.bootstrap_servers,
        topic,
        starting=Position(offsets(topic, 3, EARLIEST, 5)),
        ending=Position(offsets(topic, 9, LATEST, 5)),
    )
    assert bounds_of(await wait(planner.batch_ranges)) == {0: (3, 9), 1: (0, 10)}


@pytest.mark.parametrize("edge", ["starting", "ending"])
@pytest.mark.parametrize("given", [(0,), (0, 0, 0)], ids=["too few", "too many"])
async def test_offsets_must_name_each_partition_and_no_other(
    kafka: KafkaHandle, new_planner: Planners, edge: str, given: tuple[int, ...]
) -> None:
    topic = await kafka.create_topic(partitions=2)
    for position, option in (
        (Position(offsets(topic, *given)), f"{edge}Offsets"),
        (Position(offsets(topic, *given), is_time=True), f"{edge}OffsetsByTimestamp"),
    ):
        planner = new_planner(
            kafka.bootstrap_servers,
            topic,
            starting=position if edge == "starting" else None,
            ending=position if edge == "ending" else Position(LATEST),
        )
        odd_one = "/1" if len(given) == 1 else "/2"
        with pytest.raises(OptionError, match=rf"{option} .*{topic}{odd_one}"):
            await wait(planner.batch_ranges)


async def test_batch_reads_between_timestamps(kafka: KafkaHandle, new_planner: Planners) -> None:
    topic = await kafka.create_topic(partitions=2)
    for timestamp_ms in (1000, 2000, 3000):
        for partition in range(2):
            await kafka.produce(topic, partition, [(None, b"")], timestamp_ms=timestamp_ms)
    edges: list[tuple[Position, Position, dict[int, tuple[int, int]]]] = [
        (Position(2000, is_time=True), Position(3000, is_time=True), {0: (1, 2), 1: (1, 2)}),
        (Position(1001, is_time=True), Position(LATEST), {0: (1, 3), 1: (1, 3)}),
        # No record as late as the end: the end is the latest.
        (Position(0, is_time=True), Position(9000, is_time=True), {0: (0, 3), 1: (0, 3)}),
        (
            Position(offsets(topic, 0, 3000), is_time=True),
            Position(offsets(topic, 1500, 9000), is_time=True),
            {0: (0, 1), 1: (2, 3)},
        ),
    ]
    for starting, ending, expected in edges:
        planner = new_planner(kafka.bootstrap_servers, topic, starting=starting, ending=ending)
        assert bounds_of(await wait(planner.batch_ranges)) == expected


async def test_timestamp_behind_all_records_is_an_error_or_the_latest_offset(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, [(None, b"")], timestamp_ms=5000)
    at_4000 = Position(4000, is_time=True)
    planner = new_planner(kafka.bootstrap_servers, topic, starting=at_4000)
    with pytest.raises(OptionError, match=r"startingTimestamp.*partition 1.*4000"):
        await wait(planner.beginning)
    planner = new_planner(
        kafka.bootstrap_servers, topic, starting=at_4000, timestamp_strategy="latest"
    )
    assert (await wait(planner.beginning))[0] == offsets(topic, 0, 0)
    assert bounds_of(await wait(planner.batch_ranges)) == {0: (0, 1)}


async def test_batch_that_would_end_before_it_begins_is_refused(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 10)
    for starting, ending in (
        (Position(offsets(topic, 6)), Position(offsets(topic, 5))),
        (Position(offsets(topic, 11)), Position(LATEST)),  # beyond the log, as the connector has it
    ):
        planner = new_planner(
            kafka.bootstrap_servers,
            topic,
            starting=starting,
            ending=ending,
            fail_on_data_loss=False,
        )
        with pytest.raises(OptionError, match=r"startingOffsets.*endingOffsets"):
            await wait(planner.batch_ranges)


async def test_offsets_that_the_log_has_not_are_lost_records(
    kafka: KafkaHandle, new_planner: Planners, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await filled(kafka, 10)
    await kafka.delete_records(topic, 0, 4)
    tp = TopicPartition(topic, 0)
    cases = (
        (Position({tp: 2}), Position(LATEST), "startingOffsets", 2, (4, 10)),
        (Position({tp: 5}), Position({tp: 12}), "endingOffsets", 10, (5, 10)),
    )
    for starting, ending, option, first_missing, readable in cases:
        planner = new_planner(kafka.bootstrap_servers, topic, starting=starting, ending=ending)
        with pytest.raises(DataLossError, match=rf"{option}.*{topic}.*failOnDataLoss") as caught:
            await wait(planner.batch_ranges)
        assert (caught.value.tp, caught.value.offset) == (tp, first_missing)
        planner = new_planner(
            kafka.bootstrap_servers,
            topic,
            starting=starting,
            ending=ending,
            fail_on_data_loss=False,
        )
        with caplog.at_level(logging.WARNING, "aiokafka_lite.spark"):
            assert bounds_of(await wait(planner.batch_ranges)) == {0: readable}
        assert option in caplog.text
        caplog.clear()


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
async def test_open_transaction_is_the_end_for_those_who_read_what_is_committed(
    kafka: KafkaHandle, new_planner: Planners, isolation_level: str
) -> None:
    topic = await filled(kafka, 2)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": unique("open")}
    )
    await wait(producer.init_transactions)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    await wait(producer.flush)
    try:
        planner = new_planner(
            kafka.bootstrap_servers, topic, is_streaming=True, isolation_level=isolation_level
        )
        end = 2 if isolation_level == "read_committed" else 3
        assert await wait(planner.latest) == offsets(topic, end)
    finally:
        await wait(producer.abort_transaction)
    # The marker, which has an offset, comes a moment after the answer.
    while (latest := await wait(planner.latest)) != offsets(topic, 4):
        assert latest == offsets(topic, end)
        await asyncio.sleep(0.02)


# --- Streams ---------------------------------------------------------------------------------
async def test_stream_begins_where_it_was_told(kafka: KafkaHandle, new_planner: Planners) -> None:
    topic = await filled(kafka, 10, 20)
    cases: tuple[tuple[Position | None, Offsets], ...] = (
        (None, offsets(topic, 0, 0)),
        (Position(LATEST), offsets(topic, 10, 20)),
        (Position(offsets(topic, 3, LATEST)), offsets(topic, 3, 20)),
    )
    for starting, expected in cases:
        planner = new_planner(kafka.bootstrap_servers, topic, starting=starting, is_streaming=True)
        assert (await wait(planner.beginning))[0] == expected


async def test_stream_that_would_begin_beyond_the_log_begins_at_its_end_or_fails(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 10)
    beyond = Position(offsets(topic, 500))
    planner = new_planner(kafka.bootstrap_servers, topic, starting=beyond, is_streaming=True)
    with pytest.raises(DataLossError, match=r"startingOffsets.*500.*at offset 0 and ends at 10"):
        await wait(planner.beginning)
    planner = new_planner(
        kafka.bootstrap_servers,
        topic,
        starting=beyond,
        is_streaming=True,
        fail_on_data_loss=False,
    )
    assert (await wait(planner.beginning))[0] == offsets(topic, 10)


async def test_new_records_and_partitions_are_in_the_next_batch(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 5)
    planner = new_planner(kafka.bootstrap_servers, topic, is_streaming=True)
    start = (await wait(planner.beginning))[0]
    assert await wait(planner.latest, start) == offsets(topic, 5)
    await fill(kafka, topic, 0, 2)
    await kafka.add_partitions(topic, 3)
    await fill(kafka, topic, 2, 4)
    end = await wait(planner.latest, offsets(topic, 5))
    assert end == offsets(topic, 7, 0, 4)
    ranges = await wait(planner.stream_ranges, offsets(topic, 5), end)
    assert bounds_of(ranges) == {0: (5, 7), 2: (0, 4)}
    assert await wait(planner.stream_ranges, end, end) == []


async def test_added_partition_without_its_first_records_is_a_loss(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 1)
    await kafka.add_partitions(topic, 2)
    await fill(kafka, topic, 1, 6)
    await kafka.delete_records(topic, 1, 1)
    start, end = offsets(topic, 1), offsets(topic, 1, 6)
    planner = new_planner(kafka.bootstrap_servers, topic, is_streaming=True)
    with pytest.raises(
        DataLossError, match=f"partition 1 of topic {topic} begins at offset 1 instead of 0"
    ):
        await wait(planner.stream_ranges, start, end)
    planner = new_planner(
        kafka.bootstrap_servers, topic, is_streaming=True, fail_on_data_loss=False
    )
    assert bounds_of(await wait(planner.stream_ranges, start, end)) == {1: (1, 6)}


async def made_anew(kafka: KafkaHandle, topic: str, *sizes: int) -> None:
    """Delete a topic and create it again, with so many records in its partitions."""
    await kafka.delete_topic(topic)
    while True:
        try:
            await kafka.create_topic(topic, partitions=len(sizes))
            break
        except KafkaError:  # a real one takes a moment to delete
            await asyncio.sleep(0.05)
    for partition, size in enumerate(sizes):
        await fill(kafka, topic, partition, size)


async def test_topic_made_anew_is_a_loss_and_then_read_from_where_it_is(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 5)
    start = offsets(topic, 5)
    planners = [
        new_planner(kafka.bootstrap_servers, topic, is_streaming=True, fail_on_data_loss=is_fatal)
        for is_fatal in (True, False)
    ]
    for planner in planners:
        assert await wait(planner.latest, start) == start
    await made_anew(kafka, topic, 4)
    for planner in planners:
        assert await wait(planner.latest, start) == offsets(topic, 4)
    with pytest.raises(
        DataLossError, match=f"{topic}, partition 0 was read up to offset 5.* now ends at offset 4"
    ):
        await wait(planners[0].stream_ranges, start, offsets(topic, 4))
    assert await wait(planners[1].stream_ranges, start, offsets(topic, 4)) == []


async def test_topic_made_anew_is_a_loss_even_if_it_is_longer_than_before(
    kafka: KafkaHandle, new_planner: Planners, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await filled(kafka, 3)
    failing, going_on = [
        new_planner(kafka.bootstrap_servers, topic, is_streaming=True, fail_on_data_loss=is_fatal)
        for is_fatal in (True, False)
    ]
    for planner in (failing, going_on):
        end = await wait(planner.latest, offsets(topic, 0))
        await wait(planner.stream_ranges, offsets(topic, 0), end)
    await made_anew(kafka, topic, 7)
    for planner in (failing, going_on):
        assert await wait(planner.latest, end) == offsets(topic, 7)
    with pytest.raises(DataLossError, match=f"{topic} was deleted and recreated"):
        await wait(failing.stream_ranges, end, offsets(topic, 7))
    with caplog.at_level(logging.WARNING, "aiokafka_lite.spark"):
        ranges = await wait(going_on.stream_ranges, end, offsets(topic, 7))
    assert bounds_of(ranges) == {0: (3, 7)}
    assert f"{topic} was deleted and recreated" in caplog.text


async def test_deleted_topic_is_a_loss_and_the_others_go_on(
    kafka: KafkaHandle, new_planner: Planners, caplog: pytest.LogCaptureFixture
) -> None:
    stem = unique("going")
    stays = await filled(kafka, 2, name=f"{stem}-stays")
    goes = await filled(kafka, 3, name=f"{stem}-goes")
    both = {**offsets(stays, 2), **offsets(goes, 3)}
    failing, going_on = [
        new_planner(
            kafka.bootstrap_servers,
            Subscribed("subscribe", topics=(stays, goes)),
            is_streaming=True,
            fail_on_data_loss=is_fatal,
        )
        for is_fatal in (True, False)
    ]
    for planner in (failing, going_on):
        assert await wait(planner.latest, both) == both
    await kafka.delete_topic(goes)
    await fill(kafka, stays, 0, 1)
    for planner in (failing, going_on):
        end = await wait(planner.latest, both)
        while goes in {tp.topic for tp in end}:  # a real one says so a moment later
            end = await wait(planner.latest, both)
        assert end == offsets(stays, 3)
    with pytest.raises(DataLossError, match=f"{goes}/0 were deleted"):
        await wait(failing.stream_ranges, both, end)
    with caplog.at_level(logging.WARNING, "aiokafka_lite.spark"):
        assert bounds_of(await wait(going_on.stream_ranges, both, end)) == {0: (2, 3)}
    assert f"{goes}/0 were deleted" in caplog.text
    # From then on it is not missed any more: no error.
    assert await wait(going_on.latest, end) == end


async def test_deleted_topic_does_not_stop_a_query_that_goes_on_without_it(
    kafka: KafkaHandle, new_planner: Planners, caplog: pytest.LogCaptureFixture
) -> None:
    """With availableNow the ends are looked up before it is known where the query is."""
    stays, missing = await filled(kafka, 2), unique("deleted")
    failing, going_on = [
        new_planner(
            kafka.bootstrap_servers,
            Subscribed("subscribe", topics=(stays, missing)),
            is_streaming=True,
            fail_on_data_loss=is_fatal,
        )
        for is_fatal in (True, False)
    ]
    with pytest.raises(UnknownTopicOrPartitionError, match=missing):
        await wait(failing.latest)
    with caplog.at_level(logging.WARNING, "aiokafka_lite.spark"):
        assert await wait(going_on.latest) == offsets(stays, 2)
    assert missing in caplog.text
    with pytest.raises(UnknownTopicOrPartitionError, match=missing):
        await wait(going_on.beginning)  # of a query that begins, it is a mistake


async def test_target_of_available_now_must_stay_within_reach(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    topic = await filled(kafka, 5, 5)
    planner = new_planner(kafka.bootstrap_servers, topic, is_streaming=True)
    await wait(planner.check_target, offsets(topic, 5, 5))
    await fill(kafka, topic, 0, 1)
    await wait(planner.check_target, offsets(topic, 5, 5))
    with pytest.raises(DataLossError, match=r"partition 1 now ends at offset 5.*recreated"):
        await wait(planner.check_target, offsets(topic, 6, 9))
    with pytest.raises(DataLossError, match=f"{topic}/2 were deleted"):
        await wait(planner.check_target, offsets(topic, 6, 5, 1))


async def test_first_question_after_a_restart_is_answered(
    kafka: KafkaHandle, new_planner: Planners
) -> None:
    """A batch that was logged and not committed is planned before anything else is asked."""
    topic = await filled(kafka, 5, 5)
    planner = new_planner(kafka.bootstrap_servers, topic, is_streaming=True)
    ranges = await wait(planner.stream_ranges, offsets(topic, 1), offsets(topic, 4, 3))
    assert bounds_of(ranges) == {0: (1, 4), 1: (0, 3)}
    assert all(each.leader is not None for each in ranges)
