"""unsubscribe() gives partitions back as a rebalance does: commits, tells the listener, leaves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import CoordinatorLoadInProgressError, GroupAuthorizationFailedError
from aiokafka_lite.events import CommitFailed, Revoked
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import next_event
from tests.support.listeners import Calls
from tests.support.other_member import throw_out
from tests.support.protocols import goodbyes, in_both_protocols
from tests.support.reading import committed, reading
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, eventually, until

T = TopicPartition("t", 0)
# Nothing is committed by the clock.
SETTINGS = {
    "auto_commit_interval_ms": 3_600_000,
    "heartbeat_interval_ms": 100,
    "fetch_max_wait_ms": 50,
    "rebalance_hold_ms": 500,
}


async def embedded(broker: Broker, count: int = 50) -> KafkaHandle:
    """A broker with records in a topic of one partition."""
    broker.create_topic("t")
    for number in range(count):
        broker.produce("t", b"%d" % number)
    return KafkaHandle("embedded", broker.bootstrap_servers)


async def read(consumer: AIOKafkaConsumer, count: int) -> list[int]:
    """The offsets of the next records."""
    return [(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).offset for _ in range(count)]


class Told(Calls):
    """Writes down also what is told of losses."""

    async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        self.calls.append(("lost", set(lost)))

    @property
    def of_partitions(self) -> list[str]:
        return [what for what, partitions in self.calls if partitions]

    def of(self, tp: TopicPartition) -> list[str]:
        return [what for what, partitions in self.calls if tp in partitions]


class Passing(ConsumerRebalanceListener):
    """Passes on what it is told; nobody but the consumer holds it."""

    def __init__(self, told: Told) -> None:
        self._told = told

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._told.on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._told.on_partitions_assigned(assigned)


# --- What was handed out is committed ------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("stops", ["at once", "later"])
async def test_all_that_was_handed_out_is_committed(kafka: KafkaHandle, stops: str) -> None:
    topic, group = await kafka.create_topic(), unique("g")
    await kafka.produce(topic, 0, rows(0, 50))
    async with reading(kafka, topic, group_id=group, **SETTINGS) as consumer:  # type: ignore[arg-type]
        assert await read(consumer, 50) == list(range(50))
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        if stops == "later":
            await eventually(lambda: committed(kafka, group, TopicPartition(topic, 0)), 50)
        assert await consumer.stop() == {}
    assert await committed(kafka, group, TopicPartition(topic, 0)) == 50


@pytest.mark.real_if_long
@pytest.mark.parametrize("stops", ["at once", "later"])
async def test_what_was_assigned_by_hand_as_well(kafka: KafkaHandle, stops: str) -> None:
    topic, group = await kafka.create_topic(), unique("g")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    async with reading(kafka, group_id=group, **SETTINGS) as consumer:  # type: ignore[arg-type]
        consumer.assign([tp])
        assert await read(consumer, 4) == [0, 1, 2, 3]
        consumer.unsubscribe()
        if stops == "later":
            consumer.assign([tp])
            assert await read(consumer, 1) == [4]
            consumer.unsubscribe()
            consumer.subscribe([topic])
            assert await read(consumer, 1) == [5]
            consumer.unsubscribe()
        assert await consumer.stop() == {}
    assert await committed(kafka, group, TopicPartition(topic, 0)) == (6 if stops == "later" else 4)


@pytest.mark.real_if_long
async def test_what_assign_drops_is_committed_with_the_latest_read(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("g")
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await kafka.produce(topic, 0, rows(0, 10))
    async with reading(kafka, group_id=group, **SETTINGS) as consumer:  # type: ignore[arg-type]
        consumer.assign([tp, other])
        assert await read(consumer, 4) == [0, 1, 2, 3]
        consumer.assign([other])
        await eventually(lambda: committed(kafka, group, tp), 4)
        consumer.assign([tp, other])
        assert await read(consumer, 1) == [4]


@pytest.mark.real_if_long
async def test_with_commits_by_hand_nothing_is_committed(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(), unique("g")
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    told = Told()
    async with reading(
        kafka,
        group_id=group,
        enable_auto_commit=False,
        **SETTINGS,  # type: ignore[arg-type]
    ) as consumer:
        consumer.subscribe([topic], listener=told)
        await read(consumer, 5)
        await consumer.commit({tp: 3})
        consumer.unsubscribe()
        await until(lambda: told.of_partitions == ["assigned", "revoked"])
        consumer.subscribe([topic])
        assert await read(consumer, 1) == [3]
        consumer.unsubscribe()
        assert await consumer.stop() == {}
    assert await committed(kafka, group, TopicPartition(topic, 0)) == 3


@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "after the leave"])
async def test_a_new_subscription_goes_on_where_the_old_one_ended(
    kafka: KafkaHandle, is_at_once: bool
) -> None:
    topic, other, group = await kafka.create_topic(), await kafka.create_topic(), unique("g")
    await kafka.produce(topic, 0, rows(0, 40))
    first, last = Told(), Told()
    async with reading(kafka, group_id=group, **SETTINGS) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic], listener=Passing(first))
        offsets = await read(consumer, 10)
        for topics in ([topic], [other, topic]):
            consumer.unsubscribe()
            if not is_at_once:
                await eventually(lambda: consumer.committed(TopicPartition(topic, 0)), len(offsets))
            consumer.subscribe(topics, listener=last)
            offsets += await read(consumer, 10)
        consumer.unsubscribe()
        assert await consumer.stop() == {}
    assert offsets == list(range(30))
    assert await committed(kafka, group, TopicPartition(topic, 0)) == 30
    assert first.of_partitions == ["assigned", "revoked"]
    # A coordinator may assign a topic that has just been created in a step of its own.
    assert last.of(TopicPartition(topic, 0)) == ["assigned", "revoked", "assigned", "revoked"]
    assert last.of(TopicPartition(other, 0)) == ["assigned", "revoked"]


# --- In order, as whom it was assigned to --------------------------------------------------
@in_both_protocols
async def test_the_commit_comes_before_the_listener_and_that_before_the_leave(
    protocol: str,
) -> None:
    async with Broker() as broker:
        kafka = await embedded(broker)

        class Looking(Told):
            async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
                if revoked:
                    seen.append(broker.committed("g"))
                    seen.append(goodbyes(broker))
                await super().on_partitions_revoked(revoked)

        seen: list[object] = []
        listener = Looking()
        settings = {**SETTINGS, "group_id": "g", "group_protocol": protocol}
        async with reading(kafka, **settings) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(["t"], listener=listener)
            await read(consumer, 50)
            broker.on("OffsetCommit").delay(0.1)
            generation = inside.generation(consumer)
            with consumer.events() as events:
                consumer.unsubscribe()
                revoked = await next_event(events)
            assert isinstance(revoked, Revoked)
            assert revoked.partitions == {T}
            await broker.wait_until(lambda: bool(goodbyes(broker)))
            assert seen == [{T: 50}, []]
            assert listener.of_partitions == ["assigned", "revoked"]
            (commit,) = broker.requests.of("OffsetCommit")
            assert isinstance(commit.request, OffsetCommitRequest)
            assert commit.request.generation_id_or_member_epoch == generation
            assert not commit.error_codes
            assert await consumer.stop() == {}


@pytest.mark.real_if_long
@pytest.mark.parametrize("when", ["revoked", "assigned"])
async def test_a_callback_may_unsubscribe(kafka: KafkaHandle, when: str) -> None:
    topic, group = await kafka.create_topic(), unique("g")
    await kafka.produce(topic, 0, rows(0, 10))

    class Leaving(Told):
        leaves_when = ""

        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            await super().on_partitions_revoked(revoked)
            if revoked and self.leaves_when == "revoked":
                consumer.unsubscribe()

        async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            await super().on_partitions_assigned(assigned)
            if self.leaves_when == "assigned":
                consumer.seek(TopicPartition(topic, 0), 7)
                consumer.unsubscribe()

    told = Leaving()
    # Each call of subscribe is a rebalance.
    settings = {**SETTINGS, "group_id": group, "group_protocol": "classic"}
    async with reading(kafka, **settings) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic], listener=told)
        assert await read(consumer, 5) == list(range(5))
        told.leaves_when = when
        consumer.subscribe([topic], listener=told)
        await until(lambda: told.leaves_when and consumer.subscription() == set())
        # In the first case the fifth is committed after all: it was handed out.
        expected = 5 if when == "revoked" else 7
        await eventually(lambda: committed(kafka, group, TopicPartition(topic, 0)), expected)
        assert await consumer.stop() == {}
    times = 1 if when == "revoked" else 2
    assert told.of_partitions == ["assigned", "revoked"] * times
    assert await committed(kafka, group, TopicPartition(topic, 0)) == expected


@pytest.mark.parametrize("held", ["JoinGroup", "SyncGroup"])
async def test_unsubscribing_in_the_middle_of_a_rebalance(held: str) -> None:
    async with Broker() as broker:
        kafka, told = await embedded(broker), Told()
        settings = {**SETTINGS, "group_id": "g", "group_protocol": "classic"}
        async with reading(kafka, **settings) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(["t"], listener=told)
            await read(consumer, 5)
            with broker.on(held).hold() as rule:
                consumer.subscribe(["t"], listener=told)
                await rule.reached()
                consumer.unsubscribe()
                if held == "JoinGroup":  # it is of the old generation still, and of no new one
                    await until(lambda: broker.committed("g") == {T: 5})
            # With a new generation the fifth may be somebody else's, until that is assigned.
            await broker.requests.wait_for("LeaveGroup")
            assert told.of_partitions == ["assigned", "revoked"]
            assert await consumer.stop() == {}
        assert broker.committed("g") == {T: 5}


@pytest.mark.real_if_long
async def test_the_listener_hears_of_it_before_a_stop_that_comes_at_once(
    kafka: KafkaHandle,
) -> None:
    topic, told = await kafka.create_topic(), Told()
    async with reading(kafka, group_id=unique("g"), **SETTINGS) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic], listener=told)
        await until(lambda: told.of_partitions)
        consumer.unsubscribe()
    assert told.of_partitions == ["assigned", "revoked"]


# --- The coordinator does not take it ------------------------------------------------------
async def test_a_stop_says_what_a_silent_coordinator_did_not_take() -> None:
    async with Broker() as broker:
        kafka, loop = await embedded(broker), asyncio.get_running_loop()
        async with reading(kafka, "t", group_id="g", **SETTINGS) as consumer:  # type: ignore[arg-type]
            await read(consumer, 50)
            broker.on("OffsetCommit").silence(times=None)
            consumer.unsubscribe()
            began = loop.time()
            assert await consumer.stop(timeout=0.4) == {T: OffsetAndMetadata(50, "")}
            assert loop.time() - began < 0.8


@in_both_protocols
async def test_a_coordinator_that_loads_does_not_keep_the_member_from_leaving(
    protocol: str,
) -> None:
    async with Broker() as broker:
        kafka, told = await embedded(broker), Told()
        async with reading(
            kafka,
            group_id="g",
            group_protocol=protocol,
            rebalance_timeout_ms=400,
            **SETTINGS,  # type: ignore[arg-type]
        ) as consumer:
            consumer.subscribe(["t"], listener=told)
            await read(consumer, 50)
            refusal = broker.on("OffsetCommit").fail(CoordinatorLoadInProgressError, times=None)
            with consumer.events() as events:
                consumer.unsubscribe()
                await broker.wait_until(lambda: bool(goodbyes(broker)))
                assert told.of_partitions == ["assigned", "revoked"]
                refusal.remove()
                # What was not committed is an event, and is handed out again.
                consumer.subscribe(["t"], listener=told)
                assert await read(consumer, 1) == [0]
                while not isinstance(failed := await next_event(events), CommitFailed):
                    pass
            assert failed.offsets == {T: OffsetAndMetadata(50, "")}
            assert await consumer.stop() == {}


@in_both_protocols
async def test_a_later_stop_says_what_was_refused(protocol: str) -> None:
    async with Broker() as broker:
        kafka = await embedded(broker)
        settings = {**SETTINGS, "group_id": "g", "group_protocol": protocol}
        async with reading(kafka, "t", **settings) as consumer:  # type: ignore[arg-type]
            await read(consumer, 50)
            broker.on("OffsetCommit").fail(GroupAuthorizationFailedError)
            consumer.unsubscribe()
            await broker.wait_until(lambda: bool(goodbyes(broker)))
            assert await consumer.stop() == {T: OffsetAndMetadata(50, "")}


@pytest.mark.parametrize("is_assigned", [False, True])
async def test_a_stop_while_the_group_is_told_of_the_leave_commits_and_tells_it_again(
    is_assigned: bool,
) -> None:
    async with Broker() as broker:
        kafka = await embedded(broker)
        settings = {**SETTINGS, "group_id": "g", "group_protocol": "consumer"}
        async with reading(kafka, "t", **settings) as consumer:  # type: ignore[arg-type]
            await read(consumer, 40)
            broker.on("OffsetCommit").fail(GroupAuthorizationFailedError)
            goodbye = broker.on(
                "ConsumerGroupHeartbeat",
                when=lambda _, request: request.member_epoch < 0,  # type: ignore[attr-defined]
            ).disconnect()
            broker.on("FindCoordinator").delay(0.2)
            consumer.unsubscribe()
            await broker.wait_until(lambda: bool(goodbye.hits))
            if is_assigned:
                consumer.assign([T])
                consumer.seek(T, 45)
                with contextlib.suppress(GroupAuthorizationFailedError):
                    await read(consumer, 1)
                assert await read(consumer, 2) == [45, 46]
            left = {} if is_assigned else {T: OffsetAndMetadata(40, "")}
            assert await consumer.stop() == left
            assert len(goodbyes(broker)) == 2
        assert broker.committed("g") == ({T: 47} if is_assigned else {})


@pytest.mark.real_if_long
async def test_partitions_that_were_lost_are_not_committed(kafka: KafkaHandle) -> None:
    topic, group, told = await kafka.create_topic(), unique("g"), Told()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 10))
    # Too late to find out; LeaveGroup throws members of the classic protocol out.
    settings = {**SETTINGS, "group_protocol": "classic", "heartbeat_interval_ms": 3_000}
    async with reading(kafka, group_id=group, **settings) as consumer:  # type: ignore[arg-type]
        consumer.subscribe([topic], listener=told)
        await read(consumer, 5)
        await throw_out(kafka, group, inside.member_id(consumer))
        consumer.unsubscribe()
        await until(lambda: len(told.of_partitions) == 2)
        assert await consumer.stop() == {tp: OffsetAndMetadata(5, "")}
    assert told.of_partitions == ["assigned", "lost"]
    assert await committed(kafka, group, TopicPartition(topic, 0)) is None


@in_both_protocols
async def test_a_commit_that_waits_for_another_one_leaves_its_offsets_to_auto_commit(
    protocol: str,
) -> None:
    async with Broker() as broker:
        kafka = await embedded(broker)
        settings = {**SETTINGS, "group_id": "g", "group_protocol": protocol}
        async with reading(kafka, "t", **settings) as consumer:  # type: ignore[arg-type]
            await read(consumer, 3)
            broker.on("OffsetCommit").delay(0.5, times=1)
            first = asyncio.ensure_future(consumer.commit({T: 1}))
            await asyncio.sleep(0.1)
            second = asyncio.ensure_future(consumer.commit())
            await asyncio.sleep(0)
            consumer.unsubscribe()
            await asyncio.gather(first, second)
            await eventually(lambda: committed(kafka, "g", T), 3)
