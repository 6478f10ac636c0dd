"""explain(tp): one true sentence for every state that a partition can be in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from aiokafka_lite._compat import timeout
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.view import PartitionView
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.monitoring.diagnosis import Cause, joining_text, seconds
from aiokafka_lite.errors import (
    DeserializationError,
    KafkaConnectionError,
    KafkaStorageError,
    OffsetOutOfRangeError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import JOIN, in_both_protocols
from tests.support.reading import consumer_of, offsets_read, reading
from tests.support.rows import rows
from tests.support.waiting import until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def until_cause(consumer: AIOKafkaConsumer, tp: TopicPartition, cause: Cause) -> str:
    """Wait until a partition has this cause; return the sentence."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 15
    while inside.cause(consumer, tp) is not cause:
        assert loop.time() < deadline, f"not {cause} but: {consumer.explain(tp)}"
        await asyncio.sleep(0.002)
    return consumer.explain(tp)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        yield broker


# --- The consumer -----------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_before_the_start_and_after_the_stop(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers)
    assert inside.cause(consumer, tp) is Cause.NOT_STARTED
    assert "await consumer.start() first" in consumer.explain(tp)
    await consumer.start()
    await consumer.stop()
    assert inside.cause(consumer, tp) is Cause.STOPPED
    assert "create another consumer" in consumer.explain(tp)


@in_both_protocols
async def test_while_it_joins_its_group(broker: Broker, protocol: str) -> None:
    consumer = consumer_of(broker, "t", group_id="g", group_protocol=protocol)
    with broker.on(JOIN[protocol]).hold() as rule:
        starting = asyncio.ensure_future(consumer.start())
        await until(lambda: rule.hits)
        assert await until_cause(consumer, T0, Cause.STARTING) == (
            "the consumer is starting: it is joining group g (JOINING)"
        )
        rule.release()
        await starting
    await consumer.stop()


@pytest.mark.parametrize(
    ("since", "words"), [(None, ""), (97.5, ""), (97.0, ", for 3.0 s"), (90.0, ", for 10.0 s")]
)
def test_a_join_is_said_to_take_long_from_some_seconds_on(since: float | None, words: str) -> None:
    status = cast(
        "Any",
        SimpleNamespace(trouble="", state="JOINING", joining_since=since, is_eager=False),
    )
    assert joining_text(cast("Any", None), status, 100.0) == f"JOINING{words}"


async def test_while_it_waits_for_a_topic_or_a_broker(broker: Broker) -> None:
    consumer = consumer_of(broker, "not-there", allow_auto_create_topics=False)
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.sleep(0)
    assert "is connecting to a bootstrap server" in await until_cause(consumer, T0, Cause.STARTING)
    await until(lambda: "topic 'not-there' does not exist" in consumer.explain(T0))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await consumer.stop()


@pytest.mark.real_if_long
async def test_a_task_that_died(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with reading(kafka, topic) as consumer:
        inside.let_a_task_die(consumer, "fetch")
        text = await until_cause(consumer, TopicPartition(topic, 0), Cause.TASK_DIED)
        assert "ZeroDivisionError('a bug')" in text


# --- The assignment ---------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_what_is_not_assigned(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(kafka) as consumer:
        assert inside.cause(consumer, tp) is Cause.NOT_ASSIGNED
        assert "call subscribe() or assign()" in consumer.explain(tp)
        consumer.assign([tp])
        assert inside.cause(consumer, other) is Cause.NOT_ASSIGNED
        assert "assign() was called without this partition" in consumer.explain(other)
        consumer.unsubscribe()
        consumer.subscribe([topic])
        await until(lambda: tp in consumer.assignment())
        assert "topic 'u' is not subscribed" in consumer.explain(TopicPartition("u", 0))
        assert "has no partition 7" in consumer.explain(TopicPartition(topic, 7))


@in_both_protocols
async def test_what_another_member_has(kafka: KafkaHandle, protocol: str) -> None:
    topic = await kafka.create_topic()
    tp, group = TopicPartition(topic, 0), unique("group")
    settings = {"group_id": group, "group_protocol": protocol, "heartbeat_interval_ms": 100}
    async with (
        reading(kafka, topic, **settings) as first,  # type: ignore[arg-type]
        reading(kafka, topic, **settings) as second,  # type: ignore[arg-type]
    ):
        await until(lambda: inside.is_settled(first) and len(first.assignment()) < 2)
        without = first if not first.assignment() else second
        assert f"another member of group {group} owns the partition" in await until_cause(
            without, tp, Cause.NOT_ASSIGNED
        )


@in_both_protocols
async def test_a_partition_that_a_rebalance_holds(kafka: KafkaHandle, protocol: str) -> None:
    topic = await kafka.create_topic(partitions=2)
    told: list[tuple[Cause, str]] = []

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            told.extend((inside.cause(consumer, tp), consumer.explain(tp)) for tp in revoked)

        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            told.extend((inside.cause(consumer, tp), consumer.explain(tp)) for tp in assigned)

    settings = {
        "group_id": unique("group"),
        "group_protocol": protocol,
        "heartbeat_interval_ms": 100,
    }
    async with reading(kafka, **settings) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic], listener=Listener())
        await until(lambda: len(told) == 2)
        async with reading(kafka, topic, **settings):  # type: ignore[arg-type]
            await until(lambda: len(told) >= 3)
        until_stop = list(told)  # a rebalance that ends during the stop calls the listener too
    assert {cause for cause, _ in until_stop} == {Cause.REBALANCING}
    assert "the rebalance listener has not returned" in told[0][1]
    assert "is being revoked" in told[2][1]


