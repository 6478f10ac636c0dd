from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Collection
from itertools import pairwise

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.client.offsets import EARLIEST
from aiokafka_lite.client.view import ClusterView, TopicView
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.cursor import Sought
from aiokafka_lite.consumer.fetching.answer import HINTS_AT_ONCE, SETTLED_AT_ONCE
from aiokafka_lite.consumer.fetching.source import FETCH_STALL_S, MOST_UNANSWERED, Source
from aiokafka_lite.consumer.fetching.sources import task_name
from aiokafka_lite.errors import (
    BrokerResponseError,
    CorruptRecordException,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    FrameTooLargeError,
    InvalidFetchSessionEpoch,
    KafkaConnectionError,
    KafkaError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
)
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.structs import TopicPartition
from tests.support.buffers import batch, with_unknown_codec
from tests.support.scripted_sources import Fetching, ScriptedCluster, answer, view

Start = Callable[..., Fetching]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[Fetching] = []

    def make(leaders: dict[int, int] | None = None, **settings: object) -> Fetching:
        fetching = Fetching(ScriptedCluster(view(leaders or {0: 1})), **settings)
        started.append(fetching)
        fetching.assign(*(leaders or {0: 1}))
        return fetching

    yield make
    for fetching in started:
        await fetching.close()


def source_of(fetching: Fetching, number: int = 0) -> Source:
    source = fetching.sources.of(fetching.state.partition(TopicPartition("t", number)))
    assert source is not None
    return source


async def test_one_request_goes_to_each_leader(start: Start) -> None:
    fetching = start({0: 1, 1: 1, 2: 2})
    sent = [await fetching.cluster.next_sent() for _ in range(2)]
    assert {s.node_id: s.offsets for s in sent} == {1: {0: 0, 1: 0}, 2: {2: 0}}


async def test_what_was_assigned_before_the_start_is_fetched() -> None:
    fetching = Fetching(ScriptedCluster(view({0: 1})), [0])
    assert (await fetching.cluster.next_sent()).offsets == {0: 0}
    await fetching.close()


async def test_the_next_request_follows_the_buffered_data_once_that_is_taken(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0, batch(0, 5)))
    assert await fetching.cluster.sends_nothing()
    assert (await fetching.gets.one(())).offset == 0
    (sent,) = fetching.cluster.sent  # already on its way when the first record is handed out
    assert sent.offsets == {0: 5}
    assert fetching.state.finished.handed_out_offsets()[TopicPartition("t", 0)].offset == 1


async def test_at_most_one_answered_response_waits(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0, batch(0, 5)))
    assert await fetching.cluster.sends_nothing()
    assert (await fetching.gets.one(())).offset == 0
    (await fetching.cluster.next_sent()).answer(answer(0, batch(5, 5)))
    assert await fetching.cluster.sends_nothing()
    assert [(await fetching.gets.one(())).offset for _ in range(4)] == [1, 2, 3, 4]
    assert (await fetching.gets.one(())).offset == 5
    assert (await fetching.cluster.next_sent()).offsets == {0: 10}


async def test_what_is_buffered_is_taken_after_the_sources_were_closed(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0, batch(0, 5)))
    assert await fetching.cluster.sends_nothing()
    fetching.sources.close()
    assert await fetching.poll() == {0: [0, 1, 2, 3, 4]}
    assert await fetching.cluster.sends_nothing()


async def test_a_source_that_has_nothing_left_reads_again_once_its_response_is_taken(
    start: Start,
) -> None:
    fetching = start({0: 1, 1: 2})
    sent = {each.node_id: each for each in [await fetching.cluster.next_sent() for _ in range(2)]}
    sent[1].answer(answer(0, batch(0, 5)))
    assert await fetching.cluster.sends_nothing()
    fetching.cluster.change(view({0: 2, 1: 2}))
    assert await fetching.cluster.sends_nothing()  # the source has nothing left but that
    fetching.cluster.change(view({0: 2, 1: 1}))
    assert await fetching.cluster.sends_nothing()
    assert not [each for each in fetching.cluster.sent if each.node_id == 1]
    assert await fetching.poll() == {0: [0, 1, 2, 3, 4]}
    again = await fetching.cluster.next_sent()
    assert (again.node_id, again.offsets) == (1, {1: 0})


