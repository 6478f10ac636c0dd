"""What fails, moves or is gone while ranges are read."""

from __future__ import annotations

import itertools
import logging
import struct
import time
from collections.abc import Callable
from typing import Literal

import pytest

from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import (
    BrokerResponseError,
    CorruptRecordException,
    FencedLeaderEpochError,
    KafkaError,
    KafkaStorageError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
)
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from aiokafka_lite.spark import reading, worker
from aiokafka_lite.spark.errors import DataLossError, ReadTimeoutError
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.spark.schema import default_schema
from aiokafka_lite.structs import TopicPartition
from tests.spark.reading.conftest import Clock, offsets, options_for, read
from tests.spark.reading.flights import (
    COUNT,
    TOPIC,
    TP,
    assert_all,
    empty_answer,
    fill,
    planned,
    several_fetches,
)
from tests.support.cluster import KafkaHandle
from tests.support.threads import wait


@pytest.fixture
def filled(kafka_broker: BrokerThread) -> BrokerThread:
    """A broker with a topic of a thousand records."""
    fill(kafka_broker)
    return kafka_broker


# --- What is asked for -------------------------------------------------------------------------
def test_small_parts_of_large_batches_take_few_requests(kafka_broker: BrokerThread) -> None:
    kafka_broker.create_topic(TOPIC, 20)
    for partition in range(20):
        large = [NewRecord(b"x" * 100, partition=partition) for _ in range(900)]
        kafka_broker.produce_all(TOPIC, large)
    options = options_for(kafka_broker.bootstrap_servers)
    ranges = [KafkaOffsetRange(TOPIC, partition, 10, 20) for partition in range(20)]
    assert len(read(options, ranges)) == 200
    kafka_broker.requests.clear()
    assert len(read(options, ranges)) == 200  # the size of records is known by now
    assert len(kafka_broker.requests.of("Fetch")) <= 4


def test_little_is_fetched_beyond_the_end(filled: BrokerThread) -> None:
    options = options_for(filled.bootstrap_servers)
    filled.produce_all(TOPIC, [NewRecord(b"x" * 5000, partition=0) for _ in range(500)])
    read(options, [planned(filled, 0, 100)])
    filled.requests.clear()
    read(options, [planned(filled, 0, 100)])
    (fetch,) = filled.requests.of("Fetch")
    assert isinstance(fetch.request, FetchRequest)
    assert fetch.request.topics[0].partitions[0].partition_max_bytes < 30_000


# --- What passes -------------------------------------------------------------------------------
def test_first_request_of_a_warm_task_is_its_fetch(filled: BrokerThread) -> None:
    wanted = planned(filled)
    options = options_for(filled.bootstrap_servers)
    read(options, [wanted])
    filled.requests.clear()
    assert_all(read(options, [wanted]))
    assert {each.api for each in filled.requests} == {"Fetch"}


def test_first_request_of_a_cold_task_is_its_fetch_but_for_versions(filled: BrokerThread) -> None:
    wanted = planned(filled)
    worker.close_all()
    filled.requests.clear()
    assert_all(read(options_for(filled.bootstrap_servers), [wanted]))
    assert [each.api for each in filled.requests][:2] == ["ApiVersions", "Fetch"]
    assert "Metadata" not in {each.api for each in filled.requests}


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderForPartitionError,
        FencedLeaderEpochError,
        UnknownLeaderEpochError,
        UnknownTopicOrPartitionError,
        KafkaStorageError,
    ],
)
def test_errors_that_pass_are_tried_again(
    filled: BrokerThread, error: type[BrokerResponseError]
) -> None:
    filled.on("Fetch", topic=TOPIC).fail(error, times=3)
    assert_all(read(several_fetches(filled), [planned(filled)]))
    assert len(filled.requests.of("Fetch", error=error)) == 3


def test_connections_that_are_lost_are_made_again(filled: BrokerThread) -> None:
    filled.on("Fetch", topic=TOPIC).disconnect(times=1, after_bytes=100)
    filled.on("Fetch", topic=TOPIC).disconnect(times=2, reset=True)
    assert_all(read(several_fetches(filled), [planned(filled)]))


def test_throttling_is_no_failure(filled: BrokerThread) -> None:
    wanted = planned(filled)
    # As Kafka answers a client that has used up its quota.
    filled.on("Fetch").answer(FetchResponse(throttle_time_ms=10, responses=[]), times=5)
    filled.requests.clear()
    assert_all(read(several_fetches(filled, kafkaConsumer__pollTimeoutMs="1"), [wanted]))
    assert "Metadata" not in {each.api for each in filled.requests}