@pytest.mark.real_if_long
@in_both_protocols
async def test_a_consumer_that_has_left_its_group(kafka: KafkaHandle, protocol: str) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    settings = {"group_protocol": protocol, "max_poll_interval_ms": 100}
    async with reading(kafka, topic, group_id=unique("group"), **settings) as consumer:  # type: ignore[arg-type]
        text = await until_cause(consumer, tp, Cause.OUT_OF_GROUP)
        assert "within max_poll_interval_ms. The consumer joins again at the next read" in text
        assert consumer.health().verdict == "degraded"


# --- The gets ---------------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_an_error_that_waits_for_the_next_get(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    tp = TopicPartition(topic, 0)
    async with reading(kafka, topic, auto_offset_reset="none") as consumer:
        consumer.seek(tp, 99)
        text = await until_cause(consumer, tp, Cause.ERROR_WAITS)
        assert re.search("the next read raises .*OffsetOutOfRangeError.*; seek to continue$", text)
        consumer.pause(tp)
        assert consumer.explain(tp) == text.replace(
            "the next read", "the next read after resume()", 1
        )
        consumer.resume(tp)
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.getone()
        consumer.seek(tp, 0)
        await until_cause(consumer, tp, Cause.BUFFERED)


@pytest.mark.real_if_long
async def test_a_record_that_no_get_comes_past(kafka: KafkaHandle) -> None:
    def refuse(value: bytes) -> object:
        raise ValueError(value)

    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    tp = TopicPartition(topic, 0)
    async with reading(kafka, topic, value_deserializer=refuse) as consumer:
        for _ in range(2):
            with pytest.raises(DeserializationError):
                await consumer.getone()
            assert inside.cause(consumer, tp) is Cause.ERROR_WAITS
            assert "at offset 0 cannot be deserialised" in consumer.explain(tp)
            assert consumer.health().verdict == "degraded"
        consumer.seek(tp, 1)
        await until_cause(consumer, tp, Cause.BUFFERED)


async def test_an_error_of_the_consumer_as_a_whole(broker: Broker) -> None:
    async with consumer_of(broker, "t") as consumer:
        inside.meet_error(consumer, KafkaConnectionError("something"))
        assert inside.cause(consumer, T0) is Cause.ERROR_WAITS
        assert "the next read raises KafkaConnectionError: something" in consumer.explain(T0)
        with pytest.raises(KafkaConnectionError):
            await consumer.getone()


async def test_the_reason_why_gets_hand_out_nothing_is_named(broker: Broker) -> None:
    async with consumer_of(broker, "t", group_id="g") as consumer:
        gate = inside.gate(consumer)
        await until_cause(consumer, T0, Cause.AT_END)
        gate.hold(Hold.LISTENER)
        assert consumer.explain(T0) == (
            "group g (STABLE) rebalances: the rebalance listener has not returned yet. The "
            "partition's records are withheld"
        )
        gate.hold(Hold.CUT_OFF)
        text = consumer.explain(T0)
        assert text.startswith("group g (STABLE): no heartbeat was answered within the session")
        gate.hold(Hold.LOST)
        assert inside.cause(consumer, T0) is Cause.REBALANCING
        assert "the group has removed this member" in consumer.explain(T0)
        gate.release(*Hold)
        assert inside.cause(consumer, T0) is Cause.AT_END


