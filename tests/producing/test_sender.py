"""Batches go to the leaders of their partitions, and responses decide on them; no network."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from aiokafka_lite.errors import (
    BrokerResponseError,
    DuplicateSequenceNumber,
    IncompatibleBrokerVersion,
    InvalidProducerEpoch,
    InvalidTimestampError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NoError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
)
from aiokafka_lite.producing.batch import ProducerIdAndEpoch
from aiokafka_lite.producing.partition_queue import MAX_IN_FLIGHT
from aiokafka_lite.protocol.messages.produce import ProduceResponse
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition
from tests.producing.line import BACKOFF_S, ME, line, warmed

pytestmark = pytest.mark.virtual_time


# --- Requests ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("topic_id", "transactional_id", "version"),
    [(ZERO_UUID, None, 12), (b"1" * 16, None, 13), (ZERO_UUID, "tx", 11), (b"1" * 16, "tx", 11)],
)
async def test_a_request_takes_the_batches_of_one_turn(
    topic_id: bytes, transactional_id: str | None, version: int
) -> None:
    async with line(3, transactional_id=transactional_id, request_timeout_ms=1_000) as sending:
        sending.lead(dict.fromkeys(range(3), 1), topic_id)
        futures = await sending.send(0, 1, 2)
        request = await sending.next()
        assert (request.partitions, request.version) == ([0, 1, 2], version)
        assert (request.request.acks, request.request.timeout_ms) == (-1, 800)
        assert request.request.transactional_id == transactional_id
        request.respond(offset=7)
        assert [future.result().offset for future in futures] == [7, 7, 7]
        await sending.turn()
        assert not sending.sent
        assert sending.accumulator.used_bytes == 0


async def test_a_request_takes_batches_in_order_up_to_exactly_its_size() -> None:
    # A batch and its record take 96 bytes more: 1,000 twice; 1,000, then 1,796 and 106.
    async with line(5, max_request_size=2_000) as sending:
        for sizes, taken in (
            ({0: 904, 1: 904}, [[0, 1]]),
            ({2: 904, 3: 1_700, 4: 10}, [[2], [3, 4]]),
        ):
            for number, size in sizes.items():
                sending.accumulator.append("t", None, bytes(size), number, 0, ())
            await sending.turn()
            assert [each.partitions for each in sending.sent] == taken
            while sending.sent:
                sending.sent.pop().respond()


async def test_a_leader_has_five_requests_in_flight_and_the_rest_shares_the_next() -> None:
    async with line(8) as sending:
        for number in range(8):
            await sending.send(number)
        assert [each.partitions for each in sending.sent] == [[number] for number in range(5)]
        sending.sent.pop(0).respond()
        await sending.turn()
        assert [each.partitions for each in sending.sent[4:]] == [[5, 6, 7]]


async def test_batches_of_a_partition_are_in_flight_together_after_the_first() -> None:
    async with line(max_batch_size=100) as sending:
        await warmed(sending, 0)
        await sending.send(0, 0, 0, value=bytes(60))
        assert [each.sequences for each in sending.sent] == [[(0, 1)], [(0, 2)], [(0, 3)]]


async def test_a_bug_in_sending_is_the_failure_of_the_tasks() -> None:
    async def fail() -> None:
        async with line() as sending:
            sending.refusal = ZeroDivisionError()
            await sending.send(0)

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_each_leader_gets_its_own_partitions() -> None:
    async with line(3) as sending:
        sending.lead({0: 1, 1: 2, 2: 1})
        await sending.send(0, 1, 2)
        found = sorted((each.node_id, each.partitions) for each in sending.sent)
        assert found == [(1, [0, 2]), (2, [1])]


async def test_a_queue_waits_until_the_transaction_has_its_partition() -> None:
    async with line(2, transactional_id="tx") as sending:
        sending.admit = lambda queue: queue.tp.partition == 1
        await sending.send(0, 1)
        first = await sending.next()
        assert first.partitions == [1]
        sending.connected = set()
        await sending.send(0)
        first.respond()
        await sending.turn()
        assert sending.attempts == [], "there is nothing to send"
        sending.connected = {1}
        sending.admit = lambda queue: True
        sending.sender.wake_all(sending.accumulator.queues())
        await sending.turn()
        assert len(sending.sent) == 1


async def test_a_request_that_cannot_be_sent_takes_no_place_among_those_in_flight() -> None:
    async with line() as sending:
        sending.refusal = IncompatibleBrokerVersion("no Produce")
        for _ in range(MAX_IN_FLIGHT + 1):
            (future,) = await sending.send(0)
            assert isinstance(future.exception(), IncompatibleBrokerVersion)
        sending.refusal = None
        await sending.send(0)
        assert len(sending.sent) == 1
        assert sending.invalidations == 0


# --- Responses -----------------------------------------------------------------------------------
async def test_a_batch_whose_offset_is_forgotten_is_written() -> None:
    async with line() as sending:
        (future,) = await sending.send(0)
        (await sending.next()).respond(DuplicateSequenceNumber)
        assert future.result().offset == -1


@pytest.mark.parametrize(
    ("error", "searches"), [(NotEnoughReplicasError, 0), (NotLeaderForPartitionError, 1)]
)
async def test_a_batch_is_sent_again_after_pauses_that_no_other_record_shortens(
    error: type[BrokerResponseError], searches: int
) -> None:
    async with line() as sending:
        await sending.send(0)
        request = await sending.next()
        pauses = (0.1, 0.2, 0.4, 0.8, 1.0, 1.0)
        for pause_s in pauses:
            began = sending.loop.time()
            request.respond(error)
            while not sending.sent:
                await asyncio.sleep(0.01)
                await sending.send(0)
            request = sending.sent.pop(0)
            assert request.sequences == [(0, 0)]
            assert 0.79 * pause_s <= sending.loop.time() - began <= 1.21 * pause_s + 0.02
        assert sending.searches == searches * len(pauses)
        assert sending.invalidations == 0


@pytest.mark.parametrize("leader", [0, 2])
async def test_a_leader_that_a_response_names_gets_the_batch_at_once(leader: int) -> None:
    async with line() as sending:
        sending.connected.add(0)
        await sending.send(0)
        (await sending.next()).respond(NotLeaderForPartitionError, leader=leader)
        await sending.turn()
        (request,) = sending.sent
        assert (request.node_id, request.sequences) == (leader, [(0, 0)])
        assert sending.searches == 0


async def test_a_request_that_is_lost_is_repeated_and_metadata_are_asked_for() -> None:
    async with line() as sending:
        (future,) = await sending.send(0)
        (await sending.next()).fail(KafkaConnectionError("lost"))
        assert sending.invalidations == 1
        await sending.turn()
        assert not sending.sent
        empty = ProduceResponse()
        (await sending.next()).on_done(SimpleNamespace(result=lambda: empty))
        assert not future.done(), "a response without the partition is none"
        request = await sending.next()
        assert request.sequences == [(0, 0)]
        request.respond()
        assert future.result().offset == 0


async def test_an_error_names_the_records_at_fault_and_others_go_on() -> None:
    async with line() as sending:
        refused = await sending.send(0, 0)
        (later,) = await sending.send(0)
        (await sending.next()).respond(InvalidTimestampError, named=(1,))
        for future in refused:
            error = future.exception()
            assert isinstance(error, InvalidTimestampError)
            assert (error.batch_indexes, error.tp) == ((1,), TopicPartition("t", 0))
        assert sending.failed == [InvalidTimestampError]
        (await sending.next()).respond()
        assert later.result().offset == 0
        assert sending.accumulator.is_empty


@pytest.mark.parametrize("transactional_id", [None, "tx"])
async def test_an_epoch_that_is_too_low_is_given_up_unless_the_coordinator_assigned_it(
    transactional_id: str | None,
) -> None:
    async with line(transactional_id=transactional_id) as sending:
        (future,) = await sending.send(0)
        (await sending.next()).respond(InvalidProducerEpoch)
        assert isinstance(future.exception(), InvalidProducerEpoch)
        if transactional_id is not None:
            assert (sending.used_up, sending.identity.current) == (0, ME)
            return
        assert (sending.used_up, sending.identity.current) == (1, None)
        await sending.send(0)
        assert not sending.sent
        sending.identity.renew(ProducerIdAndEpoch(2, 5))
        sending.sender.wake_all(sending.accumulator.queues())
        assert (await sending.next()).sequences == [(5, 0)]


# --- Gaps ----------------------------------------------------------------------------------------
async def test_a_gap_is_closed_by_the_next_epoch_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with line() as sending:
        await warmed(sending, 0)
        await sending.send(0)
        began = sending.loop.time()
        (await sending.next()).respond(OutOfOrderSequenceNumber)
        while not sending.sent:
            await asyncio.sleep(0.01)
            await sending.send(0)
        assert sending.sent[0].sequences == [(1, 0)]
        assert 0.79 * BACKOFF_S <= sending.loop.time() - began <= 1.21 * BACKOFF_S + 0.02

    assert caplog.text.count("rejected the sequence numbers of t-0 as out of order") == 1


async def test_a_gap_is_closed_once_nothing_is_in_flight() -> None:
    async with line() as sending:
        await warmed(sending, 0)
        for _ in range(2):
            await sending.send(0)
        first, second = sending.sent.pop(0), sending.sent.pop(0)
        first.respond(OutOfOrderSequenceNumber)
        await asyncio.sleep(1)
        assert not sending.sent
        second.respond(OutOfOrderSequenceNumber)
        for number in range(2):
            request = await sending.next()
            assert request.sequences == [(1, number)]
            request.respond()


@pytest.mark.parametrize("transactional_id", [None, "tx"])
async def test_a_batch_behind_one_that_is_repeated_is_repeated_too(
    transactional_id: str | None,
) -> None:
    async with line(transactional_id=transactional_id) as sending:
        await warmed(sending, 0)
        futures = [*await sending.send(0), *await sending.send(0)]
        first, second = sending.sent.pop(0), sending.sent.pop(0)
        first.respond(NotEnoughReplicasError)
        second.respond(OutOfOrderSequenceNumber)
        for number in (1, 2):
            request = await sending.next()
            assert request.sequences == [(0, number)]
            request.respond(offset=number)
        assert [future.result().offset for future in futures] == [1, 2]
        assert sending.failed == []


async def test_a_gap_in_a_transaction_fails_its_records() -> None:
    async with line(transactional_id="tx") as sending:
        await warmed(sending, 0)
        (future,) = await sending.send(0)
        (await sending.next()).respond(OutOfOrderSequenceNumber)
        assert isinstance(future.exception(), OutOfOrderSequenceNumber)
        await sending.send(0)
        assert sending.identity.current == ME
        assert not sending.sent, "the transaction is aborted first"


@pytest.mark.parametrize(
    "error", [NotEnoughReplicasError, OutOfOrderSequenceNumber, MessageSizeTooLargeError]
)
async def test_nothing_is_repeated_in_a_transaction_that_is_being_aborted(
    error: type[BrokerResponseError],
) -> None:
    async with line(2, transactional_id="tx") as sending:
        futures = await sending.send(0, 0)
        request = await sending.next()
        sending.sender.abort_reason = KafkaError("aborted")
        (unsent,) = await sending.send(1)
        request.respond(error)
        for future in futures:
            assert str(future.exception()) == "KafkaError: aborted"
        await asyncio.sleep(2)
        assert not sending.sent
        assert not unsent.done()
        sending.sender.abort_reason = None
        sending.sender.wake_all(sending.accumulator.queues())
        assert (await sending.next()).partitions == [1]


# --- Batches that are too large ------------------------------------------------------------------
async def test_a_batch_that_is_too_large_is_sent_in_parts() -> None:
    async with line() as sending:
        futures = await sending.send(*[0] * 10, value=bytes(100))
        flushing = asyncio.ensure_future(sending.accumulator.flush())
        (await sending.next()).respond(MessageSizeTooLargeError)
        sequences = []
        while not futures[-1].done():
            request = await sending.next()
            assert not flushing.done()
            sequences += [sequence for _, sequence in request.sequences]
            request.respond(offset=sequences[-1])
        assert sequences == [0, 4, 8]
        assert [future.result().offset for future in futures] == list(range(10))
        assert sending.accumulator.is_empty
        (alone,) = await sending.send(0)
        (await sending.next()).respond(MessageSizeTooLargeError)
        assert isinstance(alone.exception(), MessageSizeTooLargeError)


# --- Batches that expire -------------------------------------------------------------------------
IN_TIME = {"request_timeout_ms": 300, "delivery_timeout_ms": 400}


@pytest.mark.parametrize("error", [KafkaConnectionError("lost"), None, MessageSizeTooLargeError])
async def test_records_behind_a_batch_that_expired_in_flight_go_on_with_its_response(
    error: KafkaConnectionError | type[BrokerResponseError] | None,
) -> None:
    async with line(**IN_TIME) as sending:
        lost = await sending.send(0, 0)
        request = await sending.next()
        await asyncio.sleep(0.2)
        (behind,) = await sending.send(0)
        await asyncio.sleep(0.25)
        assert {type(future.exception()) for future in lost} == {KafkaTimeoutError}
        assert not sending.sent, "the first batch of a producer is sent alone"
        if isinstance(error, KafkaConnectionError):
            request.fail(error)
        else:
            request.respond(error or NoError)
        await sending.turn()
        (following,) = sending.sent
        assert following.sequences == ([(0, 2)] if error is None else [(1, 0)])
        following.respond()
        assert behind.result().offset == 0
        assert sending.accumulator.used_bytes == 0


async def test_records_behind_a_batch_that_expires_before_its_next_attempt_go_on_then() -> None:
    async with line(**IN_TIME) as sending:
        (lost,) = await sending.send(0)
        (await sending.next()).respond(NotEnoughReplicasError)
        request = await sending.next()
        await asyncio.sleep(0.2)
        (behind,) = await sending.send(0)
        request.respond(NotEnoughReplicasError)  # the next pause ends after 0.4 s
        await asyncio.wait([lost])
        await sending.turn()
        assert sending.loop.time() == pytest.approx(0.4)
        (following,) = sending.sent
        assert following.sequences == [(1, 0)]
        following.respond()
        assert behind.done()


async def test_queues_that_wait_for_a_place_in_flight_get_that_of_a_request_that_is_lost() -> None:
    async with line(8, **IN_TIME) as sending:
        for number in range(5):
            await sending.send(number)
        await asyncio.sleep(0.3)
        await sending.send(5, 6, 7)
        await asyncio.sleep(0.15)  # the batches of the five have expired
        lost, sending.sent = sending.sent, []
        for request in lost:
            request.fail(KafkaConnectionError("lost"))
        await sending.turn()
        assert [each.partitions for each in sending.sent] == [[5, 6, 7]]


# --- Leaders -------------------------------------------------------------------------------------
async def test_a_queue_follows_its_leader() -> None:
    async with line(3) as sending:
        sending.lead({0: 1, 1: -1, 2: 1})
        await warmed(sending, 0, 2)
        (lost,) = await sending.send(1)
        assert not sending.sent
        assert sending.searches > 0
        sending.lead({0: 1, 1: 2, 2: 3})
        request = await sending.next()
        assert (request.node_id, request.partitions) == (2, [1])
        request.respond()
        assert lost.done()
        await sending.send(0, 2)
        assert [(each.node_id, each.partitions) for each in sending.sent] == [(1, [0]), (3, [2])]


async def test_a_leader_that_cannot_be_reached_is_tried_again_after_a_pause() -> None:
    async with line() as sending:
        sending.connected = set()
        (future,) = await sending.send(0)
        await asyncio.sleep(1.07)
        assert (sending.attempts, sending.searches) == ([1], 1)
        await asyncio.sleep(0.06)
        assert sending.attempts == [1, 1]
        sending.connected = {1}
        (await sending.next()).respond()
        assert future.done()
        await asyncio.sleep(5)
        assert sending.attempts == [1, 1]


async def test_a_leader_that_is_reached_when_it_leads_no_more_gets_no_records() -> None:
    async with line() as sending:
        sending.connected = set()
        await sending.send(0)
        await asyncio.sleep(0.5)
        sending.lead({0: 2})
        await sending.turn()
        assert sending.attempts == [1, 2]
        sending.connected = {1}
        await asyncio.sleep(0.7)
        assert not sending.sent
        sending.connected = {1, 2}
        assert (await sending.next()).node_id == 2


async def test_a_sender_that_is_closed_connects_to_no_leader_and_sends_nothing() -> None:
    async with line(2) as sending:
        sending.lead({0: 1, 1: 2})
        sending.connected = {2}
        await sending.send(0)
        await asyncio.sleep(0.5)
        sending.sender.close()
        await sending.send(1)
        await asyncio.sleep(5)
        assert (sending.attempts, sending.sent) == ([1], [])


@pytest.mark.parametrize("is_leader_lost", [False, True])
async def test_what_expires_unsent_has_the_reason_of_its_leader(*, is_leader_lost: bool) -> None:
    async with line(**IN_TIME) as sending:
        sending.connected = set()
        (first,) = await sending.send(0)
        await asyncio.sleep(0.2)
        if is_leader_lost:
            sending.lead({0: -1})
        await asyncio.wait([first])
        cause = getattr(first.exception(), "__cause__", None)
        reason = LeaderNotAvailableError if is_leader_lost else KafkaConnectionError
        assert isinstance(cause, reason)
        assert ("waiting for node 1" in str(cause)) is not is_leader_lost


async def test_the_latest_error_of_an_attempt_is_the_reason_though_its_leader_is_lost() -> None:
    async with line(request_timeout_ms=300, delivery_timeout_ms=1_500) as sending:
        sending.connected = set()
        (future,) = await sending.send(0)
        await asyncio.sleep(1.05)
        sending.lead({0: -1})
        await asyncio.wait([future])
        cause = getattr(future.exception(), "__cause__", None)
        assert "no way to node 1" in str(cause)


# --- Quiet ---------------------------------------------------------------------------------------
async def test_it_is_quiet_once_each_leader_has_responded() -> None:
    async with line(2) as sending:
        sending.lead({0: 1, 1: 2})
        await sending.sender.until_quiet()
        await sending.send(0, 1)
        waiting = asyncio.ensure_future(sending.sender.until_quiet())
        for _ in range(2):
            await sending.turn()
            assert not waiting.done()
            (await sending.next()).respond()
        await sending.turn()
        assert waiting.done()