async def test_a_get_that_waits_has_the_next_request_sent_with_the_answer(start: Start) -> None:
    fetching = start()
    poll = asyncio.ensure_future(fetching.poll())
    sent = await fetching.cluster.next_sent()
    await asyncio.sleep(0)  # the get waits
    sent.answer(answer(0, batch(0, 5)))
    await asyncio.sleep(0)
    assert not poll.done()
    (sent,) = fetching.cluster.sent
    assert sent.offsets == {0: 5}
    assert await poll == {0: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize("moved", [0, 249])
async def test_a_wide_answer_leaves_the_loop_free_and_minds_a_seek_meanwhile(
    start: Start, moved: int
) -> None:
    count = 250
    fetching = start(dict.fromkeys(range(count), 1))
    (await fetching.cluster.next_sent()).answer(
        *(answer(number, batch(0, 1)) for number in range(count))
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the first slice is settled, and nothing is to be had before the last
    assert not fetching.buffer.can_serve(())
    fetching.seek(moved, 7)
    assert await fetching.cluster.sends_nothing()
    assert await fetching.poll() == {number: [0] for number in range(count) if number != moved}
    (sent,) = fetching.cluster.sent
    assert sent.offsets == {number: 7 if number == moved else 1 for number in range(count)}
    assert fetching.budget.buffered_bytes == 0


@pytest.mark.parametrize(
    ("partitions", "failing", "is_more"),
    [
        (SETTLED_AT_ONCE - 2, 0, False),
        (SETTLED_AT_ONCE - 1, 0, True),
        # What failed is looked at twice.
        (SETTLED_AT_ONCE // 2, SETTLED_AT_ONCE // 2 - 1, False),
        (SETTLED_AT_ONCE // 2, SETTLED_AT_ONCE // 2, True),
    ],
)
async def test_an_answer_that_is_no_more_than_a_slice_is_settled_at_once(
    start: Start, partitions: int, failing: int, is_more: bool
) -> None:
    fetching = start(dict.fromkeys(range(partitions), 1))
    (await fetching.cluster.next_sent()).answer(
        *(answer(number, error_code=UnknownTopicIdError.errno) for number in range(failing)),
        *(answer(number, batch(0, 1)) for number in range(failing, partitions)),
    )
    await asyncio.sleep(0)
    assert source_of(fetching).is_settling is is_more


async def test_a_wide_answer_is_settled_a_slice_at_a_time(start: Start) -> None:
    fetching = start(dict.fromkeys(range(2 * SETTLED_AT_ONCE), 1))
    (await fetching.cluster.next_sent()).answer(*map(answer, range(2 * SETTLED_AT_ONCE)))
    await asyncio.sleep(0)
    settled = [cursor.high_watermark for cursor in fetching.state.assignment.values()]
    # The topic counts, too.
    assert settled.index(None) == SETTLED_AT_ONCE - 1
    sent = await fetching.cluster.next_sent()
    assert fetching.budget.used_bytes == sent.request.max_bytes  # of no answer that brought nothing


async def test_a_consumer_that_stops_leaves_a_wide_answer_as_it_is(start: Start) -> None:
    fetching = start(dict.fromkeys(range(SETTLED_AT_ONCE), 1))
    (await fetching.cluster.next_sent()).answer(
        *(answer(number, batch(0, 1)) for number in range(SETTLED_AT_ONCE))
    )
    await asyncio.sleep(0)
    source = source_of(fetching)
    assert source.is_settling
    await fetching.close()
    assert not source.is_settling
    assert fetching.budget.used_bytes == 0


async def test_a_wide_answer_whose_partitions_all_moved_meanwhile_holds_no_bytes(
    start: Start,
) -> None:
    count = 150
    fetching = start(dict.fromkeys(range(count), 1))
    (await fetching.cluster.next_sent()).answer(
        *(answer(number, batch(0, 1)) for number in range(count))
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    fetching.state.assign_from_user([])
    for _ in range(10):
        await asyncio.sleep(0)
    assert fetching.budget.used_bytes == 0


@pytest.mark.parametrize("change", ["seek", "revoke", "reassign"])
async def test_an_answer_that_comes_too_late_is_dropped(start: Start, change: str) -> None:
    fetching = start()
    sent = await fetching.cluster.next_sent()
    if change == "seek":
        fetching.seek(0, 50)
    else:
        fetching.state.assign_from_user([])
        if change == "reassign":
            fetching.assign(0, offset=0)
    sent.answer(answer(0, batch(0, 5)))
    assert await fetching.poll(0.02) == {}
    if change == "revoke":
        assert not fetching.cluster.sent
    else:
        expected = 50 if change == "seek" else 0
        sent = await fetching.cluster.next_sent()
        assert sent.offsets == {0: expected}
        sent.answer(answer(0, batch(expected, 2)))
        assert await fetching.poll() == {0: [expected, expected + 1]}
        last = await fetching.cluster.next_sent()
        assert fetching.budget.used_bytes > 0  # reserved for the next answer
        fetching.state.assign_from_user([])
        last.answer(answer(0, batch(expected + 2, 1)))
        for _ in range(10):
            await asyncio.sleep(0)
    assert fetching.budget.used_bytes == 0


async def test_an_answer_to_a_paused_partition_is_kept_for_later(start: Start) -> None:
    fetching = start()
    partition = fetching.state.partition(TopicPartition("t", 0))
    sent = await fetching.cluster.next_sent()
    fetching.state.pause(partition)
    sent.answer(answer(0, batch(0, 2)))
    assert await fetching.poll(0.02) == {}
    assert not fetching.cluster.sent
    fetching.state.resume(partition)
    assert await fetching.poll() == {0: [0, 1]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [("seek", [{0: 50}]), ("refetch", [{0: 0}]), ("revoke", []), ("reset", [])],
)
async def test_a_drop_asks_for_nothing_that_is_not_wanted_any_more(
    start: Start, change: str, expected: list[dict[int, int]]
) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0, batch(0, 5)))
    assert await fetching.cluster.sends_nothing()  # the answer waits for the application
    partition = fetching.state.partition(TopicPartition("t", 0))
    if change == "seek":
        fetching.seek(0, 50)
    elif change == "refetch":
        fetching.state.refetch(partition)
    elif change == "revoke":
        fetching.state.assign_from_user([])
    else:
        fetching.state.request_reset(partition, EARLIEST)
    await fetching.cluster.settle()
    assert [sent.offsets for sent in fetching.cluster.sent] == expected


@pytest.mark.parametrize("when", ["buffered", "on its way"])
async def test_a_paused_partition_does_not_hold_up_what_else_its_broker_has(
    start: Start, when: str
) -> None:
    fetching = start({0: 1, 1: 1, 2: 2})
    partition = fetching.state.partition(TopicPartition("t", 0))
    sent = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    if when == "on its way":
        fetching.state.pause(partition)
    sent[1].answer(answer(0, batch(0, 5)))
    sent[2].answer(answer(2, batch(0, 5)))
    await fetching.cluster.settle()
    if when == "buffered":
        fetching.state.pause(partition)
    # There is always something to hand out, so that no get waits.
    assert await fetching.poll() == {2: [0, 1, 2, 3, 4]}
    await fetching.cluster.settle()
    assert {s.node_id for s in fetching.cluster.sent} == {1, 2}
    fetching.state.resume(partition)
    assert await fetching.poll() == {0: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize("change", ["paused", "unreachable"])
async def test_who_lacks_bytes_and_cannot_use_them_does_not_keep_others_from_fetching(
    start: Start, change: str
) -> None:
    fetching = start({0: 1, 1: 2}, max_buffered_bytes=100_000, max_partition_fetch_bytes=1_000)
    sent = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    sent[2].answer(answer(1, batch(0, 1, size=30_000)))
    assert await fetching.cluster.sends_nothing()
    sent[1].answer(answer(0, batch(0, 1, size=90_000)))  # too much beside the other
    assert await fetching.cluster.sends_nothing()
    if change == "paused":
        fetching.state.pause(fetching.state.partition(TopicPartition("t", 0)))
    else:
        fetching.cluster.pool.muted_until[1] = asyncio.get_running_loop().time() + 100
    assert await fetching.poll() == {1: [0]}
    assert (await fetching.cluster.next_sent()).node_id == 2


@pytest.mark.virtual_time
async def test_a_paused_partition_that_fills_the_budget_is_dropped_for_the_others(
    start: Start,
) -> None:
    fetching = start({0: 1, 1: 1}, max_buffered_bytes=100_000, max_partition_fetch_bytes=20_000)
    (await fetching.cluster.next_sent()).answer(answer(0, batch(0, 1, size=90_000)))
    assert await fetching.cluster.sends_nothing()
    partition = fetching.state.partition(TopicPartition("t", 0))
    fetching.state.pause(partition)
    assert (await fetching.cluster.next_sent()).offsets == {1: 0}
    assert partition.fetched == 0


async def test_a_moved_leader_is_asked_and_the_old_one_s_answer_not_doubled(start: Start) -> None:
    fetching = start()
    old = await fetching.cluster.next_sent()
    fetching.cluster.change(view({0: 2}, epoch=1))
    new = await fetching.cluster.next_sent()
    assert new.node_id == 2
    assert new.leader_epochs == {0: 1}
    new.answer(answer(0, batch(0, 3)))
    assert await fetching.poll() == {0: [0, 1, 2]}
    old.answer(answer(0, batch(0, 3)))
    assert await fetching.poll(0.02) == {}


@pytest.mark.virtual_time
async def test_not_leader_refreshes_metadata_and_backs_off(start: Start) -> None:
    fetching = start({0: 1, 1: 1}, retry_backoff_ms=100)
    sent = await fetching.cluster.next_sent()
    sent.answer(answer(0, error_code=NotLeaderForPartitionError.errno), answer(1, batch(0, 1)))
    assert await fetching.poll() == {1: [0]}
    assert fetching.cluster.invalidations == 1
    following = await fetching.cluster.next_sent()
    assert following.offsets == {1: 1}  # partition 0 is in its backoff
    assert fetching.state.partition(TopicPartition("t", 0)).last_fetch_at is not None
    # With 20 % of jitter: the broker answers when the backoff ends.
    assert 100 <= following.request.max_wait_ms <= 121
    partition = fetching.state.partition(TopicPartition("t", 0))
    assert partition.retry_reason == "NotLeaderForPartitionError"
    await asyncio.sleep(following.request.max_wait_ms / 1000)
    following.answer()
    asked_again = await fetching.cluster.next_sent()
    assert asked_again.offsets == {0: 0, 1: 1}
    assert asked_again.request.max_wait_ms == fetching.config.fetch_max_wait_ms
    assert fetching.cluster.invalidations == 1


@pytest.mark.virtual_time
async def test_the_backoff_of_a_partition_that_moved_shortens_no_long_poll_of_the_old_leader(
    start: Start,
) -> None:
    fetching = start({0: 1, 1: 1}, retry_backoff_ms=100)
    (await fetching.cluster.next_sent()).answer(
        answer(0, error_code=NotLeaderForPartitionError.errno), answer(1)
    )
    short_poll = await fetching.cluster.next_sent()
    assert short_poll.request.max_wait_ms <= 121
    fetching.cluster.change(view({0: 2, 1: 1}, epoch=1))
    short_poll.answer()
    long_poll = await fetching.cluster.next_sent()
    assert (long_poll.node_id, long_poll.offsets) == (1, {1: 0})
    assert long_poll.request.max_wait_ms == fetching.config.fetch_max_wait_ms


@pytest.mark.virtual_time
@pytest.mark.parametrize("leader", [0, 2])
async def test_a_leader_hint_is_followed_at_once(start: Start, leader: int) -> None:
    fetching = start(retry_backoff_ms=60_000)
    fetching.cluster.change(view({0: 1}, nodes=(0, 1, 2)))
    (await fetching.cluster.next_sent()).answer(
        answer(0, error_code=NotLeaderForPartitionError.errno, leader_hint=(leader, 5))
    )
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets) == (leader, {0: 0})
    assert sent.leader_epochs == {0: 5}
    assert asyncio.get_running_loop().time() == 0.0


@pytest.mark.virtual_time
@pytest.mark.parametrize("hint", [(2, 5), (-1, 7)], ids=["no newer", "without a leader"])
async def test_a_leader_hint_that_names_no_newer_leader_ends_no_back_off(
    start: Start, hint: tuple[int, int]
) -> None:
    fetching = start()
    fetching.cluster.change(view({0: 1}, epoch=5))
    loop = asyncio.get_running_loop()
    (await fetching.cluster.next_sent()).answer(
        answer(0, error_code=NotLeaderForPartitionError.errno, leader_hint=hint)
    )
    assert (await fetching.cluster.next_sent()).node_id == 1
    assert loop.time() >= fetching.config.retry_backoff_s


async def test_the_leader_hints_of_a_wide_answer_leave_the_loop_free(start: Start) -> None:
    count = HINTS_AT_ONCE + 1
    fetching = start(dict.fromkeys(range(count), 1), retry_backoff_ms=60_000)
    seen: list[object] = []

    def moved(_: ClusterView, partitions: Collection[TopicPartition]) -> None:
        seen.append(len(partitions))
        asyncio.get_running_loop().call_soon(seen.append, "a turn")

    fetching.cluster.add_listener(lambda _: None, on_moves=moved)
    (await fetching.cluster.next_sent()).answer(
        *(
            answer(number, error_code=NotLeaderForPartitionError.errno, leader_hint=(2, 5))
            for number in range(count)
        )
    )
    await fetching.cluster.settle()
    assert seen == [HINTS_AT_ONCE, "a turn", 1, "a turn"]


async def test_a_partition_without_leader_asks_for_metadata(start: Start) -> None:
    fetching = start()
    sent = await fetching.cluster.next_sent()
    before = fetching.cluster.invalidations
    fetching.cluster.change(view({0: -1}))
    assert fetching.cluster.invalidations == before + 1
    assert not fetching.sources.is_asking_for(fetching.state.partition(TopicPartition("t", 0)))
    sent.answer()
    assert await fetching.cluster.sends_nothing()


@pytest.mark.virtual_time
async def test_leaders_are_looked_for_of_topics_that_metadata_covers(start: Start) -> None:
    fetching = start()
    cluster = fetching.cluster
    fetching.state.assign_from_user([TopicPartition("unknown", 0)])
    await asyncio.sleep(0.5)
    assert (cluster.invalidations, cluster.search_count) == (0, 0)
    gone = TopicView("unknown", error=UnknownTopicOrPartitionError, partitions={})
    cluster.change(view({0: 1})._replace(topics={"unknown": gone}))
    await asyncio.sleep(0.5)
    assert (cluster.invalidations, cluster.search_count) == (1, 0)
    fetching.assign(0)
    cluster.change(view({0: -1}))
    await asyncio.sleep(0.5)
    assert cluster.search_count > 0
    cluster.change(view({0: 1}))
    search_count = cluster.search_count
    await asyncio.sleep(0.5)
    assert cluster.search_count == search_count


@pytest.mark.virtual_time
async def test_a_broker_that_cannot_be_reached_is_tried_again_and_other_leaders_looked_for(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    fetching = start()
    cluster = fetching.cluster
    source = source_of(fetching)
    cluster.pool.unreachable.add(1)
    await asyncio.sleep(0.5)
    assert source.failing_since == pytest.approx(0.0, abs=1e-3)
    assert source.is_failing
    assert isinstance(fetching.sources.trouble(1), KafkaConnectionError)
    assert cluster.invalidations > 0
    assert cluster.search_count > 0
    assert 2 < len(cluster.pool.connected) < 20
    cluster.pool.unreachable.clear()
    sent = await cluster.next_sent()
    sent.answer(answer(0, batch(0, 1)))
    assert await fetching.poll() == {0: [0]}
    assert source.failing_since is None
    assert fetching.sources.trouble(1) is None
    (await cluster.next_sent()).response.set_exception(KafkaConnectionError("gone"))
    await cluster.next_sent()
    assert source.failing_since is not None
    fetching.state.assign_from_user([])
    assert source.failing_since is None  # nothing is wanted of it
    failed = [line for line in caplog.messages if "fetching from node 1 failed" in line]
    assert len(failed) == 2  # one each time that it begins


@pytest.mark.virtual_time
async def test_a_broker_that_nothing_is_read_from_any_more_is_in_no_trouble(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).response.set_exception(KafkaConnectionError("gone"))
    await fetching.cluster.settle()
    assert fetching.sources.trouble(1) is not None
    fetching.state.assign_from_user([])
    await asyncio.sleep(1.0)
    assert fetching.sources.trouble(1) is None
    assert fetching.budget.source_count == 0


@pytest.mark.virtual_time
@pytest.mark.parametrize("end", ["closed", "failed"])
async def test_after_the_end_no_leader_is_looked_for_and_no_other_broker_read(
    start: Start, end: str
) -> None:
    fetching = start()
    cluster = fetching.cluster
    sent = await cluster.next_sent()
    if end == "closed":
        cluster.change(view({0: -1}))
        fetching.sources.close()
    else:
        sent.response.set_exception(KafkaError("no common version"))
        await cluster.settle()
    asked = cluster.invalidations, cluster.search_count
    cluster.change(view({0: 2}, epoch=1))
    cluster.apply_leader_hints({TopicPartition("t", 0): (2, 5)})
    assert task_name(2) not in fetching.scope.task_names
    await asyncio.sleep(2.0)
    assert (cluster.invalidations, cluster.search_count) == asked
    assert not cluster.sent


async def test_closed_sources_are_kept_by_no_timer() -> None:
    fetching = Fetching(ScriptedCluster(view(dict.fromkeys(range(101), 1))), range(101))
    sent = await fetching.cluster.next_sent()
    await fetching.close()
    gone = weakref.ref(fetching.sources)
    del fetching, sent
    gc.collect()
    assert gone() is None


async def test_a_broker_is_connected_to_while_positions_are_looked_up(start: Start) -> None:
    fetching = start()
    sent = await fetching.cluster.next_sent()
    assert fetching.cluster.pool.readied == []
    fetching.state.assign_from_user([])
    sent.answer()
    await fetching.cluster.settle()
    fetching.state.assign_from_user([TopicPartition("t", 0)])
    assert await fetching.cluster.sends_nothing()
    assert fetching.cluster.pool.readied == [1]
    fetching.seek(0, 7)
    assert (await fetching.cluster.next_sent()).offsets == {0: 7}


@pytest.mark.parametrize(("awaited", "order"), [(None, [0, 1, 2, 0]), (2, [2])])
async def test_partitions_whose_records_found_no_room_are_asked_for_alone_in_turns(
    start: Start, awaited: int | None, order: list[int]
) -> None:
    fetching = start({0: 1, 1: 1, 2: 1}, max_buffered_bytes=10_000, max_partition_fetch_bytes=1_000)
    waiting = None
    if awaited is not None:
        waiting = asyncio.ensure_future(fetching.gets.one({TopicPartition("t", awaited)}))
    (await fetching.cluster.next_sent()).answer(*map(answer, range(3)))
    alone: list[int] = []
    for _ in order:
        sent = await fetching.cluster.next_sent()
        assert sorted(sent.offsets) == [0, 1, 2]
        held = fetching.budget.reserve_nothing()
        held.keep(8_000)
        sent.answer(*(answer(number, batch(0, 1, size=3_000)) for number in range(3)))
        assert await fetching.cluster.sends_nothing()
        held.release()
        sent = await fetching.cluster.next_sent()
        assert sent.request.max_bytes >= 9_000
        alone += sent.offsets
        sent.answer(*map(answer, sent.offsets))
    assert alone == order
    if waiting is not None:
        waiting.cancel()


@pytest.mark.parametrize(
    ("behind", "brought"), [((1, 2), (0, 2)), ((2,), (0,))], ids=["it came", "it is behind"]
)
async def test_of_what_a_read_waits_for_and_found_no_room_one_that_has_records_is_asked_for(
    start: Start, behind: Collection[int], brought: Collection[int]
) -> None:
    fetching = start({0: 1, 1: 1, 2: 1}, max_buffered_bytes=10_000, max_partition_fetch_bytes=1_000)
    wanted = [TopicPartition("t", number) for number in (1, 2)]
    waiting = asyncio.ensure_future(fetching.gets.many(wanted, None, None))
    (await fetching.cluster.next_sent()).answer(
        *(answer(number, high_watermark=9 * (number in behind)) for number in range(3))
    )
    sent = await fetching.cluster.next_sent()
    held = fetching.budget.reserve_nothing()
    held.keep(8_000)
    sent.answer(*(answer(number, batch(0, 1, size=3_000)) for number in brought))
    assert await fetching.cluster.sends_nothing()
    held.release()
    assert (await fetching.cluster.next_sent()).offsets == {2: 0}
    waiting.cancel()


async def test_what_a_read_waits_for_is_asked_for_though_all_memory_is_used(start: Start) -> None:
    fetching = start({0: 1, 1: 1}, max_buffered_bytes=10_000, max_partition_fetch_bytes=1_000)
    sent = await fetching.cluster.next_sent()
    waiting = asyncio.ensure_future(fetching.gets.one({TopicPartition("t", 1)}))
    await fetching.cluster.settle()
    fetching.budget.reserve_nothing().keep(10_000)
    sent.answer(*(answer(number, high_watermark=0) for number in range(2)))
    sent = await fetching.cluster.next_sent()
    assert (sent.offsets, sent.request.max_bytes) == ({1: 0}, 1)
    waiting.cancel()


async def test_out_of_range_is_reset_by_policy(start: Start) -> None:
    fetching = start(auto_offset_reset="earliest")
    (await fetching.cluster.next_sent()).answer(answer(0, error_code=OffsetOutOfRangeError.errno))
    assert await fetching.cluster.sends_nothing()
    partition = fetching.state.partition(TopicPartition("t", 0))
    assert partition.search is not None
    assert partition.search.sought is Sought.RESET
    assert partition.search.timestamp == EARLIEST


async def test_out_of_range_without_policy_is_raised_until_sought(start: Start) -> None:
    fetching = start(auto_offset_reset="none")
    (await fetching.cluster.next_sent()).answer(answer(0, error_code=OffsetOutOfRangeError.errno))
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError) as raised:
            await fetching.poll()
        assert raised.value.args == ({TopicPartition("t", 0): 0},)
    fetching.seek(0, 7)
    assert (await fetching.cluster.next_sent()).offsets == {0: 7}


@pytest.mark.parametrize(
    ("code", "error_class", "text"),
    [
        (
            TopicAuthorizationFailedError.errno,
            TopicAuthorizationFailedError,
            "offset 0: the broker rejected the fetch",
        ),
        (999, UnknownError, "offset 0: the broker answered with error code 999"),
    ],
)
async def test_errors_that_do_not_pass_are_raised_and_asked_again_after_a_backoff(
    start: Start, code: int, error_class: type[KafkaError], text: str
) -> None:
    fetching = start({0: 1, 1: 1})
    (await fetching.cluster.next_sent()).answer(answer(0, error_code=code), answer(1, batch(0, 1)))
    with pytest.raises(error_class, match=text) as raised:
        await fetching.poll()
    assert await fetching.poll() == {1: [0]}
    assert raised.value.tp == TopicPartition("t", 0)
    assert fetching.state.partition(TopicPartition("t", 0)).position == 0
    while True:
        sent = await fetching.cluster.next_sent()
        if 0 in sent.offsets:
            break
        sent.answer()
        await asyncio.sleep(0.001)


@pytest.mark.virtual_time
async def test_out_of_range_is_settled_once_all_ahead_of_it_was_read(start: Start) -> None:
    fetching = start(auto_offset_reset="none")
    (await fetching.cluster.next_sent()).answer(answer(0, batch(0, 5)))
    assert (await fetching.gets.one(())).offset == 0
    (await fetching.cluster.next_sent()).answer(answer(0, error_code=OffsetOutOfRangeError.errno))
    assert await fetching.cluster.sends_nothing()
    assert await fetching.poll() == {0: [1, 2, 3, 4]}
    again = await fetching.cluster.next_sent()
    assert again.offsets == {0: 5}
    again.answer(answer(0, error_code=OffsetOutOfRangeError.errno))
    with pytest.raises(OffsetOutOfRangeError):
        await fetching.poll()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("error", "is_stale"),
    [(UnknownError, False), (OffsetNotAvailableError, False), (UnknownTopicIdError, True)],
)
async def test_an_error_that_may_pass_is_asked_again_and_not_raised(
    start: Start, error: type[BrokerResponseError], is_stale: bool
) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0, error_code=error.errno))
    sent = await fetching.cluster.next_sent()
    assert fetching.cluster.invalidations == is_stale
    sent.answer(answer(0, batch(0, 1)))
    assert await fetching.poll() == {0: [0]}