def test_nobody_waits_until_a_throttled_client_may_ask_again(
    filled: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "THREAD_FROM_BYTES", 0)
    monkeypatch.setattr(reading, "ROWS_PER_BATCH", 50)
    filled.on("Fetch", when=is_later).on_frame(with_throttle_time)
    schema = default_schema(include_headers=False)
    started = time.monotonic()
    rows = reading.read_ranges([planned(filled)], several_fetches(filled), schema)
    while next(rows)["offset"][-1].as_py() < COUNT // 2:  # what came with it is handed on
        pass
    rows.close()  # type: ignore[attr-defined] # it is a generator
    assert time.monotonic() - started < 10


def is_later(context: object, request: object) -> bool:
    assert isinstance(request, FetchRequest)
    return request.topics[0].partitions[0].fetch_offset >= COUNT // 2


def with_throttle_time(context: object, frame: bytes) -> bytes:
    """An answer that asks to hold back for 30 s: behind size, correlation id and tags."""
    return frame[:9] + struct.pack(">i", 30_000) + frame[13:]


def test_ranges_of_one_partition_are_not_asked_for_at_once(filled: BrokerThread) -> None:
    options = several_fetches(filled)
    ranges = [planned(filled, 0, 100), planned(filled, 500, 600)]
    rows = read(options, ranges)
    assert sorted(offsets(rows)) == [*range(100), *range(500, 600)]
    for fetch in filled.requests.of("Fetch"):
        assert isinstance(fetch.request, FetchRequest)
        (topic,) = fetch.request.topics
        assert len(topic.partitions) == 1


def test_silent_broker_is_asked_again(filled: BrokerThread) -> None:
    filled.on("Fetch", topic=TOPIC).silence(times=1)
    options = several_fetches(
        filled, kafka__request__timeout__ms="200", kafka__fetch__max__wait__ms="10"
    )
    assert_all(read(options, [planned(filled)]))


@pytest.mark.parametrize("is_threaded", [False, True])
def test_leader_that_moves_is_followed(
    kafka_cluster: BrokerThread, monkeypatch: pytest.MonkeyPatch, is_threaded: bool
) -> None:
    monkeypatch.setattr(reading, "THREAD_FROM_BYTES", 0 if is_threaded else 1 << 60)
    fill(kafka_cluster)
    options = several_fetches(kafka_cluster)
    wanted = planned(kafka_cluster)
    moves = []

    def move(context: object, request: object) -> None:
        moves.append(kafka_cluster.broker.move_leader(TP))

    kafka_cluster.on("Fetch", topic=TOPIC, when=lambda *_: len(moves) < 3).answer(move, times=3)
    assert_all(read(options, [wanted]))
    assert len(moves) == 3


def test_leader_that_moved_is_where_the_next_task_begins(kafka_cluster: BrokerThread) -> None:
    fill(kafka_cluster)
    options = options_for(kafka_cluster.bootstrap_servers, kafka__retry__backoff__ms="1")
    anywhere = KafkaOffsetRange(TOPIC, 0, 0, COUNT)
    assert_all(read(options, [anywhere]))
    kafka_cluster.move_leader(TP)
    assert_all(read(options, [anywhere]))  # the leader that was names the new one
    kafka_cluster.requests.clear()
    assert_all(read(options, [anywhere]))
    (fetch,) = kafka_cluster.requests.of("Fetch")
    assert fetch.node_id == kafka_cluster.leader_of(TP)
    assert not kafka_cluster.requests.of("Metadata")


def test_node_that_stops_is_left_for_the_new_leader(kafka_cluster: BrokerThread) -> None:
    fill(kafka_cluster)
    options = several_fetches(kafka_cluster)
    wanted = planned(kafka_cluster)
    read(options, [wanted])
    kafka_cluster.stop_node(kafka_cluster.leader_of(TP), clean=False)
    assert_all(read(options, [wanted]))


def test_leader_that_the_plan_names_wrongly_is_looked_up(filled: BrokerThread) -> None:
    nobody = Node(77, "127.0.0.1", 1)
    for wanted in (planned(filled)._replace(leader=nobody), KafkaOffsetRange(TOPIC, 0, 0, COUNT)):
        assert_all(read(several_fetches(filled), [wanted]))