@pytest.mark.real_if_long
@pytest.mark.parametrize(
    ("is_run", "until_when"),
    [
        (False, "the `async with` block of the partition's open batch ends"),
        (True, "earlier records are finished"),
    ],
    ids=["batch", "run"],
)
async def test_buffered_behind_records_that_are_unfinished(
    kafka: KafkaHandle, is_run: bool, until_when: str
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    tp = TopicPartition(topic, 0)

    async def handle(record: object) -> None:
        await asyncio.sleep(1_000)

    async def work() -> None:
        if is_run:
            await consumer.run(handle, max_uncommitted=2)
        async with consumer.batch(max_records=2):
            await asyncio.sleep(1_000)

    async with reading(kafka, topic, group_id=unique("group")) as consumer:
        working = asyncio.create_task(work())
        await until(
            lambda: consumer.explain(tp).startswith(
                "records from offset 2 on are buffered, and are delivered when " + until_when
            )
        )
        working.cancel()
        await asyncio.wait([working])


@pytest.mark.real_if_long
async def test_paused_and_buffered(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    tp = TopicPartition(topic, 0)
    async with reading(kafka, topic) as consumer:
        text = await until_cause(consumer, tp, Cause.BUFFERED)
        assert (
            "records from offset 0 on are buffered, but the application has requested no records"
            in text
        )
        assert (await consumer.getone()).offset == 0
        assert "from offset 1 on" in await until_cause(consumer, tp, Cause.BUFFERED)
        consumer.pause(tp)
        assert inside.cause(consumer, tp) is Cause.PAUSED
        assert (
            consumer.explain(tp)
            == "the partition is paused: call resume() (until then, its buffered records are kept)"
        )


@pytest.mark.real_if_long
async def test_buffered_records_that_are_acknowledged_wait_for_a_read_not_a_handler(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    tp, group = TopicPartition(topic, 0), unique("group")
    async with reading(kafka, topic, group_id=group, ack_mode="explicit") as consumer:
        text = await until_cause(consumer, tp, Cause.BUFFERED)
        assert "the application has requested no records" in text
        (await consumer.getone()).ack()
        assert "from offset 1 on" in await until_cause(consumer, tp, Cause.BUFFERED)


@pytest.mark.real_if_long
async def test_buffered_while_a_get_waits_for_others(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 5))
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(kafka, topic) as consumer:
        getting = asyncio.ensure_future(consumer.getone(other))
        assert "called for other partitions" in await until_cause(consumer, tp, Cause.BUFFERED)
        getting.cancel()


# --- The position -----------------------------------------------------------------------------
async def test_a_committed_offset_that_is_asked_for(broker: Broker) -> None:
    with broker.on("OffsetFetch").hold() as rule:
        async with consumer_of(broker, "t", group_id="g") as consumer:
            text = await until_cause(consumer, T0, Cause.AWAITING_COMMITTED)
            assert re.search(r"requested from node \d+, the coordinator of group g", text)
            rule.release()
            await until_cause(consumer, T0, Cause.AT_END)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("earliest", "the earliest offset"),
        ("latest", "the latest offset"),
        ("by_duration:PT1H", "an offset by time"),
    ],
)
async def test_a_position_that_is_reset(broker: Broker, policy: str, words: str) -> None:
    with broker.on("ListOffsets").hold() as rule:
        async with consumer_of(broker, "t", auto_offset_reset=policy) as consumer:
            text = await until_cause(consumer, T0, Cause.AWAITING_RESET)
            assert text.endswith(f"is being reset to {words} (reason: no committed offset)")
            rule.release()
            await until_cause(consumer, T0, Cause.AT_END)


async def test_a_position_that_is_compared_with_a_new_leader() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        broker.produce("t", "v")
        async with consumer_of(broker, "t") as consumer:
            await consumer.getone()
            with broker.on("OffsetForLeaderEpoch").hold() as rule:
                await broker.stop_node(broker.leader_of(T0))
                text = await until_cause(consumer, T0, Cause.AWAITING_VALIDATION)
                assert "whether its log still has the records before offset 1" in text
                rule.release()
            await until_cause(consumer, T0, Cause.UNFINISHED)