@pytest.mark.virtual_time
async def test_a_batch_that_its_broker_finds_corrupt_is_raised_at_the_second_time(
    start: Start,
) -> None:
    fetching = start()
    error_code = CorruptRecordException.errno
    (await fetching.cluster.next_sent()).answer(answer(0, error_code=error_code))
    polling = asyncio.ensure_future(fetching.poll())
    again = await fetching.cluster.next_sent()
    assert not polling.done()
    again.answer(answer(0, error_code=error_code))
    with pytest.raises(CorruptRecordException):
        await polling


@pytest.mark.virtual_time
async def test_a_partition_that_keeps_failing_is_one_line_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    fetching = start()
    line_counts = []
    for error_code in (OffsetNotAvailableError.errno, OffsetNotAvailableError.errno, 0) * 2:
        (await fetching.cluster.next_sent()).answer(answer(0, error_code=error_code))
        await fetching.cluster.settle()
        line_counts.append(len(caplog.messages))
    await fetching.cluster.next_sent()
    assert line_counts == [1, 1, 1, 2, 2, 2]
    assert (
        caplog.messages
        == ["fetching t/0 from offset 0 failed and is retried: OffsetNotAvailableError"] * 2
    )


async def test_a_corrupt_answer_is_fetched_once_more_then_raised(start: Start) -> None:
    fetching = start()
    broken = bytearray(batch(0, 3))
    broken[-1] ^= 0xFF
    (await fetching.cluster.next_sent()).answer(answer(0, bytes(broken)))
    polling = asyncio.ensure_future(fetching.poll())
    sent = await fetching.cluster.next_sent()
    while sent.offsets != {0: 0}:
        sent.answer(answer(0))
        sent = await fetching.cluster.next_sent()
    sent.answer(answer(0, bytes(broken)))
    with pytest.raises(CorruptRecordException):
        await polling