# --- What does not -----------------------------------------------------------------------------
def test_partition_that_brings_nothing_times_out(filled: BrokerThread) -> None:
    clock = Clock()
    filled.on("Fetch", topic=TOPIC).fail(NotLeaderForPartitionError, times=None)
    options = options_for(filled.bootstrap_servers, kafkaConsumer__pollTimeoutMs="5000")
    with pytest.raises(ReadTimeoutError) as caught:
        read(options, [planned(filled, 7)], clock=clock, sleep=clock.sleep)
    assert (caught.value.tp, caught.value.offset) == (TP, 7)
    text = str(caught.value)
    for part in ("partition 0", TOPIC, "offset 7", "127.0.0.1", "NotLeader", "pollTimeoutMs"):
        assert part in text
    assert 5 <= clock.now - 1000 < 8
    assert max(clock.slept) < 1.3  # retry.backoff.max.ms, with its jitter


def test_leader_that_does_not_know_its_end_yet_is_waited_for(filled: BrokerThread) -> None:
    # As a leader is that was elected just now: it has the records, and may not show them yet.
    filled.on("Fetch", topic=TOPIC).answer(empty_answer(filled, high_watermark=0), times=3)
    filled.on("ListOffsets", topic=TOPIC).fail(OffsetNotAvailableError, times=2)
    assert_all(read(several_fetches(filled), [planned(filled)]))


def test_refused_topic_is_an_error_at_once(filled: BrokerThread) -> None:
    filled.on("Fetch", topic=TOPIC).fail(TopicAuthorizationFailedError, times=None)
    with pytest.raises(TopicAuthorizationFailedError, match=f"topic {TOPIC} at offset 0") as caught:
        read(options_for(filled.bootstrap_servers), [planned(filled)])
    assert caught.value.tp == TP


@pytest.mark.parametrize(
    ("damage", "error"), [("crc", CorruptRecordException), ("records", RecordTooLargeError)]
)
def test_broken_batch_is_named_with_its_place(
    filled: BrokerThread, damage: Literal["crc", "records"], error: type[KafkaError]
) -> None:
    filled.on("Fetch", topic=TOPIC).corrupt(damage, times=None)
    options = options_for(filled.bootstrap_servers, kafka__max__partition__fetch__bytes="100")
    with pytest.raises(error, match=f"topic {TOPIC} at offset 0") as caught:
        read(options, [planned(filled)])
    assert caught.value.tp == TP


def test_answer_may_be_as_large_as_a_batch(filled: BrokerThread) -> None:
    answer = empty_answer(filled, high_watermark=COUNT)
    answer.responses[0].partitions[0].records = memoryview(bytes(101 << 20))
    filled.on("Fetch").answer(answer)
    with pytest.raises(CorruptRecordException):  # it was looked at
        read(options_for(filled.bootstrap_servers), [planned(filled)])


def test_corrupt_batch_beyond_the_range_does_no_harm(filled: BrokerThread) -> None:
    wanted = planned(filled)
    filled.produce(TOPIC, b"more", partition=0)

    def break_last(tp: TopicPartition, record_set: bytes | memoryview) -> bytes:
        return bytes(record_set[:-1]) + b"\x55"

    filled.on("Fetch", topic=TOPIC).rewrite_batch(break_last, times=None)
    assert_all(read(options_for(filled.bootstrap_servers), [wanted]))


# --- Gaps --------------------------------------------------------------------------------------
def test_compacted_offsets_are_passed(kafka_broker: BrokerThread) -> None:
    configs = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
    kafka_broker.create_topic(TOPIC, configs=configs)
    for first in range(0, COUNT, 40):
        kafka_broker.produce_all(
            TOPIC,
            [
                NewRecord(b"x" * 4000, key=b"%d" % (number * number % 97), partition=0)
                for number in range(first, first + 40)
            ],
        )
    kafka_broker.run(lambda broker: broker.clean_logs())
    left = [record.offset for record in kafka_broker.records(TOPIC)]
    gaps = [number for number in range(COUNT) if number not in set(left)]
    assert 100 < len(gaps) < COUNT - 30
    options = several_fetches(kafka_broker, kafka__max__partition__fetch__bytes="100000")
    assert offsets(read(options, [KafkaOffsetRange(TOPIC, 0, 0, COUNT)])) == left
    for cut in (1, 100, gaps[0], gaps[0] + 1, gaps[-1], gaps[-1] + 1, 999):
        halves = [KafkaOffsetRange(TOPIC, 0, 0, cut), KafkaOffsetRange(TOPIC, 0, cut, COUNT)]
        assert [offset for half in halves for offset in offsets(read(options, [half]))] == left


