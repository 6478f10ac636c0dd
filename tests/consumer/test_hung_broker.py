"""A broker that hangs keeps nobody else's partitions from having a position."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import KafkaTimeoutError, LeaderNotAvailableError
from aiokafka_lite.protocol.messages.offsets import ListOffsetsRequest
from aiokafka_lite.structs import TopicPartition
from tests.support import inside

NODES = HUNG, SECOND, THIRD = 1, 2, 3
# By the node that leads it.
LED_BY = {node: TopicPartition("t", node - 1) for node in NODES}
STUCK = LED_BY[HUNG]
HEALTHY = [LED_BY[SECOND], LED_BY[THIRD]]
COUNT = 5
# Below the shortest that a question to the broker that hangs may take.
SOON_S = 2.0
REQUEST_TIMEOUT_MS = 20_000


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Three nodes; each leads the partitions of "t" and of "more" that have its place."""
    async with Broker(nodes=3) as broker:
        for topic in ("t", "more"):
            broker.create_topic(topic, 3)
            for node in NODES:
                broker.move_leader(TopicPartition(topic, node - 1), node)
                for number in range(COUNT):
                    broker.produce(topic, b"%d" % number, partition=node - 1)
        yield broker
    assert broker.failure is None


@asynccontextmanager
async def consuming(broker: Broker, **settings: object) -> AsyncIterator[AIOKafkaConsumer]:
    arguments: dict[str, object] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "retry_backoff_ms": 20,
        "fetch_max_wait_ms": 50,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "session_timeout_ms": 6_000,
        "metadata_max_age_ms": 100,
        **settings,
    }
    consumer = AIOKafkaConsumer(**arguments)  # type: ignore[arg-type]
    async with consumer:
        # Connected to all of them: metadata are asked of one that does not hang.
        await consumer.end_offsets(LED_BY.values())
        broker.requests.clear()
        yield consumer


async def soon(consumer: AIOKafkaConsumer, *wanted: TopicPartition) -> list[int]:
    async with _compat.timeout(SOON_S):
        return [await consumer.position(tp) for tp in wanted]


async def test_partitions_of_the_other_brokers_have_their_positions_at_once(
    broker: Broker,
) -> None:
    async with consuming(broker, auto_offset_reset="latest") as consumer:
        with broker.on("ListOffsets", node=HUNG).hold():
            consumer.assign(LED_BY.values())
            assert await soon(consumer, *HEALTHY) == [COUNT] * 2


async def test_a_broker_that_answers_nothing_at_all_holds_up_only_its_own(broker: Broker) -> None:
    async with consuming(broker, metadata_max_age_ms=300_000) as consumer:
        consumer.assign(LED_BY.values())
        await soon(consumer, *LED_BY.values())
        with broker.on(node=HUNG).hold():
            assert await asyncio.wait_for(consumer.seek_to_end(*HEALTHY), SOON_S)
            seeking = asyncio.ensure_future(consumer.seek_to_end(STUCK))
            await asyncio.sleep(0)
            for tp in HEALTHY:
                consumer.seek(tp, 0)
            assert await asyncio.wait_for(consumer.seek_to_end(*HEALTHY), SOON_S)
            assert await soon(consumer, *HEALTHY) == [COUNT] * 2
            assert not seeking.done()
        assert await asyncio.wait_for(seeking, SOON_S)


async def test_partitions_that_come_while_a_broker_hangs_are_asked_about_at_once(
    broker: Broker,
) -> None:
    more = [TopicPartition("more", node - 1) for node in NODES]
    async with consuming(broker) as consumer:
        with broker.on("ListOffsets", node=HUNG).hold() as hanging:
            consumer.assign([STUCK])
            await hanging.reached()
            consumer.incremental_assign([*HEALTHY, *more])
            assert await soon(consumer, *HEALTHY, *more[1:]) == [0] * 4
            # What came meanwhile waits for the question that is pending: nothing else is asked.
            assert len(broker.requests.of("ListOffsets", node=HUNG)) == 1
        assert await soon(consumer, STUCK, more[0]) == [0] * 2