async def test_a_lost_connection_backs_off_and_opens_a_new_session(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0), session_id=5)
    sent = await fetching.cluster.next_sent()
    assert (sent.request.session_id, sent.request.session_epoch) == (5, 1)
    assert sent.offsets == {}
    source = source_of(fetching)
    sent.response.set_exception(KafkaConnectionError("gone"))
    sent = await fetching.cluster.next_sent()
    assert (sent.request.session_id, sent.request.session_epoch) == (5, 0)
    assert sent.offsets == {0: 0}
    assert fetching.budget.used_bytes == sent.request.max_bytes
    assert fetching.cluster.invalidations == 1
    assert source.failing_since is not None
    assert source.is_failing
    sent.answer(answer(0), session_id=5)
    await fetching.cluster.next_sent()
    assert source.failing_since is None
    assert not source.is_failing
    assert fetching.sources.trouble(1) is None


@pytest.mark.virtual_time
async def test_a_connection_that_closes_as_it_is_asked_is_asked_again_after_a_backoff(
    start: Start,
) -> None:
    fetching = start(retry_backoff_ms=100)
    loop = asyncio.get_running_loop()
    (await fetching.cluster.next_sent()).answer(session_id=5)
    sent = await fetching.cluster.next_sent()
    fetching.cluster.pool.refusals.append(KafkaConnectionError("it is closing"))
    sent.answer(session_id=5)
    failed_at = loop.time()
    again = await fetching.cluster.next_sent()
    assert (again.session, again.offsets) == ((5, 0), {0: 0})
    assert 0.05 <= loop.time() - failed_at <= 0.2
    assert fetching.budget.used_bytes == again.request.max_bytes
    assert fetching.sources.counts[1].failure_count == 1
    again.answer(answer(0, batch(0, 1)))
    assert await fetching.poll() == {0: [0]}