# --- The broker -------------------------------------------------------------------------------
async def test_a_partition_without_a_leader() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 2, replication_factor=1)
        async with consumer_of(broker, "t") as consumer:
            await until_cause(consumer, T0, Cause.AT_END)
            await until_cause(consumer, T1, Cause.AT_END)
            lost = T0 if broker.leader_of(T0) != broker.live_nodes[0].id else T1
            await broker.stop_node(broker.leader_of(lost))
            assert "has no leader at present" in await until_cause(consumer, lost, Cause.NO_LEADER)
            health = consumer.health()
            assert health.verdict == "degraded"
            assert any(f"t/{lost.partition}: the partition has no leader" in reason
                       for reason in health.reasons)  # fmt: skip


async def test_a_partition_whose_leader_has_only_just_become_known(broker: Broker) -> None:
    async with consumer_of(broker, "t") as consumer:
        await until_cause(consumer, T0, Cause.AT_END)
        inside.cursor(consumer, T0).read_from(None)
        assert inside.cause(consumer, T0) is Cause.ABOUT_TO_FETCH
        assert "a fetch to the partition's leader, node 1" in consumer.explain(T0)
        inside.show_metadata(consumer, inside.cluster(consumer).view)
        await until_cause(consumer, T0, Cause.AT_END)


async def test_a_topic_that_nothing_is_known_of(broker: Broker) -> None:
    async with consumer_of(broker, allow_auto_create_topics=False) as consumer:
        tp = TopicPartition("not-there", 0)
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert "metadata of topic 'not-there'" in await until_cause(consumer, tp, Cause.NO_LEADER)
        await until(lambda: "may have been deleted" in consumer.explain(tp))


async def test_a_leader_that_is_not_up(broker: Broker) -> None:
    async with consumer_of(broker, "t") as consumer:
        await until_cause(consumer, T0, Cause.AT_END)
        with broker.on("Metadata").hold() as rule:
            known = inside.cluster(consumer).view
            led_by_another = {T0.partition: PartitionView(0, 0)}
            topic = known.topics["t"]._replace(partitions=led_by_another)
            inside.show_metadata(consumer, known._replace(topics={"t": topic}))
            text = await until_cause(consumer, T0, Cause.NO_LEADER)
            assert text == (
                "the partition's leader, node 0, is not in the metadata's list of brokers: the "
                "broker may be down"
            )
            rule.release()
        await until_cause(consumer, T0, Cause.AT_END)


async def test_a_broker_that_is_gone() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        consumer = consumer_of(broker, "t")
        await consumer.start()
        await until_cause(consumer, T0, Cause.AT_END)
    text = await until_cause(consumer, T0, Cause.BROKER_DOWN)
    assert re.search(r"node 1 at 127.0.0.1:\d+ has not been reachable for", text)
    await consumer.stop()


async def test_a_backoff(broker: Broker) -> None:
    with broker.on("Fetch").fail(KafkaStorageError, times=None):
        async with consumer_of(broker, "t") as consumer:
            text = await until_cause(consumer, T0, Cause.BACKING_OFF)
            assert re.search("failed and is retried in .*: KafkaStorageError", text)


async def test_a_throttle(broker: Broker) -> None:
    broker.on("Fetch").throttle(0.5, times=1)
    async with consumer_of(broker, "t", fetch_max_wait_ms=10) as consumer:
        text = await until_cause(consumer, T0, Cause.THROTTLED)
        assert re.search("node 1 throttles this client for another [0-9]+ ms", text)
        (node,) = cast("list[dict[str, float]]", consumer.metrics()["nodes"])
        assert 0 < node["throttle_seconds"] <= 0.5
        await until_cause(consumer, T0, Cause.AT_END)


