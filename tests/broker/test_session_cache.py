"""How many fetch sessions are kept, and which must go."""

from __future__ import annotations

import random

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.fetch_sessions import (
    CachedPartition,
    FetchContext,
    FetchKey,
    FetchSessionCache,
)
from aiokafka_lite.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch, NoError
from aiokafka_lite.protocol.messages.fetch import FetchPartition, PartitionData

EVICTION_S = 120.0


def targets(count: int) -> list[CachedPartition]:
    return [CachedPartition(FetchKey("t", n), FetchPartition()) for n in range(count)]


class Clients:
    """Opens and uses sessions of a cache at given times."""

    def __init__(self, capacity: int) -> None:
        self.cache = FetchSessionCache(capacity, EVICTION_S, random.Random(1))

    def open(self, size: int, now: float) -> int:
        context = self.cache.context(0, 0, targets(size), [], uses_topic_ids=False, now=now)
        return self._answer(context)

    def use(self, session_id: int, epoch: int, now: float) -> type[Exception]:
        context = self.cache.context(session_id, epoch, [], [], uses_topic_ids=False, now=now)
        self._answer(context)
        return context.error

    @staticmethod
    def _answer(context: FetchContext) -> int:
        results = [(t, PartitionData(partition_index=t.key.partition)) for t in context.targets]
        session_id, _ = context.to_send(results)
        return session_id


def test_a_cache_for_no_sessions_gives_none_but_an_answer() -> None:
    clients = Clients(0)
    assert clients.open(3, now=0) == 0
    assert clients.open(3, now=2 * EVICTION_S) == 0


def test_full_cache_gives_no_session_but_an_answer() -> None:
    clients = Clients(2)
    assert all(clients.open(3, now=0) for _ in range(2))
    assert clients.open(3, now=1) == 0
    assert len(clients.cache) == 2


def test_session_not_used_for_long_makes_room() -> None:
    clients = Clients(2)
    old, used = clients.open(3, now=0), clients.open(3, now=0)
    assert clients.use(used, 1, now=EVICTION_S) is NoError
    assert clients.open(1, now=EVICTION_S) == 0
    new = clients.open(1, now=EVICTION_S + 1)
    assert new != 0
    assert clients.use(old, 1, now=EVICTION_S + 2) is FetchSessionIdNotFound
    assert clients.use(used, 2, now=EVICTION_S + 2) is NoError


def test_larger_session_takes_the_place_of_the_smallest_old_one() -> None:
    clients = Clients(3)
    sizes = {size: clients.open(size, now=0) for size in (5, 2, 9)}
    for session in sizes.values():
        clients.use(session, 1, now=EVICTION_S)
    assert clients.open(2, now=EVICTION_S + 1) == 0
    assert clients.open(3, now=EVICTION_S + 1) != 0
    assert clients.use(sizes[2], 2, now=EVICTION_S + 2) is FetchSessionIdNotFound
    assert clients.use(sizes[5], 2, now=EVICTION_S + 2) is NoError
    # The new one is too young to go, whatever its size.
    assert clients.open(5, now=EVICTION_S + 2) == 0
    for session in (sizes[5], sizes[9]):
        clients.use(session, 3 if session == sizes[5] else 2, now=2 * EVICTION_S)
    assert clients.open(4, now=2 * EVICTION_S + 1) == 0


def test_epoch_starts_over_at_1_behind_the_last() -> None:
    clients = Clients(1)
    session = clients.cache.create(1, False, 0)
    assert session is not None
    (target,) = targets(1)
    session.targets[target.key] = target
    session.epoch = 2**31 - 1
    assert clients.use(session.id, 2**31 - 1, now=1) is NoError
    assert clients.use(session.id, 1, now=2) is NoError


def test_partition_that_got_data_goes_to_the_end_of_the_line() -> None:
    cache = FetchSessionCache(1, EVICTION_S, random.Random(1))
    full = cache.context(0, 0, targets(3), [], uses_topic_ids=False, now=0)
    empty = [(t, PartitionData(partition_index=t.key.partition)) for t in full.targets]
    session_id, _ = full.to_send(empty)
    context = cache.context(session_id, 1, [], [], uses_topic_ids=False, now=1)
    results = [(t, PartitionData(partition_index=t.key.partition)) for t in context.targets]
    results[0][1].records = b"records"
    results[1][1].high_watermark = 7
    _, sent = context.to_send(results)
    assert [key.partition for key, _ in sent] == [0, 1]
    after = cache.context(session_id, 2, [], [], uses_topic_ids=False, now=2)
    assert [target.key.partition for target in after.targets] == [1, 2, 0]


def test_only_news_are_sent() -> None:
    target = targets(1)[0]
    told = PartitionData(partition_index=0, high_watermark=5, log_start_offset=2)
    target.note_sent(told)
    assert not target.is_news(told)
    for name, value in [
        ("records", b"x"),
        ("error_code", 1),
        ("high_watermark", 6),
        ("log_start_offset", 3),
        ("preferred_read_replica", 0),
    ]:
        data = PartitionData(partition_index=0, high_watermark=5, log_start_offset=2)
        setattr(data, name, value)
        assert target.is_news(data), name
    data = PartitionData(partition_index=0, high_watermark=5, log_start_offset=2)
    data.diverging_epoch.epoch = 0
    assert target.is_news(data)


def test_what_was_sent_is_no_news_the_next_time() -> None:
    cache = FetchSessionCache(1, EVICTION_S, random.Random(1))
    session_id, _ = cache.context(0, 0, [], [], uses_topic_ids=False, now=0).to_send([])
    context = cache.context(session_id, 1, targets(1), [], uses_topic_ids=False, now=1)
    results = [(t, PartitionData(partition_index=0, high_watermark=5)) for t in context.targets]
    assert len(context.to_send(results)[1]) == 1
    again = cache.context(session_id, 2, [], [], uses_topic_ids=False, now=2)
    assert again.to_send(results) == (session_id, [])


def test_request_that_another_of_its_session_has_overtaken_is_out_of_step() -> None:
    cache = FetchSessionCache(1, EVICTION_S, random.Random(1))
    full = cache.context(0, 0, targets(1), [], uses_topic_ids=False, now=0)
    results = [(t, PartitionData(partition_index=0)) for t in full.targets]
    session_id, _ = full.to_send(results)
    late, _ = (
        cache.context(session_id, epoch, [], [], uses_topic_ids=False, now=1) for epoch in (1, 2)
    )
    assert late.to_send(results) == (session_id, [])
    assert late.error is InvalidFetchSessionEpoch


async def test_node_that_was_restarted_has_no_sessions() -> None:
    async with Broker() as broker:
        cache = broker.node.fetch_sessions
        cache.context(0, 0, targets(1), [], uses_topic_ids=False, now=0).to_send([])
        assert len(cache) == 1
        await broker.stop_node(broker.node.id)
        await broker.start_node(broker.node.id)
        assert not len(cache)