@pytest.mark.virtual_time
async def test_an_answer_that_is_too_large_once_is_no_error_of_the_partition_asked_for(
    start: Start,
) -> None:
    fetching = start({0: 1, 1: 1, 2: 1})
    error = FrameTooLargeError("it is too large")
    error.size_bytes, error.limit_bytes = 2_000_000, 1_000_000
    (await fetching.cluster.next_sent()).response.set_exception(error)
    sent = await fetching.cluster.next_sent()
    assert sent.offsets == {0: 0}
    fetching.state.pause(fetching.state.partition(TopicPartition("t", 1)))
    sent.answer(answer(0))
    sent = await fetching.cluster.next_sent()
    assert sent.offsets == {2: 0}  # the other suspect is paused
    sent.response.set_exception(error)
    sent = await fetching.cluster.next_sent()
    assert sent.offsets == {2: 0}
    sent.answer(answer(2, batch(0, 1)))
    assert await fetching.poll() == {2: [0]}


async def test_nothing_is_asked_for_behind_an_error_that_was_met_meanwhile(start: Start) -> None:
    fetching = start({0: 1, 1: 1}, max_buffered_bytes=100_000, max_partition_fetch_bytes=1_000)
    (await fetching.cluster.next_sent()).answer(
        answer(0, batch(0, 3) + with_unknown_codec(batch(3, 2)))
    )
    assert (await fetching.gets.one(())).offset == 0
    sent = await fetching.cluster.next_sent()
    assert sent.offsets == {0: 5, 1: 0}
    sent.answer(answer(1, batch(0, 1, size=99_900)))  # no room: it is to be asked for alone
    assert await fetching.cluster.sends_nothing()
    assert await fetching.poll() == {0: [1, 2]}
    fetching.state.pause(fetching.state.partition(TopicPartition("t", 1)))
    assert await fetching.cluster.sends_nothing()
    with pytest.raises(UnsupportedCodecError):
        await fetching.poll()
    fetching.seek(0, 5)
    assert (await fetching.cluster.next_sent()).offsets == {0: 5}