async def test_a_coordinator_that_hangs_keeps_no_leader_from_being_asked(broker: Broker) -> None:
    async with consuming(broker, group_id="g") as consumer:
        with broker.on("OffsetFetch").hold() as hanging:
            consumer.assign(LED_BY.values())
            await hanging.reached()
            coordinator = broker.requests.of("OffsetFetch")[0].node_id
            others = [tp for node, tp in LED_BY.items() if node != coordinator]
            assert await asyncio.wait_for(consumer.seek_to_end(*others), SOON_S)
            assert await soon(consumer, *others) == [COUNT] * 2
        assert await soon(consumer, LED_BY[coordinator]) == [0]


async def test_positions_led_by_others_are_checked_while_a_broker_hangs(broker: Broker) -> None:
    """After an election each position is compared with the log of the new leader (KIP-320)."""
    async with consuming(broker) as consumer:
        consumer.assign(LED_BY.values())
        await read(consumer, dict.fromkeys(LED_BY.values(), COUNT))
        with broker.on("OffsetForLeaderEpoch", node=HUNG).hold() as hanging:
            broker.move_leader(LED_BY[SECOND], HUNG)
            broker.move_leader(LED_BY[THIRD], SECOND)
            broker.move_leader(LED_BY[HUNG], THIRD)
            await hanging.reached()
            for tp in (LED_BY[HUNG], LED_BY[THIRD]):
                broker.produce("t", b"behind", partition=tp.partition)
            async with _compat.timeout(SOON_S):
                await read(consumer, {LED_BY[HUNG]: 1, LED_BY[THIRD]: 1})
            assert not await consumer.getmany(LED_BY[SECOND])
        broker.produce("t", b"behind", partition=LED_BY[SECOND].partition)
        async with _compat.timeout(SOON_S):
            await read(consumer, {LED_BY[SECOND]: 1})


async def read(consumer: AIOKafkaConsumer, wanted: dict[TopicPartition, int]) -> None:
    """Read so many records of each partition, and nothing else."""
    missing = dict(wanted)
    while missing:
        for tp, records in (await consumer.poll(timeout_ms=1_000)).items():
            missing[tp] -= len(records)
            assert missing[tp] >= 0
            if not missing[tp]:
                del missing[tp]


async def test_a_partition_that_another_broker_leads_by_now_is_asked_about_there(
    broker: Broker,
) -> None:
    async with consuming(broker, auto_offset_reset="latest") as consumer:
        with broker.on("ListOffsets", node=HUNG).hold() as hanging:
            consumer.assign([STUCK])
            await hanging.reached()
            broker.move_leader(STUCK, SECOND)
            assert await soon(consumer, STUCK) == [COUNT]
            broker.produce("t", b"later", partition=STUCK.partition)
        # The old leader answers at last; the position stays, and nothing is passed over.
        async with _compat.timeout(SOON_S):
            assert (await consumer.getone()).offset == COUNT


@pytest.mark.virtual_time
@pytest.mark.parametrize("question", ["seek_to_end", "end_offsets"])
async def test_a_partition_whose_leader_hangs_is_asked_about_at_the_next_one(
    broker: Broker, question: str
) -> None:
    """Nobody tells that another node leads, and no fetch is overdue: it has to be asked."""
    async with consuming(broker, metadata_max_age_ms=300_000) as consumer:
        consumer.assign([STUCK])
        consumer.pause(STUCK)  # before a fetch is sent, which would be overdue as well
        await soon(consumer, STUCK)
        with broker.on(node=HUNG).hold():
            asking: Awaitable[object] = (
                consumer.seek_to_end(STUCK)
                if question == "seek_to_end"
                else consumer.end_offsets([STUCK])
            )
            answer = asyncio.ensure_future(asking)
            await asyncio.sleep(1.5)  # others were asked once, and had nothing to tell
            assert not answer.done()
            assert inside.cluster(consumer).pool.suspects == {HUNG}
            broker.move_leader(STUCK, SECOND)
            assert await asyncio.wait_for(answer, 5) == (
                True if question == "seek_to_end" else {STUCK: COUNT}
            )
        # The old one answers as well by now. What is asked of it next is asked in vain no more.
        broker.move_leader(STUCK, HUNG)
        assert await asyncio.wait_for(consumer.end_offsets([STUCK]), 5) == {STUCK: COUNT}
        assert not inside.cluster(consumer).pool.suspects


