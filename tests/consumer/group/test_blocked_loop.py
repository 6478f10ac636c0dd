"""An event loop that is really blocked: the group goes on, and the member is the last to know."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import CommitFailedError
from aiokafka_lite.events import LoopBlocked, Lost
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import events_so_far
from tests.support.listeners import Losing, beat_count, listening
from tests.support.pair import Pair, two_members
from tests.support.rows import rows, tps
from tests.support.waiting import PATIENCE_S, until

RECORD_COUNT: Final = 200
# The first heartbeat after a rebalance comes too late to tell anything.
SLOW_BEATS: Final = {"session_timeout_ms": 1000, "heartbeat_interval_ms": 330}


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """An embedded broker that goes on while the test's loop is blocked."""
    with BrokerThread(BrokerConfig(group_min_session_timeout_ms=100)) as broker:
        yield broker


@pytest.fixture
def threaded(broker: BrokerThread) -> KafkaHandle:
    """Where to reach it."""
    return KafkaHandle("embedded", broker.bootstrap_servers)


class Peer:
    """Another member, on a thread and a loop of its own, that commits all it is handed."""

    def __init__(self, kafka: KafkaHandle, topic: str, group_id: str, session_timeout_s: float):
        self._kafka = kafka
        self._topic = topic
        self._group_id = group_id
        self._session_timeout_ms = int(session_timeout_s * 1000)
        self._is_stopping = False
        self.partitions: set[TopicPartition] = set()
        self.committed: dict[TopicPartition, int] = {}

    def run(self) -> None:
        asyncio.run(self._work())

    def stop(self) -> None:
        self._is_stopping = True

    async def _work(self) -> None:
        async with AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._kafka.bootstrap_servers,
            group_id=self._group_id,
            group_protocol="classic",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=self._session_timeout_ms // 5,
        ) as consumer:
            while not self._is_stopping:
                self.partitions = consumer.assignment()
                if await consumer.getmany(timeout_ms=20):
                    try:
                        await consumer.commit()
                    except CommitFailedError:
                        continue
                    for tp in consumer.assignment():
                        self.committed[tp] = await consumer.position(tp)


@contextmanager
def beside(peer: Peer) -> Iterator[Peer]:
    """Have a peer run meanwhile."""
    thread = threading.Thread(target=peer.run, daemon=True)
    thread.start()
    try:
        yield peer
    finally:
        peer.stop()
        thread.join(PATIENCE_S)