@pytest.mark.parametrize(
    ("error", "session_id"), [(FetchSessionIdNotFound, 0), (InvalidFetchSessionEpoch, 5)]
)
async def test_session_errors_open_a_new_session_at_the_same_offsets(
    start: Start, error: type[NotLeaderForPartitionError], session_id: int
) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0), session_id=5)
    (await fetching.cluster.next_sent()).answer(error_code=error.errno)
    sent = await fetching.cluster.next_sent()
    assert (sent.request.session_id, sent.request.session_epoch) == (session_id, 0)
    assert sent.offsets == {0: 0}
    assert fetching.budget.used_bytes == sent.request.max_bytes


async def test_a_broker_that_fails_at_the_top_is_not_asked_in_a_hot_loop(start: Start) -> None:
    fetching = start(retry_backoff_ms=50)
    loop = asyncio.get_running_loop()
    (await fetching.cluster.next_sent()).answer(error_code=UnknownError.errno)
    failed_at = loop.time()
    await fetching.cluster.next_sent()
    assert loop.time() - failed_at >= 0.03


async def test_a_partition_named_twice_is_buffered_once(start: Start) -> None:
    fetching = start({0: 1, 1: 1})
    (await fetching.cluster.next_sent()).answer(
        answer(0, batch(0, 2)), answer(0, batch(0, 2)), answer(1, batch(0, 1))
    )
    assert await fetching.poll() == {0: [0, 1], 1: [0]}
    assert await fetching.poll(0.02) == {}


async def test_long_polls_of_one_broker_leave_bytes_for_the_others(start: Start) -> None:
    fetching = start({0: 1, 1: 2}, max_buffered_bytes=4_000, max_partition_fetch_bytes=10_000)
    sent = [await fetching.cluster.next_sent() for _ in range(2)]
    assert {s.node_id for s in sent} == {1, 2}
    # Each broker may have two answers: one being read, one being waited for.
    assert [s.request.max_bytes for s in sent] == [1_000, 1_000]


async def test_watermarks_are_those_of_the_last_answer(start: Start) -> None:
    fetching = start()
    partition = fetching.state.partition(TopicPartition("t", 0))
    sent = await fetching.cluster.next_sent()
    for high_watermark in (42, 44, 43):  # a leader that has just been elected may know less
        asked_at = asyncio.get_running_loop().time()
        sent.answer(answer(0, high_watermark=high_watermark))
        sent = await fetching.cluster.next_sent()
        assert partition.high_watermark == high_watermark
        assert partition.last_fetch_at is not None
        assert partition.last_fetch_at >= asked_at


@pytest.mark.parametrize(("told", "known"), [(0, 0), (7, 7), (-1, None)])
async def test_the_last_stable_offset_is_unknown_of_brokers_that_tell_none(
    start: Start, told: int, known: int | None
) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0, last_stable_offset=told))
    await fetching.cluster.next_sent()
    assert fetching.state.partition(TopicPartition("t", 0)).last_stable_offset == known


@pytest.mark.virtual_time
async def test_answers_their_bytes_and_latency_are_counted_by_node(start: Start) -> None:
    fetching = start({0: 1, 1: 1})
    loop = asyncio.get_running_loop()
    counts = fetching.sources.counts[1]
    assert counts.last_answer_at is None
    records = batch(0, 5)
    for latency_s, answers in (
        (0.25, [answer(0, records), answer(1, records)]),
        (0.5, [answer(0)]),
        (0.125, [answer(0, error_code=OffsetNotAvailableError.errno)]),
    ):
        sent, before_s = await fetching.cluster.next_sent(), counts.latency_sum_s
        await asyncio.sleep(latency_s)
        sent.answer(*answers)
        await fetching.poll(0)
        assert counts.latency_sum_s - before_s == pytest.approx(latency_s, abs=1e-3)
    assert counts.last_answer_at == loop.time()
    assert (counts.fetch_count, counts.failure_count, counts.record_answer_count) == (3, 0, 1)
    assert counts.received_bytes == 2 * len(records)
    assert counts.latency_sum_s == pytest.approx(0.875, abs=1e-3)
    assert counts.latency_max_s == pytest.approx(0.5, abs=1e-3)
    (await fetching.cluster.next_sent()).response.set_exception(KafkaConnectionError("gone"))
    await fetching.cluster.next_sent()
    assert (counts.fetch_count, counts.failure_count) == (3, 1)


@pytest.mark.virtual_time
async def test_a_broker_that_does_not_answer_is_given_longer_and_asked_for_less(
    start: Start,
) -> None:
    fetching = start(max_partition_fetch_bytes=1 << 20, request_timeout_ms=60_000)
    asked = []
    for outcome in ("silent", "silent", "silent", "silent", "soon", "soon", "late", "soon"):
        sent = await fetching.cluster.next_sent()
        asked.append((sent.timeout_s, sent.request.max_bytes))
        if outcome == "silent":
            sent.response.set_exception(RequestTimedOutError("silent"))
        else:
            await asyncio.sleep(FETCH_STALL_S if outcome == "late" else 0.1)
            sent.answer(answer(0))
    mib = 1 << 20
    assert asked == [
        (10.5, mib),
        (20.5, mib >> 1),
        (40.5, mib >> 2),
        (60.5, mib >> 3),
        (60.5, mib >> 4),
        (60.5, mib >> 3),
        (40.5, mib >> 2),
        (40.5, mib >> 2),
    ]
    assert (await fetching.cluster.next_sent()).timeout_s == 20.5


