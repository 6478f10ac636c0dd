"""What a member sends to the leaders of its partitions, and what it makes of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite.consumer.membership.grouped import LEAVE_MAX_S
from aiokafka_lite.consumer.sharing.demand import TURN_S
from aiokafka_lite.consumer.sharing.leases import (
    NOT_RENEWED,
    RENEWED_AT_SHARE,
    AckType,
    LeaseState,
    RecordLease,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    FencedLeaderEpochError,
    GroupAuthorizationFailedError,
    InvalidRecordStateError,
    InvalidShareSessionEpochError,
    KafkaProtocolError,
    NotLeaderForPartitionError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicIdError,
)
from aiokafka_lite.protocol.messages import share, share_acknowledge
from tests.consumer.sharing.scripted import (
    LOCK_MS,
    Acknowledge,
    Fetch,
    Scene,
    acquired,
)
from tests.support.scripted_sources import TOPIC_ID, view

pytestmark = pytest.mark.virtual_time
GAP, ACCEPT, RELEASE, REJECT, RENEW = AckType
LOCK_S = LOCK_MS / 1000


@asynccontextmanager
async def scene(leaders: dict[int, int] | None = None, *, free: int = 10) -> AsyncIterator[Scene]:
    made = Scene({0: 1} if leaders is None else leaders, free=free)
    yield made
    made.scope.raise_if_failed()
    await made.scope.close()


def accept(made: Scene, leases: Iterable[RecordLease]) -> None:
    for lease in leases:
        assert made.leasing.settle(lease, ACCEPT)


# --- Sessions ---------------------------------------------------------------------------------
async def test_first_fetch_opens_a_session_and_later_ones_name_only_changes() -> None:
    async with scene() as made:
        first = await made.sent()
        assert (first.epoch, first.request.topics[0].topic_id) == (0, TOPIC_ID)
        first.answer()
        second = await made.sent()
        assert (second.epoch, second.request.topics) == (1, [])


async def test_acknowledgements_ride_on_a_fetch_but_not_on_the_first_of_a_session() -> None:
    async with scene() as made:
        leases = await made.acquire((0, 3))
        accept(made, leases)
        (await made.sent()).answer()
        sent = await made.sent()
        assert isinstance(sent.request, Fetch)
        assert (sent.epoch, sent.acknowledged) == (2, [(0, 3, ACCEPT)])
        made.cluster.pool.connections[1].cut()
        again = await made.sent()
        assert (again.epoch, again.acknowledged) == (0, [])


@pytest.mark.parametrize(
    "error",
    [ShareSessionNotFoundError, InvalidShareSessionEpochError, ShareSessionLimitReachedError],
)
async def test_refused_session_fails_pending_acknowledgements_and_opens_another(
    error: type[BrokerResponseError],
) -> None:
    async with scene(free=20) as made:
        leases = await made.acquire((0, 9))
        accept(made, leases[:3])
        connection = made.cluster.pool.connections[1]
        (await made.sent()).answer(error_code=error.errno)
        again = await made.sent()
        assert (again.epoch, again.acknowledged) == (0, [])
        assert again.request.topics
        assert connection.error is not None  # so that the broker releases its locks
        assert made.lost_offsets == list(range(10))
        assert {lease.state for lease in leases} == {LeaseState.LOST}


async def test_answer_that_breaks_the_protocol_ends_the_session() -> None:
    async with scene() as made:
        sent = await made.sent()
        connection = made.cluster.pool.connections[1]
        sent.answer(acquired((5, 3), offsets=[5]))
        assert (await made.sent()).epoch == 0
        assert connection.error is not None
        (source,) = made.leasing.copy_sources()
        assert source.failure is not None
        assert isinstance(source.failure[0], KafkaProtocolError)


async def test_failures_are_retried_with_pauses_on_one_connection() -> None:
    async with scene() as made:
        loop, times = asyncio.get_running_loop(), list[float]()
        for _ in range(4):
            sent = await made.sent()
            times.append(loop.time())
            sent.answer(error_code=ShareSessionNotFoundError.errno)
            assert made.cluster.pool.connections[1].error is None  # nothing was locked
        assert times[1] - times[0] > 0.05
        assert times[3] - times[2] > times[1] - times[0]


async def test_acknowledgement_that_cannot_be_stored_yet_is_sent_again_with_pauses() -> None:
    async with scene(free=1) as made:
        accept(made, await made.acquire((0, 0)))
        loop, times = asyncio.get_running_loop(), list[float]()
        error = CoordinatorLoadInProgressError.errno
        for _ in range(3):
            sent = await made.sent()
            assert sent.acknowledged == [(0, 0, ACCEPT)]
            times.append(loop.time())
            sent.answer(share_acknowledge.PartitionData(partition_index=0, error_code=error))
        (await made.sent()).answer()
        assert min(times[1] - times[0], times[2] - times[1]) > 0.05
        assert not made.lost


async def test_refused_acknowledgements_are_divided_without_a_pause() -> None:
    async with scene(free=2) as made:
        accept(made, await made.acquire((0, 1)))
        before = asyncio.get_running_loop().time()
        error = InvalidRecordStateError.errno
        for offsets in ((0, 1), (0, 0)):
            sent = await made.sent()
            assert sent.acknowledged == [(*offsets, ACCEPT)]
            sent.answer(share_acknowledge.PartitionData(partition_index=0, error_code=error))
        assert (await made.sent()).acknowledged == [(1, 1, ACCEPT)]
        assert asyncio.get_running_loop().time() - before < 0.05


@pytest.mark.parametrize(
    ("error", "is_raised"),
    [(GroupAuthorizationFailedError, True), (ShareSessionLimitReachedError, False)],
)
async def test_refused_request_is_a_failure_until_a_good_answer(
    error: type[BrokerResponseError], is_raised: bool
) -> None:
    async with scene() as made:
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            (await made.sent()).answer(error_code=error.errno)
        again = await made.sent()
        (source,) = made.leasing.copy_sources()
        assert source.failure is not None
        assert (type(source.failure[0]), source.failure[1]) == (error, began)
        assert [type(each) for each in made.errors] == [error] * 2 * is_raised
        again.answer()
        await made.sent()
        assert source.failure is None


# --- One request at a time --------------------------------------------------------------------
async def test_one_request_to_a_node_is_in_flight() -> None:
    async with scene({0: 1, 1: 1, 2: 2}) as made:
        first = await made.sent()
        (await_second,) = [s for s in made.cluster.pool.sent if s is not first]
        assert {first.node_id, await_second.node_id} == {1, 2}
        made.leasing.wanted()
        await made.settle_down()
        assert len(made.cluster.pool.sent) == 2


async def test_fetch_in_flight_is_not_cancelled_by_a_lost_demand_or_assignment() -> None:
    async with scene() as made:
        sent = await made.sent()
        made.free = 0
        made.assign([])
        made.leasing.wanted()
        await made.settle_down()
        assert not sent.done.done()


async def test_records_of_a_partition_that_was_taken_away_meanwhile_are_released() -> None:
    async with scene({0: 1, 1: 1}) as made:
        sent = await made.sent()
        made.assign([1])
        sent.answer(acquired((0, 3)), acquired((5, 6), number=1))
        answer = await made.sent()
        assert answer.acknowledged == [(0, 3, RELEASE)]
        assert [lease.offset for lease in made.take()] == [5, 6]


async def test_close_awaits_the_fetch_and_releases_what_it_brings() -> None:
    async with scene() as made:
        leases = await made.acquire((0, 3))
        made.leasing.settle(leases[0], ACCEPT)
        made.leasing.settle(leases[1], REJECT)
        sent = await made.sent()
        loop = asyncio.get_running_loop()
        closing = asyncio.ensure_future(made.leasing.close(loop.time() + 5))
        await made.settle_down()
        sent.answer(acquired((10, 12)))
        last = await made.sent()
        assert isinstance(last.request, Acknowledge)
        assert last.acknowledged == [
            (0, 0, ACCEPT),
            (1, 1, REJECT),
            (2, 3, RELEASE),
            (10, 12, RELEASE),
        ]
        last.answer()
        final = await made.sent()
        assert isinstance(final.request, Acknowledge)
        assert final.epoch == -1
        final.answer()
        await closing
        assert not made.lost


@pytest.mark.parametrize("ack_type", [ACCEPT, RELEASE])
async def test_close_sends_accepted_records_again_but_not_released_ones(ack_type: AckType) -> None:
    async with scene(free=1) as made:
        (lease,) = await made.acquire((0, 0))
        loop = asyncio.get_running_loop()
        began = loop.time()
        made.leasing.settle(lease, ack_type)
        closing = asyncio.ensure_future(made.leasing.close(began + 20))
        error = CoordinatorLoadInProgressError.errno
        count = 0
        while (sent := await made.sent()).epoch != -1 and count < 5:
            sent.answer(share_acknowledge.PartitionData(partition_index=0, error_code=error))
            count += 1
        assert count == (5 if ack_type is ACCEPT else 1)
        sent.answer()
        if sent.epoch != -1:
            (await made.sent()).answer()
        await closing
        assert not made.lost


async def test_close_waits_for_no_connection_and_only_briefly_for_the_coordinator() -> None:
    async with scene(free=1) as made:
        made.cluster.pool.unreachable = 1
        made.leasing.wanted()
        await made.settle_down()
        began = asyncio.get_running_loop().time()
        await made.leasing.close(began + 20)
        assert asyncio.get_running_loop().time() - began <= LEAVE_MAX_S


# --- Renewals ---------------------------------------------------------------------------------
async def test_renewals_are_sent_alone() -> None:
    async with scene(free=4) as made:
        leases = await made.acquire((0, 3))
        await asyncio.sleep(LOCK_S * 0.45)
        made.leasing.settle(leases[0], ACCEPT)
        accepted = await made.sent()
        assert accepted.acknowledged == [(0, 0, ACCEPT)]
        accepted.answer()
        while not (sent := await made.sent()).request.is_renew_ack:
            sent.answer()
        assert isinstance(sent.request, Acknowledge)
        assert sent.acknowledged == [(1, 3, RENEW)]
        made.leasing.settle(leases[1], ACCEPT)
        await made.settle_down()
        sent.answer()
        after = await made.sent()
        assert after.acknowledged == [(1, 1, ACCEPT)]
        assert leases[2].until > asyncio.get_running_loop().time() + LOCK_S * 0.9


async def test_node_without_renewals_is_asked_for_none() -> None:
    async with scene(free=2) as made:
        made.cluster.pool.version = 1
        await made.acquire((0, 1))
        assert await made.none_sent(LOCK_S - 1)
        assert not made.lost
        await asyncio.sleep(2)
        assert made.lost_offsets == [0, 1]


async def test_no_lease_is_renewed_beyond_its_longest_time() -> None:
    async with scene(free=2) as made:
        made.leasing.leases.max_lease_s = LOCK_S
        await made.acquire((0, 1))
        assert await made.none_sent(LOCK_S + 1)
        assert made.lost_offsets == [0, 1]
        assert "max_lease_ms" in made.lost[0].reason


# --- Records ----------------------------------------------------------------------------------
async def test_records_that_are_not_locked_are_dropped_and_holes_acknowledged() -> None:
    async with scene(free=20) as made:
        (await made.sent()).answer(acquired((5, 8), offsets=[3, 4, 5, 7, 8, 9]))
        await made.settle_down()
        assert [lease.offset for lease in made.take()] == [5, 7, 8]
        assert (await made.sent()).acknowledged == [(6, 6, GAP)]


async def test_undecodable_batch_is_released_and_later_ones_delivered() -> None:
    async with scene(free=20) as made:
        data = acquired((0, 2))
        assert data.records is not None
        broken = bytearray(data.records)
        broken[len(broken) // 3 + 30] ^= 1  # in the second batch
        data.records = memoryview(bytes(broken))
        (await made.sent()).answer(data)
        await made.settle_down()
        assert [lease.offset for lease in made.take()] == [0, 2]
        assert (await made.sent()).acknowledged == [(1, 1, RELEASE)]


async def test_first_fetch_locks_no_whole_batches() -> None:
    async with scene(free=1) as made:
        sent = await made.sent()
        assert (sent.request.share_acquire_mode, sent.request.max_records) == (1, 1)


# --- Waiting ----------------------------------------------------------------------------------
async def test_fetch_waits_briefly_while_locks_are_held() -> None:
    async with scene() as made:
        assert (await made.sent()).request.max_wait_ms == 500
        leases = await made.acquire((0, 0))
        assert (await made.sent()).request.max_wait_ms <= 5
        accept(made, leases)
        (await made.sent()).answer()
        (await made.sent()).answer()
        assert (await made.sent()).request.max_wait_ms == 500


async def test_fetch_just_before_a_renewal_is_not_answered_at_once() -> None:
    async with scene(free=20) as made:
        await made.acquire((0, 9))
        sent = await made.sent()
        await asyncio.sleep(LOCK_S * RENEWED_AT_SHARE - 0.0002 - asyncio.get_running_loop().time())
        sent.answer()
        assert (await made.sent()).request.max_wait_ms == 1


async def test_lock_that_is_over_has_ended_by_itself_before_its_record_is_delivered_again() -> None:
    async with scene(free=20) as made:
        await made.acquire((0, 1))
        sent = await made.sent()
        await asyncio.sleep(LOCK_S)
        again = acquired((0, 1))
        again.acquired_records[0].delivery_count = 2
        sent.answer(again)
        await made.settle_down()
        assert [(lost.offsets, lost.reason) for lost in made.lost] == [([(0, 1)], NOT_RENEWED)]


async def test_acknowledgement_is_sent_soon_when_nothing_is_wanted() -> None:
    async with scene(free=1) as made:
        (lease,) = await made.acquire((0, 0))
        assert await made.none_sent(1.0)
        before = asyncio.get_running_loop().time()
        accept(made, [lease])
        sent = await made.sent()
        assert isinstance(sent.request, Acknowledge)
        assert asyncio.get_running_loop().time() - before <= 0.01


async def test_few_free_handlers_do_not_fetch_one_by_one() -> None:
    async with scene(free=10) as made:
        await made.acquire((0, 9))
        made.free = 1
        made.leasing.wanted()
        assert await made.none_sent(0.015)
        made.free = 2
        made.leasing.wanted()
        assert (await made.sent()).request.max_records == 2


# --- Leaders ----------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [NotLeaderForPartitionError, FencedLeaderEpochError])
async def test_moved_partition_is_fetched_from_the_leader_that_the_answer_names(
    error: type[BrokerResponseError],
) -> None:
    async with scene({0: 1, 1: 1}) as made:
        leases = await made.acquire((0, 1))
        accept(made, leases[:1])
        (await made.sent()).answer()
        sent = await made.sent()
        assert sent.acknowledged == [(0, 0, ACCEPT)]
        leader = share.LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
        sent.answer(
            share.PartitionData(
                partition_index=0,
                error_code=error.errno,
                acknowledge_error_code=error.errno,
                current_leader=leader,
                records=None,
            )
        )
        await made.settle_down()
        assert made.lost_offsets == [0, 1]
        await asyncio.sleep(0.2)
        by_node = {each.node_id: each for each in made.cluster.pool.sent if not each.done.done()}
        assert by_node[2].epoch == 0
        assert [p.partition_index for p in by_node[2].request.topics[0].partitions] == [0]
        assert by_node[1].request.forgotten_topics_data[0].partitions == [0]


async def test_node_that_leads_nothing_any_more_does_not_fail() -> None:
    async with scene() as made:
        (await made.sent()).answer(error_code=ShareSessionLimitReachedError.errno)
        await made.settle_down()
        (source,) = made.leasing.copy_sources()
        assert source.failure is not None
        made.cluster.change(view({0: 2}))
        made.cluster.change(view({0: 1}))
        assert source.failure is None


async def test_leader_that_moves_in_metadata_loses_the_leases() -> None:
    async with scene() as made:
        await made.acquire((0, 1))
        made.cluster.change(view({0: 2}))
        assert made.lost_offsets == [0, 1]


async def test_topic_id_without_a_name_is_kept_until_metadata_have_it() -> None:
    async with scene({}) as made:
        other = bytes(16)
        made.assign([0], other)
        assert made.cluster.invalidations == 1
        assert await made.none_sent(0.1)
        made.cluster.change(view({0: 1}, topic_id=other))
        assert (await made.sent()).request.topics[0].topic_id == other


async def test_unknown_topic_at_the_node_is_retried() -> None:
    async with scene() as made:
        error = UnknownTopicIdError.errno
        (await made.sent()).answer(
            share.PartitionData(partition_index=0, error_code=error, records=None)
        )
        (await made.sent()).answer(acquired((0, 0)))
        await made.settle_down()
        assert made.cluster.invalidations
        assert len(made.take()) == 1


@pytest.mark.parametrize("at", ["request", "partition"])
async def test_error_inside_the_broker_is_retried(at: str) -> None:
    async with scene() as made:
        code = UnknownError.errno  # Kafka answers it while a topic is being deleted
        sent = await made.sent()
        if at == "request":
            sent.answer(error_code=code)
        else:
            sent.answer(share.PartitionData(partition_index=0, error_code=code, records=None))
        (await made.sent()).answer(acquired((0, 0)))
        await made.settle_down()
        assert made.errors == []
        assert len(made.take()) == 1


async def test_permanent_error_of_a_partition_is_reported() -> None:
    async with scene() as made:
        error = TopicAuthorizationFailedError.errno
        (await made.sent()).answer(
            share.PartitionData(partition_index=0, error_code=error, records=None)
        )
        await made.sent()
        assert [type(each) for each in made.errors] == [TopicAuthorizationFailedError]


# --- Losses -----------------------------------------------------------------------------------
async def test_cut_connection_is_noticed_without_a_request_in_flight() -> None:
    async with scene(free=2) as made:
        await made.acquire((0, 1))
        made.cluster.pool.connections[1].cut()
        await made.settle_down()
        assert made.lost_offsets == [0, 1]
        made.free = 2
        made.leasing.wanted()
        assert (await made.sent()).epoch == 0


async def test_refused_acknowledgement_is_a_lost_lease() -> None:
    async with scene(free=2) as made:
        leases = await made.acquire((0, 1))
        accept(made, leases[:1])
        sent = await made.sent()
        sent.answer(
            share_acknowledge.PartitionData(
                partition_index=0, error_code=InvalidRecordStateError.errno
            )
        )
        await made.settle_down()
        assert made.lost_offsets == [0]
        assert leases[1].state is LeaseState.HELD


async def test_member_that_was_removed_closes_its_sessions_and_drops_all() -> None:
    async with scene(free=2) as made:
        leases = await made.acquire((0, 1))
        made.leasing.dropped("removed")
        assert {lease.state for lease in leases} == {LeaseState.LOST}
        final = await made.sent()
        assert isinstance(final.request, Acknowledge)
        assert final.epoch == -1


async def test_records_that_arrive_for_a_removed_member_are_not_acknowledged_in_a_new_session() -> (
    None
):
    async with scene() as made:
        sent = await made.sent()
        made.leasing.dropped("removed")
        made.assign([0])
        sent.answer(acquired((0, 3), offsets=[0, 2, 3]))
        final = await made.sent()
        assert (final.epoch, final.acknowledged) == (-1, [])
        final.answer()
        again = await made.sent()
        assert (again.epoch, again.acknowledged) == (0, [])
        assert not made.lost


async def test_unassigned_partition_is_settled_without_a_fetch() -> None:
    """A fetch that names it would let it join the session again."""
    async with scene({0: 1, 1: 1}) as made:
        leases = await made.acquire((0, 1))
        made.assign([1])
        accept(made, leases)
        (await made.sent()).answer()
        sent = await made.sent()
        forgotten = sent.request
        if isinstance(forgotten, Fetch):
            assert forgotten.forgotten_topics_data[0].partitions == [0]
            assert not sent.acknowledged
            sent.answer()
            sent = await made.sent()
        assert isinstance(sent.request, Acknowledge)
        assert sent.acknowledged == [(0, 1, ACCEPT)]


async def test_what_a_fetch_brings_after_its_use_has_ended_is_released_unless_wanted() -> None:
    async with scene() as made:
        sent = await made.sent()
        made.free = 0
        made.leasing.release_waiting()
        sent.answer(acquired((0, 4)))
        released = await made.sent()
        assert released.acknowledged == [(0, 4, RELEASE)]
        released.answer()
        assert made.leasing.leases.held_count == 0
        made.free = 5
        made.leasing.wanted()
        sent = await made.sent()
        made.leasing.release_waiting()
        sent.answer(acquired((5, 9)))
        await made.settle_down()
        assert [lease.offset for lease in made.take()] == list(range(5, 10))


# --- Several nodes ----------------------------------------------------------------------------
async def test_nodes_share_the_demand() -> None:
    async with scene({0: 1, 1: 2}, free=10) as made:
        await made.sent()
        asked = [each.request.max_records for each in made.cluster.pool.sent]
        assert sum(asked) <= 10 + len(asked)


async def test_nodes_with_backlogs_take_turns_for_one_record_at_a_time() -> None:
    async with scene({0: 1, 1: 2}, free=1) as made:
        nodes = list[int]()
        while len(nodes) < 6:
            sent = await made.sent()
            if isinstance(sent.request, Acknowledge):
                sent.answer()
                continue
            offset = len(nodes)
            nodes.append(sent.node_id)
            sent.answer(acquired((offset, offset), number=sent.node_id - 1))
            await made.settle_down()
            accept(made, made.take())
            made.leasing.wanted()
        assert nodes == [1, 2] * 3


async def test_a_node_whose_fetches_fail_delays_no_other() -> None:
    async with scene({0: 1, 1: 2}, free=1) as made:
        loop, times = asyncio.get_running_loop(), list[float]()
        while len(times) < 20:
            sent = await made.sent()
            if sent.node_id == 2:
                sent.answer(error_code=ShareSessionNotFoundError.errno)
            elif isinstance(sent.request, Acknowledge):
                sent.answer()
            else:
                times.append(loop.time())
                sent.answer(acquired((len(times), len(times))))
                await made.settle_down()
                accept(made, made.take())
                made.leasing.wanted()
        assert times[-1] - times[0] < 10 * TURN_S