async def test_an_answer_that_comes_after_a_seek_moves_nothing(broker: Broker) -> None:
    async with consuming(broker) as consumer:
        with broker.on("ListOffsets", node=HUNG).hold() as hanging:
            consumer.assign([STUCK])
            await hanging.reached()
            consumer.seek(STUCK, 3)
        async with _compat.timeout(SOON_S):
            assert [(await consumer.getone()).offset for _ in range(2)] == [3, 4]


@pytest.mark.virtual_time
async def test_a_partition_that_cannot_be_looked_up_is_asked_about_less_and_less_often(
    broker: Broker,
) -> None:
    failing, other = HEALTHY
    async with consuming(broker, metadata_max_age_ms=300_000) as consumer:
        broker.on("ListOffsets", partition=failing.partition).fail(
            LeaderNotAvailableError, times=None
        )
        consumer.assign(HEALTHY)
        assert await soon(consumer, other) == [0]
        seen = await broker.requests.wait_for("ListOffsets", node=SECOND, count=5)
        asked = [request.arrived_at for request in seen[:5]]
        first, second, third, fourth = (b - a for a, b in pairwise(asked))
        assert first < second < third < fourth
        assert fourth > 4 * first
        assert len(broker.requests.of("ListOffsets", node=THIRD)) == 1


# --- Questions of the application ----------------------------------------------------------
@pytest.mark.parametrize("question", ["end_offsets", "beginning_offsets", "offsets_for_times"])
async def test_a_question_that_is_not_answered_in_time_names_who_is_missing(
    broker: Broker, question: str
) -> None:
    partitions = list(LED_BY.values())
    async with consuming(broker, request_timeout_ms=500) as consumer:
        with broker.on("ListOffsets", node=HUNG).hold():
            ask = getattr(consumer, question)
            times = question == "offsets_for_times"
            with pytest.raises(KafkaTimeoutError) as caught:
                await ask(dict.fromkeys(partitions, 0) if times else partitions)
    assert f"t/{STUCK.partition}" in str(caught.value)
    assert not any(f"t/{tp.partition}" in str(caught.value) for tp in HEALTHY)
    assert f"node {HUNG}" in str(caught.value)


async def test_a_question_follows_a_partition_to_its_new_leader(broker: Broker) -> None:
    async with consuming(broker) as consumer:
        with broker.on("ListOffsets", node=HUNG).hold() as hanging:
            asking = asyncio.ensure_future(consumer.end_offsets(LED_BY.values()))
            await hanging.reached()
            broker.move_leader(STUCK, SECOND)
            found = await asyncio.wait_for(asking, SOON_S)
    assert found == dict.fromkeys(LED_BY.values(), COUNT)


async def test_a_question_that_is_cancelled_asks_nothing_more(broker: Broker) -> None:
    async with consuming(broker) as consumer:
        with broker.on("ListOffsets", node=SECOND).fail(LeaderNotAvailableError, times=None):
            asking = asyncio.ensure_future(consumer.end_offsets(HEALTHY))
            await broker.requests.wait_for(ListOffsetsRequest, node=SECOND, count=2)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            asked = len(broker.requests.of("ListOffsets"))
            await asyncio.sleep(0.2)
            assert len(broker.requests.of("ListOffsets")) == asked