@pytest.mark.virtual_time
async def test_a_broker_that_was_silent_for_long_is_trusted_again_after_ten_answers(
    start: Start,
) -> None:
    fetching = start()
    for _ in range(MOST_UNANSWERED + 3):
        (await fetching.cluster.next_sent()).response.set_exception(RequestTimedOutError("silent"))
    for _ in range(MOST_UNANSWERED):
        sent = await fetching.cluster.next_sent()
        assert sent.timeout_s > 10.5
        sent.answer()
    assert (await fetching.cluster.next_sent()).timeout_s == 10.5


@pytest.mark.virtual_time
async def test_a_broker_is_overdue_a_second_after_its_long_poll(start: Start) -> None:
    fetching = start()
    cursor, source = fetching.state.partition(TopicPartition("t", 0)), source_of(fetching)
    assert not source.is_overdue(1_000.0)
    assert not source.is_throttled
    assert not fetching.sources.is_asking_for(cursor)
    sent = await fetching.cluster.next_sent()
    assert fetching.sources.is_asking_for(cursor)
    sent_at = asyncio.get_running_loop().time()
    assert source.in_flight_since == sent_at
    assert not source.is_overdue(sent_at + 1.5)
    assert source.is_overdue(sent_at + 1.51)
    sent.is_arriving = True
    assert not source.is_overdue(sent_at + 5.0)
    assert source.is_overdue(sent_at + 5.01)


@pytest.mark.virtual_time
async def test_a_broker_whose_answer_is_overdue_is_suspected(start: Start) -> None:
    fetching = start()
    await fetching.cluster.next_sent()
    await asyncio.sleep(3.5)
    assert fetching.cluster.pool.suspects == {1}
    assert fetching.cluster.invalidations > 0


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("error", "is_stale", "may_be_gone"),
    [
        (RequestTimedOutError("silent"), True, True),
        (NotLeaderForPartitionError("moved"), True, False),
        (UnknownError("refused"), False, False),
    ],
)
async def test_metadata_are_asked_for_after_errors_by_which_a_broker_may_be_gone(
    start: Start, error: KafkaError, *, is_stale: bool, may_be_gone: bool
) -> None:
    fetching = start(retry_backoff_ms=1_000)
    (await fetching.cluster.next_sent()).response.set_exception(error)
    await asyncio.sleep(0.5)
    assert (fetching.cluster.invalidations > 0) is is_stale
    assert (fetching.cluster.search_count > 0) is may_be_gone
    assert (source_of(fetching).failing_since is not None) is may_be_gone


async def test_a_task_without_partitions_ends(start: Start) -> None:
    fetching = start({0: 1})
    sent = await fetching.cluster.next_sent()
    fetching.state.assign_from_user([])
    sent.answer(answer(0))
    assert await fetching.cluster.sends_nothing()
    assert fetching.scope.task_names == []
    fetching.assign(0)
    assert (await fetching.cluster.next_sent()).offsets == {0: 0}


async def test_a_task_that_waits_for_a_paused_partition_ends_with_it(start: Start) -> None:
    fetching = start({0: 1})
    sent = await fetching.cluster.next_sent()
    fetching.state.pause(fetching.state.partition(TopicPartition("t", 0)))
    sent.answer(answer(0))
    assert await fetching.cluster.sends_nothing()
    assert fetching.scope.task_names != []
    fetching.state.assign_from_user([])
    await fetching.cluster.settle()
    assert fetching.scope.task_names == []


async def test_errors_that_retrying_cannot_mend_reach_the_gets(start: Start) -> None:
    fetching = start()
    sent = await fetching.cluster.next_sent()
    polling = asyncio.ensure_future(fetching.poll(None))
    await asyncio.sleep(0)
    sent.response.set_exception(KafkaError("no common version"))
    assert await fetching.cluster.sends_nothing()
    fetching.buffer.wake()
    with pytest.raises(KafkaError, match="no common version"):
        await polling


# --- Throttling (KIP-219) --------------------------------------------------------------------
@pytest.mark.virtual_time
@pytest.mark.parametrize("throttle_s", [0.5, 30.0])
async def test_a_throttled_broker_is_asked_when_the_time_is_over(
    start: Start, throttle_s: float
) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    pool = fetching.cluster.pool
    sent = await fetching.cluster.next_sent()
    pool.muted_until[1] = loop.time() + throttle_s
    asked_before = pool.question_count
    sent.answer()
    await asyncio.sleep(throttle_s - 0.1)
    assert not fetching.cluster.sent
    assert fetching.budget.used_bytes == 0  # what waits keeps no room from the others
    assert (await fetching.cluster.next_sent()).offsets == {0: 0}
    assert loop.time() >= pool.muted_until[1]
    assert pool.question_count - asked_before <= 3  # slept through, not asked again and again


async def test_a_throttle_is_told_when_it_begins(start: Start) -> None:
    fetching = start()
    counts = []
    for throttle_ms in (500, 500, 0, 0, 500):
        (await fetching.cluster.next_sent()).answer(throttle_ms=throttle_ms)
        await fetching.cluster.settle()
        counts.append(fetching.state.events.counts.get("throttled", 0))
    assert counts == [1, 1, 1, 1, 2]


@pytest.mark.virtual_time
async def test_records_that_came_with_a_throttle_are_handed_out_meanwhile(start: Start) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    sent = await fetching.cluster.next_sent()
    fetching.cluster.pool.muted_until[1] = loop.time() + 30.0
    sent.answer(answer(0, batch(0, 3)))
    assert await fetching.poll() == {0: [0, 1, 2]}
    assert loop.time() < 1.0
    assert (await fetching.cluster.next_sent(60.0)).offsets == {0: 3}
    assert loop.time() >= 30.0


@pytest.mark.virtual_time
async def test_what_changes_during_a_throttle_is_in_the_next_request(start: Start) -> None:
    fetching = start({0: 1, 1: 1})
    loop = asyncio.get_running_loop()
    sent = await fetching.cluster.next_sent()
    fetching.cluster.pool.muted_until[1] = loop.time() + 30.0
    sent.answer(answer(0), answer(1))
    await asyncio.sleep(10.0)
    fetching.seek(0, 40)
    fetching.state.pause(fetching.state.partition(TopicPartition("t", 1)))
    assert (await fetching.cluster.next_sent(60.0)).offsets == {0: 40}


@pytest.mark.virtual_time
async def test_a_throttled_broker_does_not_hold_up_the_others(start: Start) -> None:
    fetching = start({0: 1, 1: 2})
    sent = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    fetching.cluster.pool.muted_until[1] = asyncio.get_running_loop().time() + 30.0
    sent[1].answer()
    sent[2].answer(answer(1, batch(0, 2)))
    assert await fetching.poll() == {1: [0, 1]}
    assert (await fetching.cluster.next_sent()).node_id == 2