def block_until(condition: Callable[[], object]) -> None:
    """Block this thread, and its event loop, until a condition holds that others bring about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def by_async_for(consumer: AIOKafkaConsumer) -> AsyncIterator[TopicPartition]:
    async for record in consumer:
        yield TopicPartition(record.topic, record.partition)


async def by_getone(consumer: AIOKafkaConsumer) -> AsyncIterator[TopicPartition]:
    while True:
        record = await consumer.getone()
        yield TopicPartition(record.topic, record.partition)


async def by_poll(consumer: AIOKafkaConsumer) -> AsyncIterator[TopicPartition]:
    while True:
        for tp in await consumer.poll(max_records=1):
            yield tp


WAYS = {"async for": by_async_for, "getone": by_getone, "poll": by_poll}


async def check_a_block_that_costs_the_membership(
    kafka: KafkaHandle,
    session_s: float,
    blocked_s: float,
    way: str,
    caplog: pytest.LogCaptureFixture,
    *,
    quick_count: int = 0,
    begin: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Block at a record for so long, until the peer has all, and look what comes then.

    Args:
        kafka: Goes on meanwhile.
        session_s: The session timeout.
        blocked_s: For how long at least.
        way: How the application gets its records.
        caplog: Of the test.
        quick_count: How many records are worked on quickly before that one.
        begin: Awaited before the record that it blocks at.
    """
    topic, group_id = await kafka.create_topic(partitions=2), unique("g")
    for partition in range(2):
        await kafka.produce(topic, partition, rows(0, RECORD_COUNT))
    both = tps(topic, 0, 1)
    session_ms = int(session_s * 1000)
    settings = {
        "group_id": group_id,
        "session_timeout_ms": session_ms,
        "heartbeat_interval_ms": session_ms // 5,
        "enable_auto_commit": False,
    }
    async with listening(kafka, topic, listener := Losing(), **settings) as consumer:
        events = consumer.events()
        assert consumer.assignment() == both
        peer = Peer(kafka, topic, group_id, session_s)
        handed_out = WAYS[way](consumer)
        for _ in range(quick_count):
            await anext(handed_out)
        if begin is not None:
            await begin()
        tp = await anext(handed_out)
        caplog.clear()
        with beside(peer):
            began_at = time.monotonic()
            time.sleep(blocked_s)  # noqa: ASYNC251 -- blocking the loop is what is tested
            block_until(lambda: peer.committed == dict.fromkeys(both, RECORD_COUNT))
            took_s = time.monotonic() - began_at

            # What is buffered is the peer's, and has been worked on.
            getting = asyncio.ensure_future(anext(handed_out))
            with pytest.raises(CommitFailedError):
                await consumer.commit({tp: 1})
            await until(lambda: [call for call, _ in listener.calls[2:4]] == ["lost", "assigned"])
            assert not getting.done()
            await kafka.produce(topic, 0, rows(0, 1))
            await kafka.produce(topic, 1, rows(0, 1))
            mine = await asyncio.wait_for(getting, PATIENCE_S)
            assert listener.calls[2] == ("lost", both)
            assert mine in listener.calls[-1][1]
            assert await consumer.position(mine) > RECORD_COUNT
            assert (await consumer.committed(tp) or 0) >= RECORD_COUNT

    blocks = []
    lost = []
    for event in events_so_far(events):
        blocks += [event] if isinstance(event, LoopBlocked) and event.blocked_s > 0.3 else []
        lost += [event] if isinstance(event, Lost) else []
    assert [event.partitions for event in lost] == [both]
    assert "the event loop was blocked for" in lost[0].reason
    (block,) = blocks
    assert took_s - 0.5 < block.blocked_s <= took_s + 0.5
    assert f"records of {topic}/{tp.partition}" in block.blocker
    warned = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    # A lost heartbeat: three more, of it, of the connection, and that it is back.
    assert len(warned) == (2 if begin is None else 5), warned
    assert "the event loop was blocked" in warned[0] + warned[1]
    assert sum(" lost partitions [" in line for line in warned) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_buffered_of_lost_partitions_is_not_handed_out_after_a_block(
    threaded: KafkaHandle, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    await check_a_block_that_costs_the_membership(threaded, 0.6, 0.9, way, caplog)


async def test_run_begins_no_handler_after_a_block_that_costs_the_membership(
    threaded: KafkaHandle,
) -> None:
    topic, group_id = await threaded.create_topic(), unique("g")
    await threaded.produce(topic, 0, rows(0, RECORD_COUNT))
    begun: list[int] = []
    may_end = asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        begun.append(record.offset)
        await may_end.wait()

    settings = {"group_id": group_id, "session_timeout_ms": 600, "heartbeat_interval_ms": 120}
    async with listening(threaded, topic, listener := Losing(), **settings) as consumer:
        running = asyncio.ensure_future(consumer.run(handle, concurrency=1))
        await until(lambda: begun)
        with beside(peer := Peer(threaded, topic, group_id, 0.6)):
            may_end.set()  # the handler ends right after the block, before any timer
            time.sleep(0.9)  # noqa: ASYNC251 -- blocking the loop is what is tested
            block_until(lambda: peer.committed == {TopicPartition(topic, 0): RECORD_COUNT})
            await until(lambda: any(call == "lost" for call, _ in listener.calls))
            assert begun == [0]
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running


@pytest.mark.parametrize("way", ["async for", "getone"])
async def test_what_is_buffered_is_not_handed_out_after_a_block_amid_quick_records(
    threaded: KafkaHandle, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    await check_a_block_that_costs_the_membership(
        threaded, 0.6, 0.9, way, caplog, quick_count=RECORD_COUNT // 2
    )


async def test_what_is_buffered_is_not_handed_out_after_a_block_whose_heartbeat_got_lost(
    broker: BrokerThread, threaded: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose_a_heartbeat() -> None:
        rule = broker.on("Heartbeat").silence(1)
        await until(lambda: rule.hits)

    await check_a_block_that_costs_the_membership(
        threaded, 0.6, 0.9, "async for", caplog, begin=lose_a_heartbeat
    )


async def test_an_assignment_that_came_while_the_loop_was_blocked_is_not_handed_out(
    threaded: KafkaHandle,
) -> None:
    """The coordinator has answered SyncGroup, and dropped the member, before it runs again."""
    async with two_members(threaded, **SLOW_BEATS) as pair:
        await pair.read(20)
        pair.other.begin_join()
        await pair.other.joined()
        await pair.until_it_is("SYNCING")
        pair.other.share_out([], [0])
        pair.take_over(510)  # once the consumer's session is over

        await check_that_it_is_held_until_it_comes_back(pair)


def lose_it_to_the_other(pair: Pair, broker: BrokerThread) -> None:
    """Block the loop beyond the session, and have the next heartbeat come too late to tell."""
    pair.take_over(510)
    broker.on("Heartbeat").silence(1)


class Blocking(ConsumerRebalanceListener):
    """Blocks the loop at its second assignment, or at another one."""

    def __init__(self, pair: Pair, broker: BrokerThread, *, at: int = 2) -> None:
        self._pair = pair
        self._broker = broker
        self._at = at
        self.assigned_count = 0

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.assigned_count += 1
        if self.assigned_count == self._at:
            lose_it_to_the_other(self._pair, self._broker)

    async def listen(self) -> None:
        """Listen to the consumer from its next assignment on, and wait for that."""
        self._pair.consumer.subscribe([self._pair.tp.topic], listener=self)
        await until(lambda: self.assigned_count == 1)


async def test_an_assignment_whose_listener_blocks_the_loop_is_not_handed_out(
    broker: BrokerThread, threaded: KafkaHandle
) -> None:
    """It blocks at once: no heartbeat has been sent since the rebalance."""
    async with two_members(threaded, **SLOW_BEATS) as pair:
        await (listener := Blocking(pair, broker)).listen()
        await pair.other.rebalance([], [0])
        await until(lambda: listener.assigned_count == 2)

        await check_that_it_is_held_until_it_comes_back(pair)


async def test_a_session_that_began_while_the_loop_was_blocked_counts_from_there(
    broker: BrokerThread, threaded: KafkaHandle
) -> None:
    """Two blocks, each shorter than a session, while JoinGroup waits and after it."""
    async with two_members(threaded, **SLOW_BEATS) as pair:
        await (listener := Blocking(pair, broker)).listen()
        pair.consumer.subscribe([pair.tp.topic, pair.more], listener=listener)
        await pair.other.until(pair.other.is_called_to_rejoin)
        pair.other.begin_join()
        pair.other.end_join()
        pair.other.share_out([], [0])
        time.sleep(0.6)  # noqa: ASYNC251 -- blocking the loop is what is tested
        await until(lambda: listener.assigned_count == 2)

        await check_that_it_is_held_until_it_comes_back(pair)


async def test_to_join_again_with_nothing_new_begins_no_new_session(
    broker: BrokerThread, threaded: KafkaHandle
) -> None:
    async with two_members(threaded, **SLOW_BEATS, enable_auto_commit=False) as pair:
        await asyncio.sleep(0.25)  # the loop is the system's: so much of the session is over
        generation = pair.other.generation
        await Blocking(pair, broker, at=1).listen()

        assert inside.generation(pair.consumer) == generation
        await check_that_it_is_held_until_it_comes_back(pair)


async def test_an_assignment_is_not_handed_out_after_a_block_before_the_first_heartbeat(
    broker: BrokerThread, threaded: KafkaHandle
) -> None:
    """The task that sends heartbeats has not had a single turn yet."""
    async with two_members(threaded, **SLOW_BEATS) as pair:

        async def block_at_once() -> None:
            while pair.consumer.health().verdict != "ok":  # noqa: ASYNC110 -- for its very first turn
                await asyncio.sleep(0)
            lose_it_to_the_other(pair, broker)

        pair.other.begin_join()
        await pair.other.joined()
        await pair.until_it_is("SYNCING")
        blocking = asyncio.ensure_future(block_at_once())
        pair.other.share_out([], [0])
        await blocking

        await check_that_it_is_held_until_it_comes_back(pair)


async def check_that_it_is_held_until_it_comes_back(pair: Pair) -> None:
    """Nothing is handed out until the other member, which took over, has given it back at 510."""
    assert await pair.consumer.getmany(timeout_ms=250) == {}
    await pair.other.until(pair.other.is_called_to_rejoin)
    await pair.move(to_other=False)
    assert (await pair.consumer.getone()).offset == 510


async def test_a_block_of_a_session_timeout_costs_the_membership(
    threaded: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    await check_a_block_that_costs_the_membership(threaded, 0.6, 0.6, "async for", caplog)


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [1.0, 1.5])
@pytest.mark.parametrize("way", WAYS)
async def test_a_block_costs_the_membership_on_kafka(
    real_kafka: str, way: str, sessions: float, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = KafkaHandle("real", real_kafka)
    await check_a_block_that_costs_the_membership(kafka, 6.0, 6.0 * sessions, way, caplog)


async def test_a_block_shorter_than_the_session_costs_nothing(threaded: KafkaHandle) -> None:
    await check_a_block_that_costs_nothing(threaded, 2.0)


@pytest.mark.slow
async def test_a_block_shorter_than_the_session_costs_nothing_on_kafka(real_kafka: str) -> None:
    await check_a_block_that_costs_nothing(KafkaHandle("real", real_kafka), 6.0)


async def check_a_block_that_costs_nothing(kafka: KafkaHandle, session_s: float) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, RECORD_COUNT))
    session_ms = int(session_s * 1000)
    settings = {"session_timeout_ms": session_ms, "heartbeat_interval_ms": session_ms // 5}
    async with listening(kafka, topic, listener := Losing(), **settings) as consumer:
        generation = inside.generation(consumer)
        offsets = []
        async for record in consumer:
            offsets.append(record.offset)
            if record.offset == RECORD_COUNT // 2:
                time.sleep(session_s / 2)  # noqa: ASYNC251 -- what is tested
                await consumer.commit({TopicPartition(topic, 0): record.offset})
            if record.offset == RECORD_COUNT - 1:
                break
        counted = beat_count(consumer)
        await until(lambda: beat_count(consumer) >= counted + 2)
        assert offsets == list(range(RECORD_COUNT))
        assert inside.generation(consumer) == generation
        assert [call for call, _ in listener.calls] == ["revoked", "assigned"]
