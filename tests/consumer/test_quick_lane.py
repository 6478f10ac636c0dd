"""What becomes fetchable beside a long poll is asked for at once, on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.consumer.assignment.cursor import Place
from aiokafka_lite.consumer.fetching.answer import SETTLED_AT_ONCE
from aiokafka_lite.consumer.fetching.quick_lane import FIRST_PAUSE_S, MOST_AT_ONCE, OVERDUE_S
from aiokafka_lite.consumer.fetching.source import FETCH_STALL_S, Source, Step
from aiokafka_lite.errors import (
    KafkaConnectionError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    UnknownError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.buffers import batch, with_unknown_codec
from tests.support.scripted_sources import Fetching, ScriptedCluster, Sent, answer, view

Start = Callable[..., Fetching]

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[Fetching] = []

    def make(leaders: dict[int, int] | None = None, **settings: object) -> Fetching:
        fetching = Fetching(ScriptedCluster(view(leaders or {0: 1, 1: 1})), **settings)
        fetching.cluster.pool.has_quick_lane = True
        started.append(fetching)
        fetching.assign(*(leaders or {0: 1, 1: 1}), offset=100)
        return fetching

    yield make
    for fetching in started:
        await fetching.close()


async def beside_a_long_poll(fetching: Fetching) -> Sent:
    """Come to where the broker holds back a request for all partitions: they have nothing new."""
    sent = await fetching.cluster.next_sent()
    sent.answer(*(answer(number) for number in sent.offsets), session_id=5)
    return await fetching.cluster.next_sent()


async def sought(fetching: Fetching, offsets: dict[int, int]) -> Sent:
    """Seek beside a long poll, and return what is asked at once."""
    await beside_a_long_poll(fetching)
    for number, offset in offsets.items():
        fetching.seek(number, offset)
    return await fetching.cluster.next_sent_quickly()


async def asks_nothing_quickly(fetching: Fetching) -> bool:
    return await fetching.cluster.sends_nothing() and not fetching.cluster.pool.sent_quickly


def count_looks(monkeypatch: pytest.MonkeyPatch, *, at_most: int) -> list[float]:
    """Return when sources look for something to ask for, and end what does nothing else."""
    looks: list[float] = []
    advance = Source.advance

    def counted(self: Source) -> Step:
        looks.append(asyncio.get_running_loop().time())
        assert len(looks) <= at_most, "it looks again and again"
        return advance(self)

    monkeypatch.setattr(Source, "advance", counted)
    return looks


# --- What is asked at once -------------------------------------------------------------------
async def test_where_an_application_seeks_to_is_asked_for_beside_the_long_poll(
    start: Start,
) -> None:
    fetching = start()
    quick = await sought(fetching, {0: 7})
    assert quick.offsets == {0: 7}
    assert quick.session == (0, -1)  # the broker keeps no session of it
    assert quick.request.max_wait_ms == 0
    quick.answer(answer(0, records := batch(7, 3)))
    await asyncio.sleep(0)
    assert fetching.budget.buffered_bytes == len(records)
    assert await fetching.poll() == {0: [7, 8, 9]}
    assert not fetching.cluster.sent  # the long poll is still held back


async def test_what_is_resumed_and_what_is_assigned_is_asked_for_beside_the_long_poll(
    start: Start,
) -> None:
    fetching = start()
    partition = fetching.state.partition(TopicPartition("t", 0))
    fetching.state.pause(partition)
    await beside_a_long_poll(fetching)
    fetching.state.resume(partition)
    quick = await fetching.cluster.next_sent_quickly()
    assert quick.offsets == {0: 100}
    quick.answer(answer(0, batch(100, 1)))
    assert await fetching.poll() == {0: [100]}


@pytest.mark.parametrize("retry_backoff_ms", [10, 350])
async def test_a_partition_whose_leader_moved_is_asked_for_beside_the_long_poll(
    start: Start, retry_backoff_ms: int
) -> None:
    fetching = start({0: 1, 1: 2}, retry_backoff_ms=retry_backoff_ms)
    sent = {each.node_id: each for each in [await fetching.cluster.next_sent() for _ in range(2)]}
    for number in (0, 1):
        sent[number + 1].answer(answer(number), session_id=5)
    polls = {each.node_id: each for each in [await fetching.cluster.next_sent() for _ in range(2)]}
    polls[1].answer(answer(0, error_code=NotLeaderForPartitionError.errno))
    assert await fetching.cluster.sends_nothing()
    fetching.cluster.change(view({0: 2, 1: 2}, epoch=1))
    quick = await fetching.cluster.next_sent_quickly()  # once its back-off is over
    assert (quick.node_id, quick.offsets) == (2, {0: 100})


async def test_a_partition_that_goes_on_having_records_is_asked_for_again_at_once(
    start: Start,
) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    await beside_a_long_poll(fetching)
    fetching.seek(0, 7)
    began_at = loop.time()
    for offset in (7, 10, 13):
        quick = await fetching.cluster.next_sent_quickly()
        assert quick.offsets == {0: offset}
        quick.answer(answer(0, batch(offset, 3)))
        assert await fetching.poll() == {0: [offset, offset + 1, offset + 2]}
    assert loop.time() == began_at


async def test_what_waits_for_an_answer_already_is_not_asked_for_twice(start: Start) -> None:
    fetching = start()
    long_poll = await beside_a_long_poll(fetching)
    fetching.seek(0, 7)
    quick = await fetching.cluster.next_sent_quickly()
    long_poll.answer(answer(1, batch(100, 1)), session_id=5)
    assert await fetching.poll() == {1: [100]}
    following = await fetching.cluster.next_sent()
    assert (following.offsets, following.forgotten) == ({1: 101}, [0])
    quick.answer(answer(0))
    await asyncio.sleep(0)
    following.answer(session_id=5)
    assert (await fetching.cluster.next_sent()).offsets == {0: 7}  # with the others again


async def test_a_request_whose_answer_is_on_its_way_is_not_run_ahead_of(start: Start) -> None:
    fetching = start()
    sent = await fetching.cluster.next_sent()
    sent.answer(answer(0, batch(100, 1), high_watermark=900), answer(1), session_id=5)
    assert await fetching.poll() == {0: [100]}
    sent = await fetching.cluster.next_sent()
    fetching.seek(1, 7)
    assert await asks_nothing_quickly(fetching)
    cursors = fetching.state.assignment.values()
    assert [fetching.sources.is_asking_for(cursor) for cursor in cursors] == [True, False]
    sent.answer(answer(0, batch(101, 1), high_watermark=900), session_id=5)
    assert await fetching.poll() == {0: [101]}
    assert (await fetching.cluster.next_sent()).offsets == {0: 102, 1: 7}


async def test_no_quick_lane_is_opened_where_all_is_asked_for(start: Start) -> None:
    fetching = start()
    await beside_a_long_poll(fetching)
    await asyncio.sleep(5.0)
    assert await asks_nothing_quickly(fetching)
    assert not fetching.cluster.pool.connected


async def test_more_than_a_requests_worth_is_asked_for_in_turns(start: Start) -> None:
    numbers = range(MOST_AT_ONCE + 10)
    fetching = start(dict.fromkeys(numbers, 1))
    await beside_a_long_poll(fetching)
    for number in numbers:
        fetching.seek(number, 7)
    first = await fetching.cluster.next_sent_quickly()
    first.answer(*(answer(number) for number in first.offsets))
    second = await fetching.cluster.next_sent_quickly()
    assert len(first.offsets) == MOST_AT_ONCE
    assert first.offsets | second.offsets == dict.fromkeys(numbers, 7)


async def test_what_the_answer_had_no_room_for_is_asked_for_again_at_once(start: Start) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    quick = await sought(fetching, {0: 7, 1: 7})
    began_at = loop.time()
    poll = asyncio.ensure_future(fetching.poll())
    await asyncio.sleep(0)
    quick.answer(answer(0, batch(7, 1)), answer(1))
    again = await fetching.cluster.next_sent_quickly()
    assert again.offsets[1] == 7
    assert loop.time() == began_at
    assert await poll == {0: [7]}


async def test_nothing_is_asked_for_while_records_wait_for_the_application(start: Start) -> None:
    fetching = start()
    quick = await sought(fetching, {0: 7})
    quick.answer(answer(0, batch(7, 3)))
    await fetching.cluster.settle()
    fetching.seek(1, 9)
    assert await asks_nothing_quickly(fetching)
    assert await fetching.poll() == {0: [7, 8, 9]}
    assert (await fetching.cluster.next_sent_quickly()).offsets == {0: 10, 1: 9}


async def test_once_a_read_takes_records_the_rest_is_asked_for_after_a_throttle(
    start: Start,
) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    quick = await sought(fetching, {0: 7, 1: 9})
    quick.answer(answer(0, batch(7, 3) + with_unknown_codec(batch(10, 2))))
    await fetching.cluster.settle()
    until = fetching.cluster.pool.muted_until[1] = loop.time() + 0.1
    assert (await fetching.gets.one(())).offset == 7
    quick = await fetching.cluster.next_sent_quickly()
    assert (quick.offsets[1], loop.time()) == (9, pytest.approx(until, abs=1e-3))


# --- Nothing new -----------------------------------------------------------------------------
async def test_what_has_nothing_new_is_asked_for_after_pauses_that_double(start: Start) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    long_poll = await beside_a_long_poll(fetching)
    for offset in (7, 9, 9):  # beside each long poll the pauses begin anew
        fetching.seek(0, offset)
        asked_at = []
        for _ in range(5):
            quick = await fetching.cluster.next_sent_quickly()
            asked_at.append(loop.time())
            quick.answer(answer(0))
        pauses = [after - before for before, after in pairwise(asked_at)]
        assert pauses == pytest.approx([FIRST_PAUSE_S * 2**n for n in range(4)], abs=1e-3)
        long_poll.answer(session_id=5)
        long_poll = await fetching.cluster.next_sent()
        assert long_poll.offsets == {0: offset}
    await asyncio.sleep(1.0)
    assert await asks_nothing_quickly(fetching)


async def test_another_partition_need_not_wait_for_the_pause(start: Start) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    await beside_a_long_poll(fetching)
    fetching.seek(0, 7)
    for _ in range(4):
        (await fetching.cluster.next_sent_quickly()).answer(answer(0))
    assert await fetching.cluster.sends_nothing()
    began_at = loop.time()
    fetching.seek(1, 9)
    quick = await fetching.cluster.next_sent_quickly()
    assert (quick.offsets, loop.time()) == ({1: 9}, began_at)


async def test_a_pause_that_ends_while_another_partition_is_asked_for_waits_for_the_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    await beside_a_long_poll(fetching)
    fetching.seek(0, 7)
    (await fetching.cluster.next_sent_quickly()).answer(answer(0))
    await fetching.cluster.settle()
    fetching.seek(1, 9)
    quick = await fetching.cluster.next_sent_quickly()
    assert quick.offsets == {1: 9}
    looks = count_looks(monkeypatch, at_most=20)
    await asyncio.sleep(20 * FIRST_PAUSE_S)
    assert looks.count(loop.time()) == 0
    assert len(looks) <= 2
    quick.answer(answer(1))
    assert (await fetching.cluster.next_sent_quickly()).offsets == {0: 7}
    assert loop.time() == looks[-1]


@pytest.mark.parametrize("error_code", [0, OffsetNotAvailableError.errno])
async def test_a_seek_while_it_is_asked_for_is_asked_for_once_that_is_answered(
    start: Start, error_code: int
) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    quick = await sought(fetching, {0: 7})
    fetching.seek(0, 50)
    assert await asks_nothing_quickly(fetching)
    began_at = loop.time()
    quick.answer(answer(0, batch(7, 3), error_code=error_code))
    again = await fetching.cluster.next_sent_quickly()
    assert (again.offsets, loop.time()) == ({0: 50}, began_at)
    again.answer(answer(0, batch(50, 1)))
    assert await fetching.poll() == {0: [50]}


async def test_a_backoff_that_ends_with_the_long_poll_is_left_to_the_next_one(
    start: Start,
) -> None:
    fetching = start(retry_backoff_ms=100)
    long_poll = await beside_a_long_poll(fetching)
    long_poll.answer(answer(0, error_code=OffsetNotAvailableError.errno), session_id=5)
    short_poll = await fetching.cluster.next_sent()
    await asyncio.sleep(short_poll.request.max_wait_ms / 1000 + 0.01)
    assert await asks_nothing_quickly(fetching)
    short_poll.answer(session_id=5)
    assert (await fetching.cluster.next_sent()).offsets == {0: 100}


# --- What goes wrong -------------------------------------------------------------------------
async def test_a_quick_answer_that_does_not_come_is_left_to_the_long_poll(start: Start) -> None:
    fetching = start()
    long_poll = await beside_a_long_poll(fetching)
    fetching.seek(0, 7)
    quick = await fetching.cluster.next_sent_quickly()
    await asyncio.sleep(OVERDUE_S + 0.1)
    long_poll.answer(session_id=5)
    assert (await fetching.cluster.next_sent()).offsets == {0: 7}
    assert quick.response.cancelled()


async def test_a_connection_that_cannot_be_opened_leaves_all_to_the_long_poll(
    start: Start,
) -> None:
    fetching = start()
    fetching.cluster.pool.has_quick_lane = False
    long_poll = await beside_a_long_poll(fetching)
    fetching.seek(0, 7)
    await asyncio.sleep(0.4)
    attempts = fetching.cluster.pool.connected
    assert set(attempts) == {(1, Lane.QUICK)}
    assert len(attempts) < 10
    long_poll.answer(session_id=5)
    assert (await fetching.cluster.next_sent()).offsets == {0: 7}


async def test_a_refused_quick_request_is_not_repeated_in_a_hurry(start: Start) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    await beside_a_long_poll(fetching)
    fetching.seek(0, 7)
    began_at = loop.time()
    for _ in range(4):
        quick = await fetching.cluster.next_sent_quickly()
        quick.answer(error_code=UnknownError.errno)
    assert loop.time() - began_at >= 3 * FIRST_PAUSE_S


async def test_a_late_quick_answer_leaves_a_partition_alone_that_has_another_leader(
    start: Start,
) -> None:
    fetching = start()
    quick = await sought(fetching, {0: 7})
    fetching.cluster.change(view({0: 2, 1: 1}, epoch=1))
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets) == (2, {0: 7})
    quick.answer(answer(0, batch(7, 3)))
    assert await asks_nothing_quickly(fetching)
    assert await fetching.poll(0) == {}
    assert fetching.state.partition(TopicPartition("t", 0)).place is Place.IN_FLIGHT
    sent.answer(answer(0, batch(7, 1)))
    assert await fetching.poll() == {0: [7]}


async def test_a_connection_that_closes_as_it_is_asked_is_tried_again_after_a_pause(
    start: Start,
) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    await beside_a_long_poll(fetching)
    held = fetching.budget.used_bytes
    fetching.cluster.pool.refusals.append(KafkaConnectionError("it is closing"))
    fetching.seek(0, 7)
    assert await asks_nothing_quickly(fetching)
    assert fetching.budget.used_bytes == held
    began_at = loop.time()
    assert (await fetching.cluster.next_sent_quickly()).offsets == {0: 7}
    assert loop.time() - began_at == pytest.approx(FIRST_PAUSE_S, abs=1e-3)


async def test_what_there_is_no_room_for_is_asked_for_after_a_pause(start: Start) -> None:
    fetching = start(max_buffered_bytes=4_000, max_partition_fetch_bytes=500)
    loop = asyncio.get_running_loop()
    await beside_a_long_poll(fetching)
    held = fetching.budget.reserve(4_000, 1)
    assert held is not None
    fetching.seek(0, 7)
    assert await asks_nothing_quickly(fetching)
    held.release()
    began_at = loop.time()
    assert (await fetching.cluster.next_sent_quickly()).offsets == {0: 7}
    assert loop.time() - began_at == pytest.approx(FIRST_PAUSE_S, abs=1e-3)


async def test_a_lost_quick_answer_is_counted_and_asked_for_after_a_pause(start: Start) -> None:
    fetching = start()
    counts = fetching.sources.counts[1]
    quick = await sought(fetching, {0: 7})
    fetch_count = counts.fetch_count
    quick.response.set_exception(KafkaConnectionError("gone"))
    quick = await fetching.cluster.next_sent_quickly()
    assert quick.offsets == {0: 7}
    assert (counts.fetch_count, counts.failure_count) == (fetch_count + 1, 1)
    quick.answer(answer(0, batch(7, 1)))
    assert await fetching.poll() == {0: [7]}
    assert (counts.fetch_count, counts.failure_count) == (fetch_count + 2, 1)


async def test_a_quick_answer_that_names_very_many_others_is_settled_whole(start: Start) -> None:
    fetching = start()
    quick = await sought(fetching, {0: 7})
    quick.answer(*(answer(9) for _ in range(2 * SETTLED_AT_ONCE)), answer(0, batch(7, 1)))
    assert await fetching.poll() == {0: [7]}


async def test_a_bug_met_in_a_quick_answer_is_raised_by_the_gets(start: Start) -> None:
    fetching = start()
    quick = await sought(fetching, {0: 7})
    quick.response.set_exception(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        await fetching.poll()


async def test_an_error_of_one_partition_backs_that_one_off(start: Start) -> None:
    fetching = start(retry_backoff_ms=100)
    loop = asyncio.get_running_loop()
    quick = await sought(fetching, {0: 7, 1: 9})
    failed_at = loop.time()
    quick.answer(answer(0, error_code=OffsetNotAvailableError.errno), answer(1, batch(9, 1)))
    assert await fetching.poll() == {1: [9]}
    while 0 not in (quick := await fetching.cluster.next_sent_quickly()).offsets:
        quick.answer(*(answer(number) for number in quick.offsets))
    assert 0.1 <= loop.time() - failed_at < 0.2


async def test_an_answer_larger_than_there_is_room_for_is_claimed_once(start: Start) -> None:
    fetching = start(max_buffered_bytes=4_000, max_partition_fetch_bytes=500)
    long_poll = await beside_a_long_poll(fetching)
    fetching.seek(0, 7)
    quick = await fetching.cluster.next_sent_quickly()
    held = fetching.budget.reserve(1_500, 1)  # by what others have buffered
    assert held is not None
    held.keep(1_500)
    quick.answer(answer(0, batch(7, 1, size=4_500)))
    await asyncio.sleep(0.3)
    assert await asks_nothing_quickly(fetching)
    held.release()
    long_poll.answer(session_id=5)
    assert (await fetching.cluster.next_sent()).offsets == {0: 7}


async def test_a_consumer_that_stops_asks_for_nothing(start: Start) -> None:
    fetching = start()
    quick = await sought(fetching, {0: 7})
    fetching.sources.close()
    await fetching.scope.close()
    fetching.seek(0, 50)
    assert await asks_nothing_quickly(fetching)
    assert quick.response.cancelled()
    assert fetching.budget.used_bytes == 0


async def test_memory_is_given_back_whatever_the_answer_says(start: Start) -> None:
    fetching = start()
    await beside_a_long_poll(fetching)
    held = fetching.budget.used_bytes
    for number, settled in enumerate(
        ([answer(0)], [answer(0, error_code=OffsetNotAvailableError.errno)], [])
    ):
        fetching.seek(0, 7 + number)
        quick = await fetching.cluster.next_sent_quickly()
        assert fetching.budget.used_bytes > held
        fetching.seek(1, 40 + number)  # void what follows, too
        quick.answer(*settled)
        again = await fetching.cluster.next_sent_quickly()
        again.answer(answer(1))
        for _ in range(5):
            await asyncio.sleep(0)
    assert FETCH_STALL_S > OVERDUE_S
    assert fetching.budget.used_bytes == held