# --- Back-offs of partitions -----------------------------------------------------------------
@pytest.mark.virtual_time
async def test_a_partition_that_keeps_failing_is_asked_for_less_and_less_often(
    start: Start,
) -> None:
    fetching = start(retry_backoff_ms=100)
    loop = asyncio.get_running_loop()
    asked = []
    for _ in range(8):
        sent = await fetching.cluster.next_sent()
        asked.append(loop.time())
        sent.answer(answer(0, error_code=OffsetNotAvailableError.errno))
    waits = [after - before for before, after in pairwise(asked)]
    for failures, wait_s in enumerate(waits):  # doubled up to a second, with 20 % of jitter
        expected_s = min(0.1 * 2**failures, 1.0)
        assert expected_s <= wait_s <= 1.2 * expected_s + 0.001
    (await fetching.cluster.next_sent()).answer(answer(0))
    sent = await fetching.cluster.next_sent()
    asked_at = loop.time()
    sent.answer(answer(0, error_code=OffsetNotAvailableError.errno))
    await fetching.cluster.next_sent()
    assert loop.time() - asked_at <= 0.121  # an answer without an error ends the row


@pytest.mark.virtual_time
async def test_the_fetches_of_a_failing_partition_lie_further_and_further_apart() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        broker.on("Fetch", partition=0).fail(OffsetNotAvailableError, times=None)
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=20
        )
        async with consumer:
            await broker.requests.wait_for("Fetch", count=6, error=OffsetNotAvailableError)
        failed = broker.requests.of("Fetch", error=OffsetNotAvailableError)[:6]
    waits = [after.arrived_at - before.arrived_at for before, after in pairwise(failed)]
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]


# --- Sessions (KIP-227) ----------------------------------------------------------------------
async def test_a_paused_partition_is_forgotten_and_asked_for_again(start: Start) -> None:
    fetching = start({0: 1, 1: 1})
    partition = fetching.state.partition(TopicPartition("t", 0))
    sent = await fetching.cluster.next_sent()
    fetching.state.pause(partition)
    sent.answer(answer(0), answer(1), session_id=5)
    sent = await fetching.cluster.next_sent()
    assert (sent.session, sent.offsets, sent.forgotten) == ((5, 1), {}, [0])
    fetching.state.resume(partition)
    sent.answer(session_id=5)
    sent = await fetching.cluster.next_sent()
    assert (sent.session, sent.offsets, sent.forgotten) == ((5, 2), {0: 0}, [])


async def test_a_partition_that_is_resumed_before_the_answer_stays_in_the_session(
    start: Start,
) -> None:
    fetching = start({0: 1, 1: 1})
    partition = fetching.state.partition(TopicPartition("t", 0))
    sent = await fetching.cluster.next_sent()
    fetching.state.pause(partition)
    fetching.state.resume(partition)
    sent.answer(answer(0), answer(1), session_id=5)
    sent = await fetching.cluster.next_sent()
    assert (sent.session, sent.offsets, sent.forgotten) == ((5, 1), {}, [])


async def test_a_partition_taken_away_is_forgotten(start: Start) -> None:
    fetching = start({0: 1, 1: 1})
    sent = await fetching.cluster.next_sent()
    fetching.state.change([TopicPartition("t", 1)], ())
    sent.answer(answer(0), session_id=5)
    sent = await fetching.cluster.next_sent()
    assert (sent.session, sent.offsets, sent.forgotten) == ((5, 1), {}, [1])


async def test_a_broker_without_sessions_is_told_all_each_time(start: Start) -> None:
    fetching = start({0: 1, 1: 1})
    for _ in range(3):
        sent = await fetching.cluster.next_sent()
        assert (sent.session, sent.offsets) == ((0, 0), {0: 0, 1: 0})
        sent.answer(session_id=0)


async def test_a_session_closed_by_the_broker_is_followed_by_a_full_request(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(session_id=5)
    (await fetching.cluster.next_sent()).answer(session_id=0)
    sent = await fetching.cluster.next_sent()
    assert (sent.session, sent.offsets) == ((0, 0), {0: 0})


async def test_a_topic_made_anew_is_asked_for_by_its_new_id(start: Start) -> None:
    fetching = start()
    fetching.seek(0, 7)
    (await fetching.cluster.next_sent()).answer(answer(0), session_id=5)
    sent = await fetching.cluster.next_sent()
    fetching.cluster.change(view({0: 1}, topic_id=bytes(range(1, 17))))
    sent.answer(answer(0, error_code=UnknownTopicIdError.errno), session_id=5)
    assert fetching.cluster.invalidations == 0
    sent = await fetching.cluster.next_sent()
    assert fetching.cluster.invalidations == 1
    assert (sent.session, sent.offsets) == ((5, 0), {0: 7})
    assert [topic_id for _, topic_id, _ in sent.request.topics] == [bytes(range(1, 17))]


async def test_mixed_up_topic_ids_ask_for_metadata_and_a_new_session(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(session_id=5)
    (await fetching.cluster.next_sent()).answer(error_code=FetchSessionTopicIdError.errno)
    assert (await fetching.cluster.next_sent()).session == (5, 0)
    assert fetching.cluster.invalidations == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("error", [FetchSessionIdNotFound, InvalidFetchSessionEpoch])
async def test_a_broker_that_blames_no_session_is_not_asked_in_a_hot_loop(
    start: Start, error: type[BrokerResponseError]
) -> None:
    fetching = start(retry_backoff_ms=100)
    for _ in range(5):
        (await fetching.cluster.next_sent()).answer(error_code=error.errno)
    assert asyncio.get_running_loop().time() >= 0.4


async def test_a_task_that_ends_closes_its_session(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(session_id=5)
    sent = await fetching.cluster.next_sent()
    fetching.state.assign_from_user([])
    sent.answer(session_id=5)
    assert await fetching.cluster.sends_nothing()
    ((node_id, request),) = fetching.cluster.pool.sent_in_passing
    assert isinstance(request, FetchRequest)
    assert (node_id, request.session_id, request.session_epoch) == (1, 5, -1)
    assert (request.topics, request.max_wait_ms) == ([], 0)


async def test_closing_closes_every_session_once(start: Start) -> None:
    fetching = start({0: 1, 1: 2, 2: 3})
    sent = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    sent[1].answer(session_id=5)
    sent[2].answer(session_id=0)  # this broker keeps none
    await fetching.cluster.next_sent()
    fetching.sources.close()
    fetching.sources.close()
    assert [node_id for node_id, _ in fetching.cluster.pool.sent_in_passing] == [1]
