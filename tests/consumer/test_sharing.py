"""The partitions of a broker are read in as many fetch sessions as cost least."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer.fetching.sources import CALM_S, Sharing
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside, tuning
from tests.support.buffers import batch
from tests.support.cluster import KafkaHandle
from tests.support.for_each import for_each
from tests.support.rounds import LONG
from tests.support.scripted_sources import Fetching, ScriptedCluster, answer, view
from tests.support.waiting import until

MOST = 32


class Looking:
    """Looks at a sharing each second, of a broker that sends so many answers with records."""

    def __init__(self, partitions: int, *, max_wait_s: float = 0.5) -> None:
        self.sharing = Sharing(MOST, max_wait_s)
        self.partitions = partitions
        self.now = 0.0
        self.answers = 0.0
        self.sharing.look(self.now, 0, partitions)

    def count_after(self, seconds: float, rate: float) -> int:
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            self.answers += rate
            self.sharing.look(self.now, round(self.answers), self.partitions)
        return self.sharing.count


# --- How many ----------------------------------------------------------------------------------
@pytest.mark.parametrize("partitions", [1, 50, 100])
def test_what_one_session_reads_well_has_one_however_much_comes(partitions: int) -> None:
    assert Looking(partitions).count_after(5, 1_000) == 1


@pytest.mark.parametrize(
    ("partitions", "count"), [(1_000, 1), (1_001, 2), (3_000, 3), (90_000, 32)]
)
def test_a_session_has_a_thousand_partitions_at_most_while_nothing_comes(
    partitions: int, count: int
) -> None:
    looking = Looking(partitions)
    assert looking.count_after(5, 0) == count
    assert looking.sharing.share(partitions) * count >= partitions


@for_each([(0.1, 3), (1, 7), (4, 13), (10, 21), (50, 30), (500, 30)])
def test_the_more_often_records_come_the_smaller_are_the_sessions(
    rate: float, cheapest: int
) -> None:
    assert cheapest / 1.5 <= Looking(3_000).count_after(30, rate) <= cheapest


def test_a_longer_poll_makes_sessions_cheaper() -> None:
    assert Looking(3_000, max_wait_s=2.0).count_after(20, 2) > Looking(3_000).count_after(20, 2)


def test_shares_are_even_and_keep_neighbours_together() -> None:
    looking = Looking(3_000)
    assert looking.count_after(2, 500) == 30
    assert looking.sharing.share(3_000) == 100
    assert looking.sharing.share(6_001) == 250


# --- When --------------------------------------------------------------------------------------
def test_more_sessions_are_taken_at_the_first_look_that_finds_them_worth_it() -> None:
    assert Looking(3_000).count_after(1, 500) == 30


def test_fewer_are_taken_only_after_a_while_in_which_half_were_enough() -> None:
    looking = Looking(3_000)
    assert looking.count_after(2, 500) == 30
    assert looking.count_after(CALM_S, 0) == 30
    assert looking.count_after(2, 500) == 30  # that was all
    assert looking.count_after(CALM_S, 0) == 30
    assert looking.count_after(CALM_S, 0) < 10
    assert looking.count_after(2 * CALM_S, 0) == 3


def test_sessions_are_halved_once_exactly_half_have_been_enough_for_a_while() -> None:
    looking = Looking(3_000)
    assert looking.count_after(1, 4) == 6
    assert looking.count_after(CALM_S, 0) == 6
    assert looking.count_after(CALM_S, 0) == 3


def test_a_look_tells_whether_the_sessions_change() -> None:
    sharing = Sharing(MOST, 0.5)
    assert not sharing.look(0.0, 0, 3_000)
    assert sharing.look(1.0, 500, 3_000)
    assert not sharing.look(1_000.0, 500, 3_000)  # few come: from here on half are enough
    assert not sharing.look(1_000.0 + CALM_S - 1.0, 500, 3_000)
    assert sharing.look(1_000.0 + CALM_S, 500, 3_000)
    assert sharing.count == 3


def test_a_rate_that_moves_a_little_moves_no_partition() -> None:
    looking = Looking(3_000)
    looking.count_after(30, 4)
    counts = [looking.count_after(1, rate) for rate in (5, 3, 6, 4, 2) * 50]
    assert sum(count != before for before, count in pairwise(counts)) <= 1


def test_a_rate_that_rises_slowly_moves_partitions_a_few_times() -> None:
    looking = Looking(3_000)
    counts = [looking.count_after(1, 0.02 * second) for second in range(2_000)]
    assert (counts[0], counts[-1]) == (3, 27)  # 30 are the most, and not half as many again
    assert len(set(counts)) <= 7


def test_the_first_look_only_takes_note() -> None:
    sharing = Sharing(MOST, 0.5)
    assert not sharing.look(100.0, 1_000_000, 3_000)
    assert not sharing.look(100.0, 2_000_000, 3_000)


@pytest.mark.virtual_time
async def test_each_broker_has_the_sessions_that_its_own_partitions_are_worth() -> None:
    fetching = Fetching(ScriptedCluster(view({number: 1 + number % 2 for number in range(400)})))
    fetching.assign(*range(400))
    loop = asyncio.get_running_loop()
    read: dict[int, list[int]] = defaultdict(list)
    while loop.time() < 2.5:
        sent = await fetching.cluster.next_sent()
        number, offset = next(iter(sent.offsets.items()))
        sent.answer(answer(number, batch(offset, 1)))
        for partition, offsets in (await fetching.poll()).items():
            read[partition] += offsets
        await asyncio.sleep(0.005)
    cursors = fetching.state.assignment.values()
    counts = Counter(fetching.sources.of(cursor) for cursor in cursors)
    assert sorted((source.node_id, n) for source, n in counts.items() if source) == [
        *[(1, 100)] * 2,
        *[(2, 100)] * 2,
    ]
    assert all(offsets == list(range(len(offsets))) for offsets in read.values())
    await fetching.close()


@pytest.mark.virtual_time
async def test_partitions_that_gather_at_a_broker_by_hints_are_shared_out() -> None:
    fetching = Fetching(
        ScriptedCluster(view({number: 1 + number % 2 for number in range(140)})),
        range(140),
    )
    cluster, loop = fetching.cluster, asyncio.get_running_loop()
    moved = {TopicPartition("t", number): (2, 5) for number in range(0, 140, 2)}
    cluster.apply_leader_hints(moved)
    read = 0
    while loop.time() < 2.5:
        sent = await cluster.next_sent()
        if sent.node_id == 2 and 1 in sent.offsets:
            sent.answer(answer(1, batch(sent.offsets[1], 1)))
            read += len((await fetching.poll())[1])
        await asyncio.sleep(0.05)
    cursors = fetching.state.assignment.values()
    counts = Counter(fetching.sources.of(cursor) for cursor in cursors)
    assert sorted(counts.values()) == [40, 100]
    assert read > 10
    await fetching.close()


@pytest.mark.virtual_time
async def test_partitions_stay_with_their_session_if_that_has_room_for_them() -> None:
    leaders = {number: 1 if number < 100 else 2 for number in range(240)}
    fetching = Fetching(ScriptedCluster(view(leaders)), range(240))
    cluster, loop = fetching.cluster, asyncio.get_running_loop()

    async def read_until(end_s: float) -> list[object]:
        while loop.time() < end_s:
            sent = await cluster.next_sent()
            if 100 in sent.offsets:
                sent.answer(answer(100, batch(sent.offsets[100], 1)))
                await fetching.poll()
            await asyncio.sleep(0.05)
        return [fetching.sources.of(cursor) for cursor in fetching.state.assignment.values()]

    assert sorted(Counter(await read_until(2.5)).values()) == [40, 100, 100]
    cluster.apply_leader_hints({TopicPartition("t", number): (2, 5) for number in range(100)})
    before = await read_until(2.9)
    assert sorted(Counter(before).values()) == [100, 140]
    after = await read_until(3.5)
    assert sorted(Counter(after).values()) == [40, 100, 100]
    assert sum(one is not other for one, other in zip(before, after, strict=True)) == 40
    await fetching.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("partitions", "looks", "end"), [(100, 0, "closed"), (101, 3, "closed"), (101, 3, "failed")]
)
async def test_a_broker_of_which_many_partitions_are_read_is_looked_at_once_a_second(
    monkeypatch: pytest.MonkeyPatch, partitions: int, looks: int, end: str
) -> None:
    looked_at: list[float] = []
    look = Sharing.look

    def note(sharing: Sharing, now: float, answers: int, partitions: int) -> bool:
        looked_at.append(now)
        return look(sharing, now, answers, partitions)

    monkeypatch.setattr(Sharing, "look", note)
    fetching = Fetching(
        ScriptedCluster(view(dict.fromkeys(range(partitions), 1))), range(partitions)
    )
    for _ in range(3):
        fetching.cluster.change(fetching.cluster.view)
    await asyncio.sleep(3.5)
    assert looked_at == pytest.approx([1.0, 2.0, 3.0][:looks], abs=1e-3)
    if end == "failed":
        sent = await fetching.cluster.next_sent()
        sent.response.set_exception(KafkaError("no common version"))
    else:
        await fetching.close()
    await asyncio.sleep(1.0)
    assert len(looked_at) == looks
    await fetching.close()


async def test_a_thousand_partitions_are_read_by_one_session() -> None:
    fetching = Fetching(ScriptedCluster(view(dict.fromkeys(range(1_000), 1))), range(1_000))
    assert len((await fetching.cluster.next_sent()).offsets) == 1_000
    assert await fetching.cluster.sends_nothing()
    await fetching.close()


@pytest.mark.parametrize(("fetch_bytes", "counts"), [(1_000, [1, 1_000]), (1_001, [1_001])])
async def test_a_session_is_added_only_if_each_has_its_part_of_the_memory(
    fetch_bytes: int, counts: list[int]
) -> None:
    fetching = Fetching(
        ScriptedCluster(view(dict.fromkeys(range(1_001), 1))),
        range(1_001),
        max_buffered_bytes=4_000,
        max_partition_fetch_bytes=fetch_bytes,
    )
    await fetching.cluster.next_sent()
    sources = Counter(fetching.sources.of(each) for each in fetching.state.assignment.values())
    assert sorted(sources.values()) == counts
    await fetching.close()


# --- A consumer --------------------------------------------------------------------------------
@pytest.mark.real_if_long
async def test_nothing_is_lost_or_repeated_while_partitions_move_between_sessions(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.share_out_often(monkeypatch)
    count = 400 if LONG else 200
    topic = await kafka.create_topic(partitions=count)
    read: dict[int, list[int]] = defaultdict(list)
    session_counts: list[int] = []
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
    )

    def note_sessions() -> None:
        cursors = inside.assignment(consumer).assignment.values()
        session_counts.append(len({cursor.source for cursor in cursors}))

    async def read_all() -> None:
        async for record in consumer:
            read[record.partition].append(record.offset)

    async with consumer, timeout(60):
        reading = asyncio.create_task(read_all())
        for again in range(3):
            for number in range(count // 2):  # they come often
                await kafka.produce(topic, number, [(b"k", b"v")])
                note_sessions()
            await until(lambda: sum(map(len, read.values())) == count // 2 * len(read[0]))
            assert len(read[0]) == again + 1
            await asyncio.sleep(1.0)  # and nothing comes
            note_sessions()
        reading.cancel()
    assert read == {number: [0, 1, 2] for number in range(count // 2)}
    assert session_counts[0] == session_counts[-1] == 1
    # On a busy machine records come less often, and need fewer sessions.
    assert 1 < max(session_counts) <= count // 100
