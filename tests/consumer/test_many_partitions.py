"""A broker of which very many partitions are read: several sources share them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

import pytest
import pytest_asyncio

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.consumer.fetching.sources import FETCH_LANES, TOGETHER
from aiokafka_lite.consumer.fetching.sources import FEWEST_PARTITIONS as FULL_SHARE
from aiokafka_lite.errors import KafkaConnectionError
from tests.support import inside, tuning
from tests.support.buffers import batch
from tests.support.scripted_sources import Fetching, ScriptedCluster, Sent, answer, view

Start = Callable[..., Fetching]


@pytest.fixture(autouse=True)
def many_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.share_out_at_once(monkeypatch)


@pytest_asyncio.fixture
async def start() -> AsyncIterator[Start]:
    running: list[Fetching] = []

    def start(count: int, nodes: int = 1, **settings: object) -> Fetching:
        leaders = {number: 1 + number % nodes for number in range(count)}
        fetching = Fetching(ScriptedCluster(view(leaders)), **settings)
        running.append(fetching)
        fetching.assign(*leaders)
        return fetching

    yield start
    for fetching in running:
        await fetching.close()


async def all_sent(fetching: Fetching, count: int) -> list[Sent]:
    """So many requests, and there are no more."""
    sent = [await fetching.cluster.next_sent() for _ in range(count)]
    assert await fetching.cluster.sends_nothing()
    return sent


async def test_a_full_share_is_read_by_one_session(start: Start) -> None:
    (sent,) = await all_sent(start(FULL_SHARE), 1)
    assert sent.lane is Lane.FETCH
    assert len(sent.offsets) == FULL_SHARE


async def test_what_is_more_than_a_share_has_a_session_and_a_connection_of_its_own(
    start: Start,
) -> None:
    first, second = await all_sent(start(FULL_SHARE + 1), 2)
    assert len(first.offsets) == FULL_SHARE
    assert list(second.offsets) == [FULL_SHARE]
    assert first.lane is not second.lane


async def test_a_broker_has_no_more_sessions_than_lanes_and_they_share_the_rest(
    start: Start,
) -> None:
    most = len(FETCH_LANES)
    sent = await all_sent(start(most * FULL_SHARE + most * TOGETHER + 1), most)
    assert {s.lane for s in sent} == set(FETCH_LANES)
    sizes = sorted(len(s.offsets) for s in sent)
    assert sizes == [FULL_SHARE + TOGETHER] * (most - 1) + [FULL_SHARE + TOGETHER + 1]
    # Neighbours stay together.
    first = next(s for s in sent if s.lane is Lane.FETCH)
    beyond = most * FULL_SHARE
    assert set(range(beyond, beyond + TOGETHER)) <= set(first.offsets)


async def test_a_small_budget_is_not_cut_into_parts_below_what_a_partition_may_bring(
    start: Start,
) -> None:
    settings = {"max_partition_fetch_bytes": 1_000, "max_buffered_bytes": 5_999}
    sent = await all_sent(start(4 * FULL_SHARE, **settings), 2)
    assert {s.request.max_bytes for s in sent} == {5_999 // 4}


async def test_an_answer_that_nobody_has_come_for_holds_up_its_own_session_only(
    start: Start,
) -> None:
    fetching = start(FULL_SHARE + 1)
    first, second = await all_sent(fetching, 2)
    first.answer(answer(0, batch(0, 2)), session_id=5)
    assert await fetching.cluster.sends_nothing()
    second.answer(session_id=6)
    (second,) = await all_sent(fetching, 1)
    second.answer(answer(FULL_SHARE, batch(0, 3)), session_id=6)
    assert await fetching.cluster.sends_nothing()
    assert await fetching.poll() == {0: [0, 1], FULL_SHARE: [0, 1, 2]}
    again = {s.session: s.offsets for s in await all_sent(fetching, 2)}
    assert again == {(5, 1): {0: 2}, (6, 2): {FULL_SHARE: 3}}


async def test_a_session_whose_partitions_are_gone_ends_and_its_lane_is_used_again(
    start: Start,
) -> None:
    fetching = start(FULL_SHARE + 1)
    _, second = await all_sent(fetching, 2)
    last = TopicPartition("t", FULL_SHARE)
    fetching.state.change([last], ())
    second.answer(session_id=6)
    assert await fetching.cluster.sends_nothing()
    assert [r.session_id for _, r in fetching.cluster.pool.sent_in_passing] == [6]  # type: ignore[attr-defined]
    assert fetching.cluster.pool.lanes_in_passing == [second.lane]
    assert len(fetching.scope.task_names) == 1
    assert fetching.budget.source_count == 1
    fetching.state.change((), [last])
    fetching.seek(FULL_SHARE, 4)
    (sent,) = await all_sent(fetching, 1)
    assert (sent.lane, sent.offsets) == (second.lane, {FULL_SHARE: 4})


async def test_a_partition_that_is_added_goes_where_there_is_room(start: Start) -> None:
    fetching = start(FULL_SHARE + 1)
    first, second = await all_sent(fetching, 2)
    gone = TopicPartition("t", 7)
    fetching.state.change([gone], ())
    fetching.state.change((), [gone])
    fetching.seek(7, 9)
    second.answer(session_id=6)
    assert (await fetching.cluster.next_sent()).offsets == {}
    first.answer(session_id=5)
    assert (await fetching.cluster.next_sent()).offsets == {7: 9}


async def test_each_of_two_brokers_has_its_own_sessions(start: Start) -> None:
    sent = await all_sent(start(2 * FULL_SHARE + 2, nodes=2), 4)
    assert sorted((s.node_id, len(s.offsets)) for s in sent) == [
        (1, 1),
        (1, FULL_SHARE),
        (2, 1),
        (2, FULL_SHARE),
    ]


@pytest.mark.virtual_time
async def test_a_broker_is_in_trouble_until_it_answers_all_of_its_sessions(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aiokafka_lite.consumer.fetching.sources")
    fetching = start(FULL_SHARE + 1)
    for sent in await all_sent(fetching, 2):
        sent.response.set_exception(KafkaConnectionError("gone"))
    again = [await fetching.cluster.next_sent() for _ in range(2)]
    assert fetching.sources.trouble(1) is not None
    again[0].answer()
    await fetching.cluster.settle()
    assert fetching.sources.trouble(1) is not None
    again[1].answer()
    await fetching.cluster.settle()
    assert fetching.sources.trouble(1) is None
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "fetching from node 1 failed and is retried: KafkaConnectionError: gone",
        "fetching from node 1 works again",
    ]


@pytest.mark.virtual_time
async def test_a_broker_is_in_no_trouble_once_the_session_that_failed_has_no_partitions(
    start: Start,
) -> None:
    fetching = start(FULL_SHARE + 1)
    _, second = await all_sent(fetching, 2)
    second.response.set_exception(KafkaConnectionError("gone"))
    await fetching.cluster.settle()
    assert fetching.sources.trouble(1) is not None
    fetching.state.change([TopicPartition("t", FULL_SHARE)], ())
    await asyncio.sleep(1.0)
    assert fetching.sources.trouble(1) is None


async def test_a_throttle_of_several_sessions_is_one_event(start: Start) -> None:
    fetching = start(FULL_SHARE + 1)
    for sent in await all_sent(fetching, 2):
        sent.answer(throttle_ms=1)
    await fetching.cluster.settle()
    assert fetching.state.events.counts == {"throttled": 1}


async def test_records_of_all_sessions_of_a_broker_are_read() -> None:
    count = FULL_SHARE + 30
    async with Broker() as broker:
        broker.create_topic("t", count)
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        async with consumer:
            for number in range(count):
                broker.produce("t", b"%d" % number, partition=number)
            found: set[int] = set()
            while len(found) < count:
                for tp, records in (await consumer.poll(timeout_ms=10_000)).items():
                    assert [record.value for record in records] == [b"%d" % tp.partition]
                    found.add(tp.partition)
            assert "in flight" in consumer.explain(TopicPartition("t", count - 1))


async def test_leaders_that_move_together_cost_what_moves_and_not_what_is_assigned() -> None:
    count = 200
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", count)
        tps = [TopicPartition("t", number) for number in range(count)]
        for tp in tps:
            broker.move_leader(tp, 1)
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        async with consumer:
            await consumer.seek_to_end()
            await consumer.getmany(timeout_ms=100)
            cluster = inside.cluster(consumer)
            changes: list[Collection[TopicPartition]] = []
            cluster.add_listener(lambda _: None, on_moves=lambda _, moved: changes.append(moved))
            with broker.on("Metadata").hold():
                placements = inside.placements(consumer)
                for tp in tps:
                    broker.move_leader(tp, 2)
                for tp in tps:
                    broker.produce("t", b"moved", partition=tp.partition)
                found: set[TopicPartition] = set()
                while len(found) < count:
                    found |= (await consumer.getmany(timeout_ms=10_000)).keys()
                placed = len(placements)
    # Each session has an answer with hints, or a few while the leaders move.
    assert sum(map(len, changes)) == count
    assert len(changes) < 20
    assert placed < 3 * count
