"""Groups of the consumer protocol (KIP-848), on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.kip848.heartbeat import UNSETTLED_FOR_S
from aiokafka_lite.errors import (
    BrokerResponseError,
    CommitFailedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    InvalidRequestError,
    NotCoordinatorError,
    UnsupportedAssignorError,
)
from aiokafka_lite.events import TopicRecreated
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.epoch_groups import beats_of, consumer_at, consumer_of
from tests.support.listeners import Losing
from tests.support.rows import rows, tps
from tests.support.waiting import PATIENCE_S, until


class Reader:
    """A member that reads on and on, and keeps what it was handed, and when."""

    def __init__(self, kafka: KafkaHandle, group: str, topic: str, **settings: object) -> None:
        self.calls = Losing()
        self.consumer = consumer_at(
            kafka.bootstrap_servers,
            group,
            topic,
            listener=self.calls,
            auto_offset_reset="earliest",
            **settings,
        )
        self.seen: list[tuple[int, int]] = []
        self.last_at: dict[int, float] = {}
        self.longest_s: Counter[int] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Reader:
        await self.consumer.start()
        self._task = asyncio.ensure_future(self._read())
        return self

    async def _read(self) -> None:
        while True:
            for tp, records in (await self.consumer.getmany(timeout_ms=100)).items():
                self.seen += [(tp.partition, record.offset) for record in records]
                now = time.monotonic()
                last = self.last_at.get(tp.partition, now)
                self.last_at[tp.partition] = now
                self.longest_s[tp.partition] = max(self.longest_s[tp.partition], now - last)  # type: ignore[assignment]

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.consumer.stop()

    @property
    def partitions(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}


class Topic:
    """A topic that is written to all the while."""

    def __init__(
        self, kafka: KafkaHandle, name: str, count: int, broker: Broker | None = None
    ) -> None:
        self.kafka, self.name, self.count = kafka, name, count
        self.broker = broker
        self.written = 0

    async def write(self, times: int = 1) -> None:
        for _ in range(times):
            for partition in range(self.count):
                if self.broker is not None:
                    self.broker.produce(self.name, b"x", partition=partition)
                else:
                    await self.kafka.produce(self.name, partition, rows(self.written, 1))
            self.written += 1

    def everything(self) -> set[tuple[int, int]]:
        return {(partition, n) for partition in range(self.count) for n in range(self.written)}


@pytest.fixture
async def topic(kafka: KafkaHandle) -> Topic:
    return Topic(kafka, await kafka.create_topic(partitions=4), 4)


@contextlib.asynccontextmanager
async def reading(*readers: Reader) -> AsyncIterator[None]:
    """Start readers one after the other, and stop them at the end."""
    try:
        for reader in readers:
            await reader.start()
        yield
    finally:
        await asyncio.gather(*(reader.stop() for reader in readers))


def share(count: int, *readers: Reader) -> bool:
    """Whether each partition is with one of the readers, as evenly as can be."""
    sizes = [len(reader.partitions) for reader in readers]
    held = sorted(number for reader in readers for number in reader.partitions)
    return held == list(range(count)) and max(sizes) - min(sizes) <= 1


def seen_by(*readers: Reader) -> set[tuple[int, int]]:
    """What readers were handed, together."""
    return {each for reader in readers for each in reader.seen}


async def test_a_single_member_gets_everything_before_start_returns(
    kafka: KafkaHandle, topic: Topic
) -> None:
    async with reading(one := Reader(kafka, unique("g"), topic.name)):
        assert one.partitions == {0, 1, 2, 3}
        await topic.write(3)
        await until(lambda: set(one.seen) == topic.everything())
        assert one.consumer.health().is_ok
    assert one.calls.calls == [("assigned", tps(topic.name, 0, 1, 2, 3))]


async def test_three_rebalances_move_only_what_has_to_and_lose_nothing(
    kafka: KafkaHandle, topic: Topic
) -> None:
    group = unique("g")
    one, two, three = (Reader(kafka, group, topic.name) for _ in range(3))
    async with reading(one):
        await topic.write(2)
        await until(lambda: set(one.seen) == topic.everything())
        async with reading(two):
            await until(lambda: share(4, one, two))
            kept = set(one.partitions)
            await topic.write(2)
            async with reading(three):
                await until(lambda: share(4, one, two, three))
                await topic.write(2)
            await until(lambda: share(4, one, two))
        await until(lambda: share(4, one))
        await topic.write(2)
        await until(lambda: seen_by(one, two, three) == topic.everything())
    # The listener hears of what comes and goes: put together it is what the member has.
    held: set[TopicPartition] = set()
    for name, partitions in one.calls.calls:
        assert partitions
        if name == "assigned":
            assert not partitions & held
            held |= partitions
        else:
            assert name == "revoked"
            assert partitions <= held
            held -= partitions
    assert held == tps(topic.name, 0, 1, 2, 3)
    first_revocation = next(tps_ for name, tps_ in one.calls.calls if name == "revoked")
    assert {tp.partition for tp in first_revocation} == {0, 1, 2, 3} - kept


@pytest.mark.real_if_long
@pytest.mark.virtual_time_if_embedded
async def test_a_joiner_reads_within_a_second_or_so(kafka: KafkaHandle, topic: Topic) -> None:
    group = unique("g")
    one, two = Reader(kafka, group, topic.name), Reader(kafka, group, topic.name)
    async with reading(one):
        await asyncio.sleep(6)  # until it is settled, and slow
        await topic.write()
        began = asyncio.get_running_loop().time()
        async with reading(two):
            await until(lambda: share(4, one, two))
            took_s = asyncio.get_running_loop().time() - began
    # Who keeps to the broker's interval takes five seconds.
    assert took_s < 3.5


async def test_partitions_that_stay_go_on_being_read_while_others_move(
    kafka: KafkaHandle, topic: Topic
) -> None:
    group = unique("g")
    one, two = Reader(kafka, group, topic.name), Reader(kafka, group, topic.name)
    async with reading(one):
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set():
                await topic.write()
                await asyncio.sleep(0.02)

        writing = asyncio.ensure_future(write())
        await until(lambda: len(one.last_at) == 4)
        one.longest_s.clear()
        async with reading(two):
            await until(lambda: share(4, one, two))
            await asyncio.sleep(0.3)
            kept = max(one.longest_s[number] for number in one.partitions)
            stop.set()
            await writing
            await until(lambda: set(one.seen + two.seen) == topic.everything())
    assert kept < 0.8


@pytest.mark.real_if_long
async def test_a_rebalance_does_not_repeat_what_is_in_hand(kafka: KafkaHandle) -> None:
    topic = Topic(kafka, await kafka.create_topic(partitions=2), 2)
    await topic.write(30)
    group = unique("g")
    seen: list[tuple[int, int]] = []

    async def work(consumer: AIOKafkaConsumer) -> None:
        while True:
            found = await consumer.getmany(timeout_ms=50, max_records=5)
            for tp, records in found.items():
                for record in records:
                    await asyncio.sleep(0.02)
                    seen.append((tp.partition, record.offset))

    one, two = (
        consumer_at(
            kafka.bootstrap_servers,
            group,
            topic.name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=60_000,
        )
        for _ in range(2)
    )
    async with one:
        working = asyncio.ensure_future(work(one))
        await until(lambda: len(seen) >= 5)
        async with two:
            also_working = asyncio.ensure_future(work(two))
            await until(lambda: len(two.assignment()) == len(one.assignment()) == 1)
            await until(lambda: set(seen) == topic.everything())
            also_working.cancel()
        working.cancel()
        await asyncio.wait({working, also_working})
    assert sorted(seen) == sorted(topic.everything())


async def test_members_that_start_at_once_share_everything(
    kafka: KafkaHandle, topic: Topic
) -> None:
    group = unique("g")
    readers = [Reader(kafka, group, topic.name) for _ in range(3)]
    await asyncio.gather(*(reader.start() for reader in readers))
    await until(lambda: share(4, *readers))
    await topic.write(2)
    await until(lambda: {each for r in readers for each in r.seen} == topic.everything())
    await asyncio.gather(*(reader.stop() for reader in readers))


async def test_more_members_than_partitions_are_fine(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    group = unique("g")
    one, two = Reader(kafka, group, topic), Reader(kafka, group, topic)
    async with reading(one, two):
        assert two.calls.calls == [("assigned", set())]  # the first member keeps what it has
        assert one.partitions == {0}
        assert two.consumer.health().is_ok
        await one.stop()
        await until(lambda: two.partitions == {0})


@pytest.mark.real_if_long
async def test_what_was_committed_is_where_the_next_owner_goes_on(
    kafka: KafkaHandle, topic: Topic
) -> None:
    group = unique("g")
    await topic.write(5)
    async with reading(one := Reader(kafka, group, topic.name)):
        await until(lambda: set(one.seen) == topic.everything())
    async with reading(two := Reader(kafka, group, topic.name)):
        await topic.write(1)
        await until(lambda: len(two.seen) >= 4)
    assert {offset for _, offset in two.seen} == {5}


async def test_a_subscription_that_changes_moves_nothing_else(kafka: KafkaHandle) -> None:
    names = [await kafka.create_topic(partitions=2) for _ in range(3)]
    calls = Losing()
    async with consumer_at(kafka.bootstrap_servers, unique("g"), names[0], listener=calls) as one:
        one.subscribe(names[:2], listener=calls)
        await until(lambda: one.assignment() == tps(names[0], 0, 1) | tps(names[1], 0, 1))
        one.subscribe(names[1:], listener=calls)
        await until(lambda: one.assignment() == tps(names[1], 0, 1) | tps(names[2], 0, 1))
        await until(lambda: len(calls.calls) == 4)  # they are assigned before it is told
        assert calls.calls == [
            ("assigned", tps(names[0], 0, 1)),
            ("assigned", tps(names[1], 0, 1)),
            ("revoked", tps(names[0], 0, 1)),
            ("assigned", tps(names[2], 0, 1)),
        ]
        one.unsubscribe()
        assert one.assignment() == set()
        await until(lambda: len(calls.calls) == 5)
        assert calls.calls[4] == ("revoked", tps(names[1], 0, 1) | tps(names[2], 0, 1))
        one.subscribe([names[0]], listener=calls)
        await until(lambda: one.assignment() == tps(names[0], 0, 1))


async def test_a_topic_that_is_unsubscribed_for_a_moment_goes_on(kafka: KafkaHandle) -> None:
    one_topic, other = await kafka.create_topic(), await kafka.create_topic()
    consumer = consumer_at(
        kafka.bootstrap_servers, unique("g"), one_topic, auto_offset_reset="earliest"
    )
    async with consumer:
        consumer.subscribe([other])
        consumer.subscribe([one_topic, other])
        await kafka.produce(one_topic, 0, rows(0, 1))
        assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).topic == one_topic


@pytest.mark.real_if_long
async def test_a_pattern_is_matched_by_the_broker(kafka: KafkaHandle) -> None:
    prefix = unique("pattern")
    first = await kafka.create_topic(f"{prefix}-a")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=unique("g"),
        group_protocol="consumer",
        auto_offset_reset="earliest",
        metadata_max_age_ms=10_000,
    )
    consumer.subscribe(pattern=f"{prefix}-[ab]")
    async with consumer:
        await until(lambda: consumer.assignment() == tps(first, 0))
        second = await kafka.create_topic(f"{prefix}-b2")
        await kafka.create_topic(f"{prefix}-c")
        await kafka.produce(second, 0, rows(0, 1))
        async with timeout(40):
            while second not in {tp.topic for tp in consumer.assignment()}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert consumer.assignment() == tps(first, 0) | tps(second, 0)
        assert consumer.subscription() == {first, second}
        assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).topic == second


async def test_new_topics_of_a_pattern_are_there_as_soon_as_metadata_have_them(
    kafka: KafkaHandle,
) -> None:
    prefix = unique("pattern")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=unique("g"),
        group_protocol="consumer",
        metadata_max_age_ms=200,
    )
    consumer.subscribe(pattern=f"^{prefix}-[ab]")
    async with consumer, timeout(8):  # less than the ten seconds after which brokers look
        for name in ("a", "b"):
            topic = await kafka.create_topic(f"{prefix}-{name}")
            await until(lambda topic=topic: TopicPartition(topic, 0) in consumer.assignment())  # type: ignore[misc]
            assert topic in consumer.subscription()


async def test_a_pattern_that_brokers_read_otherwise_is_matched_here(kafka: KafkaHandle) -> None:
    prefix = unique("pattern")
    topic = await kafka.create_topic(f"{prefix}-a")
    await kafka.create_topic(f"{prefix}-b")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=unique("g"), group_protocol="consumer"
    )
    consumer.subscribe(pattern=rf"{prefix}-(?!b)")
    async with consumer:
        await until(lambda: consumer.assignment() == tps(topic, 0))


@pytest.mark.parametrize("assignor", ["range", "uniform"])
async def test_the_broker_shares_out_by_the_assignor_that_is_named(
    kafka: KafkaHandle, assignor: str
) -> None:
    topic = await kafka.create_topic(partitions=4)
    group = unique("g")
    settings = {"group_remote_assignor": assignor}
    one, two = (Reader(kafka, group, topic, **settings) for _ in range(2))
    async with reading(one, two):
        await until(lambda: share(4, one, two))
        if assignor == "range":
            assert {0, 1} in (one.partitions, two.partitions)


async def test_an_assignor_that_the_broker_does_not_have_is_said(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    consumer = consumer_at(
        kafka.bootstrap_servers, unique("g"), topic, group_remote_assignor="nonesuch"
    )
    with pytest.raises(UnsupportedAssignorError):
        await consumer.start()
    await consumer.stop()


async def test_a_static_member_that_restarts_has_what_it_had(
    kafka: KafkaHandle, topic: Topic
) -> None:
    group = unique("g")
    one = Reader(kafka, group, topic.name, group_instance_id="one")
    two = Reader(kafka, group, topic.name, group_instance_id="two")
    async with reading(one, two):
        await until(lambda: share(4, one, two))
        had, others = set(one.partitions), list(two.calls.calls)
        await one.stop()
        again = Reader(kafka, group, topic.name, group_instance_id="one")
        async with reading(again):
            await until(lambda: again.partitions == had)
        assert two.calls.calls == others


async def test_a_classic_group_moves_over_member_by_member_and_back(
    kafka: KafkaHandle, topic: Topic
) -> None:
    group = unique("g")

    def member(protocol: str) -> Reader:
        return Reader(kafka, group, topic.name, group_protocol=protocol, heartbeat_interval_ms=200)

    seen: list[Reader] = []
    running = [await member("classic").start(), await member("classic").start()]
    seen += running
    await until(lambda: share(4, *running))
    for protocols in (("consumer", "consumer"), ("classic", "classic")):
        for index, protocol in enumerate(protocols):
            await topic.write()
            joining = member(protocol)
            seen.append(joining)
            await joining.start()
            leaving, running[index] = running[index], joining
            await leaving.stop()
            await until(lambda: share(4, *running))
            assert {reader.consumer.health().verdict for reader in running} <= {"ok", "degraded"}
    await topic.write()
    await until(lambda: seen_by(*seen) == topic.everything())
    await asyncio.gather(*(reader.stop() for reader in running))


@pytest.mark.parametrize("protocol", ["auto", "consumer"])
async def test_auto_is_the_consumer_protocol_where_it_is_offered(
    kafka: KafkaHandle, protocol: str
) -> None:
    topic = await kafka.create_topic()
    async with consumer_at(
        kafka.bootstrap_servers, unique("g"), topic, group_protocol=protocol
    ) as consumer:
        assert consumer.metrics()["group_protocol"] == "consumer"
        assert consumer.metrics()["group_state"] == "STABLE"
        assert consumer.assignment() == tps(topic, 0)


async def test_who_is_away_too_long_leaves_and_comes_back(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    calls = Losing()
    consumer = consumer_at(
        kafka.bootstrap_servers,
        unique("g"),
        topic,
        listener=calls,
        max_poll_interval_ms=500,
        auto_offset_reset="earliest",
    )
    async with consumer:
        await kafka.produce(topic, 0, rows(0, 2))
        await consumer.getone()
        await until(lambda: any("max_poll_interval_ms" in r for r in consumer.health().reasons))
        assert consumer.assignment() == set()
        record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        assert record.offset == 0  # it was not known to be done
    assert [name for name, _ in calls.calls] == ["assigned", "revoked", "assigned"]


@pytest.mark.virtual_time
async def test_a_listener_that_takes_long_at_the_start_is_no_absence() -> None:
    class Slow(Losing):
        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            await asyncio.sleep(0.39)
            await super().on_partitions_assigned(assigned)

    async with Broker() as broker:
        broker.create_topic("t")
        async with consumer_of(broker, listener=(calls := Slow()), max_poll_interval_ms=400):
            assert calls.calls == [("assigned", tps("t", 0))]


async def test_a_topic_with_more_partitions_is_shared_out_anew(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    async with consumer_at(kafka.bootstrap_servers, unique("g"), topic) as consumer:
        await kafka.add_partitions(topic, 3)
        await until(lambda: consumer.assignment() == tps(topic, 0, 1, 2))


# --- Faults, on the embedded broker -----------------------------------------------------------
@pytest.mark.few_rows(5)
@pytest.mark.virtual_time
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", ["answer", "request", "moved", "coordinator"])
async def test_rebalances_go_through_whatever_is_lost(fault: str, times: int) -> None:
    # Whose last heartbeats are all lost goes when its session ends.
    async with Broker(nodes=2, group_consumer_session_timeout_ms=3000) as broker:
        broker.create_topic("t", 4)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = Topic(kafka, "t", 4, broker)
        one, two = Reader(kafka, "g", "t"), Reader(kafka, "g", "t")

        def fail() -> None:
            beats = broker.on("ConsumerGroupHeartbeat")
            if fault == "answer":
                beats.disconnect(times, handled=True)
            elif fault == "request":
                beats.disconnect(times)
            elif fault == "coordinator":
                broker.move_coordinator("g")
            else:
                beats.fail(NotCoordinatorError, times)

        async with reading(one):
            await topic.write()
            fail()
            async with reading(two):
                for _ in range(times):
                    fail()
                    await topic.write()
                    await asyncio.sleep(0.1)
                await until(lambda: share(4, one, two))
                fail()
                await topic.write()
            fail()
            await until(lambda: share(4, one))
            await topic.write()
            await until(lambda: set(one.seen + two.seen) == topic.everything())
    assert broker.failure is None


@pytest.fixture
def threaded() -> Iterator[BrokerThread]:
    """A broker that goes on while the loop is blocked, with short sessions."""
    with BrokerThread(BrokerConfig(group_consumer_session_timeout_ms=700)) as broker:
        yield broker


async def test_a_loop_that_is_blocked_for_a_session_loses_and_joins_again(
    threaded: BrokerThread,
) -> None:
    threaded.create_topic("t")
    calls = Losing()
    consumer = consumer_at(
        threaded.bootstrap_servers,
        "g",
        "t",
        listener=calls,
        auto_offset_reset="earliest",
        session_timeout_ms=700,
        heartbeat_interval_ms=100,
        enable_auto_commit=False,
    )
    async with consumer:
        threaded.produce("t", b"0")
        record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        threaded.produce("t", b"1")
        time.sleep(1.2)  # noqa: ASYNC251 -- as a handler that does not know better
        with pytest.raises(CommitFailedError):
            await consumer.commit({TopicPartition("t", 0): record.offset + 1})
        await until(lambda: [name for name, _ in calls.calls] == ["assigned", "lost", "assigned"])
        record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        assert record.offset == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("interval_ms", "least", "most"),
    [(ConsumerConfig().heartbeat_interval_ms, 35, 45), (1000, 8, 12)],
    ids=["by_the_size_of_the_group", "as_was_asked_for"],
)
async def test_what_heartbeats_cost_a_settled_member_that_is_alone(
    interval_ms: int, least: int, most: int
) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with consumer_of(broker, heartbeat_interval_ms=interval_ms):
            await asyncio.sleep(UNSETTLED_FOR_S + 1)
            before = len(beats_of(broker))
            await asyncio.sleep(10)
            assert least <= len(beats_of(broker)) - before <= most


@pytest.mark.virtual_time
async def test_members_whose_topics_an_expression_names_send_one_heartbeat_a_second() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with consumer_of(broker) as consumer:
            consumer.unsubscribe()
            consumer.subscribe(pattern="^t")
            await asyncio.sleep(UNSETTLED_FOR_S + 2)
            before = len(beats_of(broker))
            await asyncio.sleep(10)
            assert 8 <= len(beats_of(broker)) - before <= 12


@pytest.mark.virtual_time
async def test_a_member_that_is_throttled_keeps_to_the_brokers_interval() -> None:
    async with Broker(group_consumer_heartbeat_interval_ms=2000) as broker:
        broker.create_topic("t")
        broker.on("ConsumerGroupHeartbeat").throttle(0.01, times=None)
        async with consumer_of(broker):
            before = len(beats_of(broker))
            await asyncio.sleep(1.5)
            assert len(beats_of(broker)) - before <= 1


# --- A topic that is recreated -----------------------------------------------------------------
@pytest.mark.virtual_time
async def test_a_recreated_topic_is_read_and_committed_when_the_coordinator_has_assigned_it() -> (
    None
):
    """Before that its partitions may be another member's, who has committed already."""
    tp = TopicPartition("t", 0)
    async with Broker() as broker:
        broker.create_topic("t")
        for _ in range(5):
            broker.produce("t", b"former")
        async with consumer_of(
            broker, auto_offset_reset="earliest", metadata_max_age_ms=100
        ) as consumer:
            events = consumer.events()
            assert len((await consumer.getmany(timeout_ms=1_000))[tp]) == 5
            await consumer.commit()
            with broker.on("ConsumerGroupHeartbeat").hold():
                broker.recreate_topic("t")
                for _ in range(3):
                    broker.produce("t", b"new")
                async with timeout(10):
                    while not isinstance(await anext(events), TopicRecreated):
                        pass
                assert not await consumer.getmany(timeout_ms=2_000)
                await consumer.commit()
                with pytest.raises((CommitFailedError, IllegalStateError)):
                    await consumer.commit({tp: 1})
                assert tp not in broker.committed(consumer.group_metadata().group_id)
            found = (await consumer.getmany(timeout_ms=5_000))[tp]
            assert [(record.offset, record.value) for record in found] == [
                (offset, b"new") for offset in range(3)
            ]
            await consumer.commit()
            assert broker.committed(consumer.group_metadata().group_id) == {tp: 3}


@pytest.mark.parametrize("error", [GroupAuthorizationFailedError, InvalidRequestError])
async def test_member_that_was_refused_has_nobody_to_leave(
    error: type[BrokerResponseError], caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.on("ConsumerGroupHeartbeat").fail(error, times=None)
        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            group_protocol="consumer",
        )
        with pytest.raises(error):
            await consumer.start()
        await consumer.stop()
        (_,) = broker.requests.of("ConsumerGroupHeartbeat")
    assert not [text for text in caplog.messages if "leaving" in text]