async def test_a_connection_that_is_being_opened(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    create_connection, answered = loop.create_connection, asyncio.Event()

    async def connecting(*arguments: Any, **options: Any) -> Any:
        await answered.wait()
        return await create_connection(*arguments, **options)

    async with consumer_of(broker) as consumer:
        inside.cluster(consumer).watch("test", ["t"])
        await inside.cluster(consumer).refresh()
        monkeypatch.setattr(loop, "create_connection", connecting)
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert "is being opened" in await until_cause(consumer, T0, Cause.CONNECTING)
        answered.set()


# --- The fetch --------------------------------------------------------------------------------
async def test_a_fetch_in_flight(broker: Broker) -> None:
    with broker.on("Fetch").hold() as rule:
        async with consumer_of(broker, "t") as consumer:
            text = await until_cause(consumer, T0, Cause.FETCHING)
            assert re.fullmatch(
                r"a fetch to node 1 has been in flight for \d+ ms, from offset 0", text
            )
            rule.release()


async def test_the_end_of_the_log(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    tp = TopicPartition(topic, 0)
    async with reading(kafka, topic) as consumer:
        await offsets_read(consumer, 5)
        text = await until_cause(consumer, tp, Cause.UNFINISHED)
        assert (
            "offsets 0 to 4 are unfinished until the next read, and there has been no read" in text
        )
        assert await consumer.poll(timeout_ms=1) == {}
        text = await until_cause(consumer, tp, Cause.AT_END)
        assert text.startswith(
            "the position is at the end of the log, offset 5, and there are no new records; a fetch"
        )


async def test_an_open_transaction(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 2))
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": unique("tx")}
    )

    def leave_open() -> None:
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce(topic, "open", partition=0)
        producer.flush(10)

    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, leave_open)
    tp = TopicPartition(topic, 0)
    async with reading(kafka, topic, isolation_level="read_committed") as consumer:
        await offsets_read(consumer, 2)
        text = await until_cause(consumer, tp, Cause.OPEN_TRANSACTION)
        assert (
            "a transaction is open at offset 2, the last stable offset (the log ends at 3)" in text
        )
        assert await consumer.poll(timeout_ms=1) == {}
        assert consumer.health().lag == 0
        await loop.run_in_executor(None, producer.abort_transaction, 10)
        async with timeout(15):
            while inside.cause(consumer, tp) is not Cause.AT_END:
                assert await consumer.poll(timeout_ms=10) == {}
        assert "at the end of the log, offset 4" in consumer.explain(tp)


@pytest.mark.real_if_long
async def test_a_partition_that_the_request_in_flight_does_not_have(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(kafka, topic, fetch_max_wait_ms=200) as consumer:
        await until_cause(consumer, tp, Cause.AT_END)
        consumer.pause(tp)
        assert consumer.explain(tp) == "the partition is paused: call resume()"
        await until(lambda: not inside.is_in_flight(consumer, tp))
        await until_cause(consumer, other, Cause.AT_END)
        consumer.resume(tp)
        assert "was sent without this partition" in await until_cause(
            consumer, tp, Cause.AWAITING_ANSWER
        )
        await until_cause(consumer, tp, Cause.AT_END)


@pytest.mark.real_if_long
async def test_a_partition_behind_an_answer_that_was_not_taken(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, rows(0, 5))
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(kafka, topic) as consumer:
        await until_cause(consumer, tp, Cause.BUFFERED)
        text = await until_cause(consumer, other, Cause.ANSWER_NOT_TAKEN)
        assert "is sent when the application has read the records of other partitions" in text
        await offsets_read(consumer, 5)
        await until_cause(consumer, other, Cause.AT_END)


@pytest.mark.real_if_long
async def test_a_buffer_that_is_full(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    await kafka.produce(topic, 0, [(None, b"x" * 60_000)] * 2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with reading(kafka, topic, max_buffered_bytes=100_000) as consumer:
        await until_cause(consumer, tp, Cause.BUFFERED)
        assert await consumer.poll(max_records=1)
        text = await until_cause(consumer, other, Cause.NO_BUDGET)
        assert re.match(r"1\d{5} bytes of max_buffered_bytes=100000 are in use", text)
        assert await consumer.poll(max_records=1)
        await until_cause(consumer, other, Cause.AT_END)


@pytest.mark.real_if_long
async def test_a_fetch_that_is_about_to_be_sent(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    async with reading(kafka, topic, fetch_max_wait_ms=50) as consumer:
        await until_cause(consumer, tp, Cause.AT_END)
        consumer.unsubscribe()
        await until(lambda: not inside.nodes_read_from(consumer))
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert "from offset 0 is about to be sent" in await until_cause(
            consumer, tp, Cause.ABOUT_TO_FETCH
        )
        await until_cause(consumer, tp, Cause.AT_END)


def test_durations_are_milliseconds_below_a_second() -> None:
    assert [seconds(each) for each in (0.25, 0.9994, 1.0, 61.26)] == [
        "250 ms", "999 ms", "1.0 s", "61.3 s",
    ]  # fmt: skip


def test_every_cause_is_driven_by_a_test() -> None:
    source = Path(__file__).read_text()
    source += Path(__file__).with_name("test_unfinished.py").read_text()
    assert [cause for cause in Cause if f"Cause.{cause.name}" not in source] == []


async def test_what_is_no_partition_is_refused() -> None:
    consumer = AIOKafkaConsumer()
    with pytest.raises(TypeError):
        consumer.explain("t")  # type: ignore[arg-type]
    await consumer.stop()