def is_at_end(context: object, request: object) -> bool:
    assert isinstance(request, FetchRequest)
    return request.topics[0].partitions[0].fetch_offset == COUNT


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_gap_at_the_end_of_the_log_ends_the_range(filled: BrokerThread, isolation: str) -> None:
    wanted = planned(filled, end=COUNT + 5)
    # As one answers whose last records were removed by compaction.
    filled.on("Fetch", topic=TOPIC, when=is_at_end).answer(
        empty_answer(filled, high_watermark=COUNT + 5), times=None
    )
    options = options_for(filled.bootstrap_servers, kafka__isolation__level=isolation)
    assert_all(read(options, [wanted]))


@pytest.mark.parametrize("turns", ["once, first of all", "once, in the middle", "every other"])
def test_one_answer_without_records_ends_no_range(filled: BrokerThread, turns: str) -> None:
    # Its records can be had, says the broker: so only a second one in a row means a gap.
    numbers = itertools.count()

    def is_turn(context: object, request: object) -> bool:
        number = next(numbers)
        return number % 2 == 0 if turns == "every other" else number == ("middle" in turns)

    rule = filled.on("Fetch", topic=TOPIC, when=is_turn).answer(
        empty_answer(filled, high_watermark=COUNT), times=None
    )
    assert_all(read(several_fetches(filled), [planned(filled)]))
    assert rule.hits > (turns == "every other")


def test_records_that_remote_storage_is_slow_to_bring_are_waited_for(filled: BrokerThread) -> None:
    # Kafka answers without them after remote.fetch.max.wait.ms.
    filled.on("Fetch", topic=TOPIC).answer(empty_answer(filled, high_watermark=COUNT), times=5)
    local = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=COUNT)
    filled.on("ListOffsets", topic=TOPIC).answer(
        ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[local])]),
        times=None,
    )
    assert_all(read(several_fetches(filled), [planned(filled)]))


# --- Data loss ---------------------------------------------------------------------------------
@pytest.mark.parametrize("start", [0, 2])
async def test_aged_records_are_data_loss(
    kafka: KafkaHandle, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.create_topic()
    for number in range(4):
        await kafka.produce(topic, 0, [(None, b"%d" % number)] * 5)
    await kafka.delete_records(topic, 0, 12)
    strict = options_for(kafka.bootstrap_servers)
    with pytest.raises(DataLossError) as caught:
        await wait(read, strict, [KafkaOffsetRange(topic, 0, start, 20)])
    for part in (f"offsets {start} to 19", topic, "partition 0", "offset 12", "failOnDataLoss"):
        assert part in str(caught.value)
    assert (caught.value.offset, caught.value.next_offset) == (start, 12)

    tolerant = options_for(kafka.bootstrap_servers, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        rows = await wait(read, tolerant, [KafkaOffsetRange(topic, 0, start, 20)])
    assert offsets(rows) == list(range(12, 20))
    assert f"offsets {start} to 19" in caplog.text
    assert await wait(read, tolerant, [KafkaOffsetRange(topic, 0, start, 10)]) == []


def test_log_that_ends_before_the_range_is_data_loss(filled: BrokerThread) -> None:
    wanted = planned(filled, start=900)
    filled.truncate(TP, 500)
    with pytest.raises(DataLossError, match="the log ends at offset 500"):
        read(several_fetches(filled), [wanted._replace(topic_id=bytes(16))])
    tolerant = several_fetches(filled, failOnDataLoss="false")
    assert read(tolerant, [wanted]) == []


def test_log_that_ends_within_the_range_is_data_loss(filled: BrokerThread) -> None:
    wanted = planned(filled, end=COUNT + 1)
    with pytest.raises(DataLossError, match=f"the log ends at offset {COUNT}"):
        read(several_fetches(filled), [wanted])
    assert_all(read(several_fetches(filled, failOnDataLoss="false"), [wanted]))


@pytest.mark.parametrize(
    ("change", "why", "left"),
    [
        (lambda broker: broker.recreate_topic(TOPIC), "recreated", []),
        (
            lambda broker: (
                broker.recreate_topic(TOPIC),
                broker.produce(TOPIC, b"new", partition=0),
            ),
            "recreated",
            [0],
        ),
        (lambda broker: broker.delete_topic(TOPIC), "was deleted", []),
    ],
)
def test_topic_that_is_not_the_same_any_more_is_data_loss(
    filled: BrokerThread, change: Callable[[BrokerThread], object], why: str, left: list[int]
) -> None:
    wanted = planned(filled)
    read(several_fetches(filled), [wanted])
    change(filled)
    with pytest.raises(DataLossError, match=why) as caught:
        read(several_fetches(filled), [wanted])
    assert caught.value.tp == TP
    tolerant = several_fetches(filled, failOnDataLoss="false")
    assert offsets(read(tolerant, [wanted])) == left
