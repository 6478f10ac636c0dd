"""Reading from the closest replica (KIP-392), with leaders and followers that a test writes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable

import pytest

from aiokafka_lite.client.offsets import EARLIEST
from aiokafka_lite.consumer.assignment.cursor import Cursor, PreferredReplica
from aiokafka_lite.consumer.fetching.replicas import LEADERS_ONLY_S
from aiokafka_lite.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    KafkaConnectionError,
    KafkaStorageError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    ReplicaNotAvailableError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.buffers import batch
from tests.support.scripted_sources import Fetching, ScriptedCluster, Sent, answer, view

pytestmark = pytest.mark.virtual_time

RACK = "near"
LEADER, FOLLOWER = 1, 2
OTHER = 3
MAX_AGE_S = 300.0

Start = Callable[..., Fetching]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[Fetching] = []

    def make(leaders: dict[int, int] | None = None, **settings: object) -> Fetching:
        arguments: dict[str, object] = {
            "client_rack": RACK,
            "metadata_max_age_ms": int(MAX_AGE_S * 1000),
            **settings,
        }
        fetching = Fetching(ScriptedCluster(view(leaders or {0: LEADER})), **arguments)
        started.append(fetching)
        fetching.assign(*(leaders or {0: LEADER}))
        return fetching

    yield make
    for fetching in started:
        await fetching.close()


def partition_of(fetching: Fetching, number: int = 0) -> Cursor:
    return fetching.state.partition(TopicPartition("t", number))


async def redirected(fetching: Fetching, *, offset: int = 0) -> Sent:
    """The first request to the follower, after the leader has named it."""
    loop = asyncio.get_running_loop()
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.request.rack_id) == (LEADER, RACK)
    answered_at = loop.time()
    sent.answer(answer(0, preferred=FOLLOWER))
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets, loop.time()) == (FOLLOWER, {0: offset}, answered_at)
    return sent


async def test_without_a_rack_none_is_named(start: Start) -> None:
    fetching = start(client_rack=None)
    assert (await fetching.cluster.next_sent()).request.rack_id == ""


async def test_the_follower_that_the_leader_names_is_read_from(start: Start) -> None:
    fetching = start()
    sent = await redirected(fetching)
    assert sent.leader_epochs == {0: 0}
    sent.answer(answer(0, batch(0, 3)))
    assert await fetching.poll() == {0: [0, 1, 2]}
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets) == (FOLLOWER, {0: 3})
    assert partition_of(fetching).node_id == FOLLOWER


async def test_a_follower_with_the_node_id_0_is_read_from(start: Start) -> None:
    fetching = start()
    fetching.cluster.change(view({0: LEADER}, nodes=(0, LEADER)))
    (await fetching.cluster.next_sent()).answer(answer(0, preferred=0))
    assert (await fetching.cluster.next_sent()).node_id == 0


async def test_the_choice_can_be_told(start: Start) -> None:
    fetching = start()
    assert partition_of(fetching).preferred_replica is None
    await redirected(fetching)
    now = asyncio.get_running_loop().time()
    assert partition_of(fetching).preferred_replica == PreferredReplica(
        node_id=FOLLOWER, leader=LEADER, leader_epoch=0, expires_at=now + MAX_AGE_S
    )


async def test_what_the_leader_has_sent_is_not_dropped(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0, batch(0, 5)))
    assert (await fetching.gets.one(())).offset == 0
    sent = await redirected(fetching, offset=5)
    sent.answer(answer(0, batch(5, 2)))
    assert await fetching.poll() == {0: [1, 2, 3, 4]}
    assert await fetching.poll() == {0: [5, 6]}


async def test_only_the_partition_named_moves(start: Start) -> None:
    fetching = start({0: LEADER, 1: LEADER})
    sent = await fetching.cluster.next_sent()
    sent.answer(answer(0, preferred=FOLLOWER), answer(1, batch(0, 2)), session_id=5)
    assert await fetching.poll() == {1: [0, 1]}
    both = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    assert both[FOLLOWER].offsets == {0: 0}
    assert both[LEADER].offsets == {1: 2}
    assert both[LEADER].forgotten == [0]


async def test_a_leader_that_names_itself_is_read_on(start: Start) -> None:
    fetching = start()
    (await fetching.cluster.next_sent()).answer(answer(0, batch(0, 1), preferred=LEADER))
    assert await fetching.poll() == {0: [0]}
    assert (await fetching.cluster.next_sent()).node_id == LEADER
    assert partition_of(fetching).preferred_replica is None


async def test_a_seek_stays_with_the_follower(start: Start) -> None:
    fetching = start()
    sent = await redirected(fetching)
    fetching.seek(0, 50)
    sent.answer(answer(0, batch(0, 3)))
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets) == (FOLLOWER, {0: 50})


async def test_a_follower_that_has_nothing_new_is_asked_again(start: Start) -> None:
    fetching = start()
    (await redirected(fetching)).answer(answer(0))
    assert (await fetching.cluster.next_sent()).node_id == FOLLOWER


async def test_a_follower_that_sends_older_records_is_left_for_the_leader(start: Start) -> None:
    fetching = start()
    fetching.seek(0, 5)
    (await redirected(fetching, offset=5)).answer(answer(0, batch(0, 5)))
    assert (await fetching.cluster.next_sent()).node_id == LEADER


# --- When the choice ends --------------------------------------------------------------------
async def test_the_leader_is_asked_again_when_the_lease_is_over(start: Start) -> None:
    fetching = start()
    sent = await redirected(fetching)
    await asyncio.sleep(MAX_AGE_S - 1)
    sent.answer(answer(0, high_watermark=1))
    sent = await fetching.cluster.next_sent()
    assert sent.node_id == FOLLOWER
    await asyncio.sleep(2)
    sent.answer()
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets, sent.request.rack_id) == (LEADER, {0: 0}, RACK)
    assert fetching.sources.replicas.lease_ends_at == math.inf
    sent.answer(answer(0, preferred=FOLLOWER))
    assert (await fetching.cluster.next_sent()).node_id == FOLLOWER


async def test_each_lease_ends_at_its_own_time(start: Start) -> None:
    fetching = start({0: LEADER, 1: LEADER})
    (await fetching.cluster.next_sent()).answer(answer(0, preferred=FOLLOWER), answer(1))
    sent = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    await asyncio.sleep(MAX_AGE_S / 2)
    sent[LEADER].answer(answer(1, preferred=FOLLOWER))
    sent[FOLLOWER].answer(answer(0))
    on_both = await fetching.cluster.next_sent()
    assert (on_both.node_id, on_both.offsets) == (FOLLOWER, {0: 0, 1: 0})
    await asyncio.sleep(MAX_AGE_S / 2)
    on_both.answer()
    sent = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    assert sent[LEADER].offsets == {0: 0}
    assert sent[FOLLOWER].offsets == {1: 0}
    await asyncio.sleep(MAX_AGE_S / 2)
    sent[FOLLOWER].answer()
    assert await fetching.cluster.sends_nothing()  # the leader still holds its long poll
    sent[LEADER].answer()
    assert (await fetching.cluster.next_sent()).offsets == {0: 0, 1: 0}


@pytest.mark.parametrize("change", ["new epoch", "new leader", "node gone", "not a replica"])
async def test_the_choice_ends_with_what_it_was_made_for(start: Start, change: str) -> None:
    fetching = start()
    await redirected(fetching)
    leader = OTHER if change == "new leader" else LEADER
    replicas = (LEADER, OTHER) if change == "not a replica" else (LEADER, FOLLOWER, OTHER)
    nodes = (LEADER, OTHER) if change == "node gone" else (LEADER, FOLLOWER, OTHER)
    changed = view({0: leader}, epoch=change in ("new epoch", "new leader"), nodes=replicas)
    fetching.cluster.change(changed._replace(nodes=view({}, nodes=nodes).nodes))
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets) == (leader, {0: 0})
    assert partition_of(fetching).preferred_replica is None


async def test_news_of_other_things_leave_the_choice(start: Start) -> None:
    fetching = start()
    sent = await redirected(fetching)
    fetching.cluster.change(view({0: LEADER}, nodes=(LEADER, FOLLOWER, OTHER)))
    sent.answer(answer(0))
    assert (await fetching.cluster.next_sent()).node_id == FOLLOWER


# --- When the follower fails -----------------------------------------------------------------
@pytest.mark.parametrize(
    "error",
    [
        NotLeaderForPartitionError,
        ReplicaNotAvailableError,
        UnknownTopicOrPartitionError,
        UnknownTopicIdError,
        UnknownLeaderEpochError,
        FencedLeaderEpochError,
        KafkaStorageError,
        OffsetOutOfRangeError,
    ],
)
async def test_after_a_follower_s_error_the_leader_serves_us(
    start: Start, error: type[BrokerResponseError]
) -> None:
    fetching = start()
    (await redirected(fetching)).answer(answer(0, error_code=error.errno))
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets, sent.request.rack_id) == (LEADER, {0: 0}, "")
    assert partition_of(fetching).preferred_replica is None
    sent.answer(answer(0, batch(0, 2)))
    assert await fetching.poll() == {0: [0, 1]}
    await asyncio.sleep(LEADERS_ONLY_S)
    (await fetching.cluster.next_sent()).answer(answer(0))
    assert (await fetching.cluster.next_sent()).request.rack_id == RACK


@pytest.mark.parametrize("policy", ["earliest", "none"])
async def test_a_follower_s_out_of_range_neither_resets_nor_raises(
    start: Start, policy: str
) -> None:
    fetching = start(auto_offset_reset=policy)
    (await redirected(fetching)).answer(answer(0, error_code=OffsetOutOfRangeError.errno))
    sent = await fetching.cluster.next_sent()
    assert await fetching.poll(0.0) == {}
    assert partition_of(fetching).search is None
    assert partition_of(fetching).position == 0
    # The leader's word counts.
    sent.answer(answer(0, error_code=OffsetOutOfRangeError.errno))
    if policy == "none":
        with pytest.raises(OffsetOutOfRangeError):
            await fetching.poll()
    else:
        assert await fetching.poll(0.0) == {}
        search = partition_of(fetching).search
        assert search is not None
        assert search.timestamp == EARLIEST


async def test_a_late_error_of_the_follower_is_no_longer_its_to_give(start: Start) -> None:
    fetching = start({0: LEADER, 1: LEADER}, auto_offset_reset="earliest")
    (await fetching.cluster.next_sent()).answer(answer(0, preferred=FOLLOWER), answer(1))
    sent = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    await asyncio.sleep(MAX_AGE_S)
    sent[LEADER].answer(answer(1))  # the leader's task notices that the lease is over
    again = await fetching.cluster.next_sent()
    assert (again.node_id, again.offsets[0]) == (LEADER, 0)
    sent[FOLLOWER].answer(answer(0, error_code=OffsetOutOfRangeError.errno))
    assert await fetching.cluster.sends_nothing()
    assert partition_of(fetching).search is None
    assert partition_of(fetching).retry_reason == ""


async def test_a_lost_follower_s_partitions_go_to_their_leader_at_once(start: Start) -> None:
    fetching = start({0: LEADER, 1: FOLLOWER}, retry_backoff_ms=60_000)
    loop = asyncio.get_running_loop()
    both = {s.node_id: s for s in [await fetching.cluster.next_sent() for _ in range(2)]}
    both[LEADER].answer(answer(0, preferred=FOLLOWER))
    both[FOLLOWER].answer(answer(1))
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets) == (FOLLOWER, {0: 0, 1: 0})
    lost_at = loop.time()
    sent.response.set_exception(KafkaConnectionError("gone"))
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets, sent.request.rack_id) == (LEADER, {0: 0}, "")
    assert loop.time() - lost_at < 1.0
    # What the lost node leads itself waits for it.
    assert partition_of(fetching, 1).node_id == FOLLOWER


async def test_a_follower_that_metadata_does_not_know_is_not_waited_for(start: Start) -> None:
    fetching = start()
    before = fetching.cluster.invalidations
    (await fetching.cluster.next_sent()).answer(answer(0, preferred=9))
    sent = await fetching.cluster.next_sent()
    assert (sent.node_id, sent.offsets, sent.request.rack_id) == (LEADER, {0: 0}, "")
    assert fetching.cluster.invalidations == before + 1


async def test_a_broker_that_keeps_naming_a_node_nobody_knows_is_not_asked_in_a_hot_loop(
    start: Start,
) -> None:
    fetching = start()
    loop = asyncio.get_running_loop()
    for _ in range(20):
        (await fetching.cluster.next_sent()).answer(answer(0, preferred=9))
    assert loop.time() >= 19 * fetching.config.retry_backoff_s
