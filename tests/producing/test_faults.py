"""Records are written once and in order, whatever brokers and connections do meanwhile."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import re
import sys
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    CoordinatorLoadInProgressError,
    DuplicateSequenceNumber,
    IllegalStateError,
    InvalidProducerEpoch,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
    TopicAuthorizationFailedError,
    UnknownProducerId,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing import AIOKafkaProducer, sender
from aiokafka_lite.producing.outcomes import BatchFate
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.structs import RecordMetadata, TopicPartition
from tests.producing.sending import as_values, producer_of, send_numbers, values_in
from tests.support.waiting import until

TP = TopicPartition("t", 0)
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Three nodes, and a topic "t" with a replica on each."""
    async with Broker(nodes=3, default_replication_factor=3) as broker:
        broker.create_topic("t", 2)
        yield broker
    assert broker.failure is None


async def send_slowly(
    producer: AIOKafkaProducer, numbers: range
) -> list[asyncio.Future[RecordMetadata]]:
    """Send with a turn of the loop after each, so that there are many batches."""
    futures: list[asyncio.Future[RecordMetadata]] = []
    for number in numbers:
        futures += await send_numbers(producer, "t", range(number, number + 1))
        await asyncio.sleep(0)
    return futures


# --- Once and in order -----------------------------------------------------------------------
@pytest.mark.parametrize("handled", [True, False], ids=["written", "not-written"])
async def test_records_are_written_once_when_connections_are_cut(
    broker: Broker, handled: bool
) -> None:
    broker.on("Produce", when=every(3)).disconnect(times=6, handled=handled)
    async with producer_of(broker) as producer:
        await asyncio.gather(*await send_slowly(producer, range(200)))
    assert await values_in(broker, "t") == as_values(range(200))


def every(nth: int) -> Callable[[object, object], bool]:
    """Choose one request of so many."""
    seen = iter(range(10**9))
    return lambda context, request: next(seen) % nth == 0


@pytest.mark.parametrize("handled", [True, False], ids=["written", "not-written"])
async def test_records_are_written_once_when_answers_never_come(
    broker: Broker, handled: bool
) -> None:
    broker.on("Produce", when=every(4)).silence(times=2, handled=handled)
    async with producer_of(broker, request_timeout_ms=300) as producer:
        await asyncio.gather(*await send_slowly(producer, range(100)))
    assert await values_in(broker, "t") == as_values(range(100))


@pytest.mark.parametrize(
    "error",
    [
        LeaderNotAvailableError,
        NotEnoughReplicasError,
        NotLeaderForPartitionError,
        RequestTimedOutError,
    ],
)
async def test_what_passes_by_itself_is_tried_again(
    broker: Broker, error: type[BrokerResponseError]
) -> None:
    rule = broker.on("Produce", when=every(2)).fail(error, times=4)
    async with producer_of(broker, max_batch_size=200) as producer:
        await asyncio.gather(*await send_slowly(producer, range(100)))
    assert rule.is_over
    assert await values_in(broker, "t") == as_values(range(100))


@pytest.mark.virtual_time
@pytest.mark.parametrize("error", [NotEnoughReplicasError, NotLeaderForPartitionError])
async def test_pauses_between_attempts_double_up_to_a_second(
    broker: Broker, error: type[BrokerResponseError]
) -> None:
    async with producer_of(broker, retry_backoff_ms=100) as producer:
        await producer.partitions_for("t")
        asked = len(broker.requests.of("Metadata"))
        broker.on("Produce").fail(error, times=5)
        futures = [await producer.send("t", b"0", partition=0)]
        while not futures[0].done():  # more records shorten no pause
            await asyncio.sleep(0.03)
            futures.append(await producer.send("t", b"1", partition=0))
        await asyncio.gather(*futures)
        is_leader_asked_for = len(broker.requests.of("Metadata")) > asked
        assert is_leader_asked_for is error.invalid_metadata
    times = [each.arrived_at for each in broker.requests.of("Produce")[:6]]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    for pause_s, expected_s in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.0), strict=True):
        assert 0.79 * expected_s <= pause_s <= 1.21 * expected_s


async def test_a_batch_that_was_written_in_spite_of_an_error_is_not_written_twice(
    broker: Broker,
) -> None:
    def too_few(context: object, frame: bytes) -> bytes:
        code = NotEnoughReplicasAfterAppendError.errno.to_bytes(2, "big")
        at = frame.index(b"\x02\0\0\0\0\0\0") + 5  # one partition, number 0: its code follows
        return frame[:at] + code + frame[at + 2 :]

    broker.on("Produce").on_frame(too_few, times=2)
    async with producer_of(broker) as producer:
        await asyncio.gather(*await send_numbers(producer, "t", range(20)))
    assert await values_in(broker, "t") == as_values(range(20))


async def test_a_batch_whose_offset_the_broker_has_forgotten_is_written(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        broker.on("Produce").fail(DuplicateSequenceNumber)
        placed = await producer.send_and_wait("t", b"0", partition=0)
        assert (placed.partition, placed.offset) == (0, -1)


async def test_leaders_move_while_records_are_sent(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        futures = []
        for start in range(0, 300, 20):
            futures += await send_slowly(producer, range(start, start + 20))
            broker.move_leader(TP)
        await asyncio.gather(*futures)
    assert await values_in(broker, "t") == as_values(range(300))


async def test_a_leader_is_looked_for_when_an_answer_does_not_name_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "NEWEST", 9)  # the first with leaders is 10
    async with timeout(10), producer_of(broker) as producer:
        await producer.send_and_wait("t", b"v", partition=0)  # whose leader stays
        for number in range(3):
            assert (await producer.send_and_wait("t", b"v", partition=1)).offset == number
            broker.move_leader(TopicPartition("t", 1))


@pytest.mark.virtual_time
async def test_a_leader_that_does_not_answer_makes_way_for_the_next(broker: Broker) -> None:
    async with producer_of(broker, request_timeout_ms=1_000) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce", node=broker.leader_of(TP)).silence(times=None)
        broker.move_leader(TP)
        async with timeout(10):
            assert (await producer.send_and_wait("t", b"1", partition=0)).offset == 1


def bystander(broker: Broker) -> str:
    """Return the address of a node that leads no partition of "t"."""
    leaders = {broker.leader_of(TopicPartition("t", number)) for number in range(2)}
    return next(node for node in broker.live_nodes if node.id not in leaders).bootstrap_servers


@pytest.mark.virtual_time
async def test_a_leader_that_cannot_be_reached_makes_way_for_the_next(broker: Broker) -> None:
    async with producer_of(bystander(broker)) as producer:
        await producer.partitions_for("t")
        broker.on("ApiVersions", node=broker.leader_of(TP)).disconnect(times=None)
        future = await producer.send("t", b"v", partition=0)
        await asyncio.sleep(1)
        broker.move_leader(TP)
        async with timeout(10):
            assert (await future).offset == 0


@pytest.mark.virtual_time
async def test_a_leader_that_is_reached_when_it_leads_no_more_gets_no_records(
    broker: Broker,
) -> None:
    first, second = (broker.leader_of(TopicPartition("t", number)) for number in range(2))
    async with producer_of(bystander(broker)) as producer:
        await producer.partitions_for("t")
        with (
            broker.on("ApiVersions", node=first).hold() as late,
            broker.on("ApiVersions", node=second).hold() as later,
        ):
            future = await producer.send("t", b"v", partition=0)
            await late.reached()
            broker.move_leader(TP, second)
            await producer.client.force_metadata_update()
            await later.reached()
            late.remove()
            await asyncio.sleep(1)
        async with timeout(10):
            assert (await future).offset == 0
    assert {each.node_id for each in broker.requests.of("Produce")} == {second}


@pytest.mark.virtual_time
async def test_a_producer_that_has_failed_connects_to_no_leader(broker: Broker) -> None:
    other = TopicPartition("t", 1)
    async with producer_of(bystander(broker)) as producer:
        await producer.partitions_for("t")
        refused = broker.on("ApiVersions", node=broker.leader_of(other)).disconnect(times=None)
        lost = await producer.send("t", b"0", partition=1)
        await asyncio.sleep(30)
        attempts = refused.hits
        assert attempts > 20
        broker.on("Produce").fail(ClusterAuthorizationFailedError)
        with pytest.raises(ClusterAuthorizationFailedError):
            await producer.send_and_wait("t", b"1", partition=0)
        with pytest.raises(ClusterAuthorizationFailedError):
            await lost
        await asyncio.sleep(30)
        assert refused.hits < attempts + 5


@pytest.mark.virtual_time
async def test_partitions_that_wait_for_a_place_among_the_requests_get_it_from_one_that_is_lost(
    broker: Broker,
) -> None:
    async with (
        Broker() as alone,
        producer_of(alone, request_timeout_ms=300, delivery_timeout_ms=300) as producer,
    ):
        alone.create_topic("wide", 8)
        await producer.partitions_for("wide")
        alone.on("Produce").silence(times=5)
        lost = []
        for number in range(5):
            lost.append(await producer.send("wide", b"v", partition=number))
            for _ in range(10):
                await asyncio.sleep(0)
        await asyncio.sleep(0.2)
        kept = [await producer.send("wide", b"v", partition=number) for number in range(5, 8)]
        for future in lost:
            with pytest.raises(KafkaTimeoutError):
                await future
        for future in kept:
            assert (await future).offset == 0


@pytest.mark.virtual_time
async def test_records_for_a_partition_without_a_leader_are_written_when_it_has_one(
    broker: Broker,
) -> None:
    broker.create_topic("alone", 1, replication_factor=1)
    leader = broker.leader_of(TopicPartition("alone", 0))
    settings = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 5_000}
    async with producer_of(broker, **settings) as producer:
        await producer.partitions_for("alone")
        await broker.stop_node(leader, clean=False)
        await producer.client.force_metadata_update()
        lost = await producer.send("alone", b"lost", partition=0)
        await asyncio.sleep(2)
        asked = len(broker.requests.of("Metadata"))
        await asyncio.sleep(2)
        assert len(broker.requests.of("Metadata")) - asked >= 9, "0.2 s is the longest pause"
        with pytest.raises(KafkaTimeoutError, match="could not be sent") as caught:
            await lost
        assert isinstance(caught.value.__cause__, LeaderNotAvailableError)
        kept = await producer.send("alone", b"kept", partition=0)
        await asyncio.sleep(1)
        await broker.start_node(leader)
        assert (await kept).offset == 0


async def test_the_leader_that_an_answer_names_is_asked_without_metadata(broker: Broker) -> None:
    async with producer_of(broker, retry_backoff_ms=30_000) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        with broker.on("Metadata").silence(times=None):
            broker.move_leader(TP)
            async with timeout(10):
                assert (await producer.send_and_wait("t", b"1", partition=0)).offset == 1


async def test_a_node_that_goes_down_hands_its_records_to_the_next_leader(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        futures = await send_slowly(producer, range(50))
        await broker.stop_node(broker.leader_of(TP), clean=False)
        futures += await send_slowly(producer, range(50, 100))
        await asyncio.gather(*futures)
    assert await values_in(broker, "t") == as_values(range(100))


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "seed", [0, 1, *[pytest.param(n, marks=pytest.mark.slow) for n in range(2, 8)]]
)
async def test_nothing_is_lost_or_doubled_in_a_storm_of_faults(broker: Broker, seed: int) -> None:
    rng = random.Random(seed)
    errors = [NotEnoughReplicasError, NotLeaderForPartitionError, RequestTimedOutError]
    async with producer_of(broker, request_timeout_ms=300, max_batch_size=200) as producer:
        futures = []
        for start in range(0, 400, 20):
            action = rng.randrange(7)
            if action == 0:
                broker.on("Produce").disconnect(handled=True)
            elif action == 1:
                broker.on("Produce").disconnect(handled=False, times=2)
            elif action == 2:
                broker.on("Produce").fail(rng.choice(errors), times=rng.randint(1, 3))
            elif action == 3:
                broker.move_leader(TP)
            elif action == 4:
                broker.on("Produce").silence(handled=rng.random() < 0.5)
            elif action == 5:
                broker.on("Produce").delay(rng.random() * 0.05, times=2)
            futures += await send_slowly(producer, range(start, start + 20))
            if rng.random() < 0.3:
                await asyncio.wait(futures[-1:], timeout=0.02)
        await asyncio.gather(*futures)
    assert await values_in(broker, "t") == as_values(range(400))
    for each in broker.requests.of("Produce"):
        assert isinstance(each.request, ProduceRequest)
        assert each.request.topic_data, "no request is empty"


# --- Gaps --------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_written", [True, False])
async def test_what_expires_fails_and_the_rest_goes_on_in_order(
    broker: Broker, is_written: bool
) -> None:
    async with producer_of(broker, request_timeout_ms=200, delivery_timeout_ms=400) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        rule = broker.on("Produce").silence(times=None, handled=is_written)
        lost = await producer.send("t", b"lost", partition=0)
        with pytest.raises(KafkaTimeoutError, match="may have been written") as caught:
            await lost
        assert caught.value.__cause__ is not None
        rule.remove()
        await asyncio.gather(*await send_numbers(producer, "t", range(50)))
    kept = [b"lost"] if is_written else []
    assert await values_in(broker, "t") == [b"first", *kept, *as_values(range(50))]


@pytest.mark.virtual_time
async def test_records_behind_a_batch_that_expired_in_flight_go_on_with_its_response(
    broker: Broker,
) -> None:
    async with producer_of(broker, request_timeout_ms=300, delivery_timeout_ms=400) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").silence(times=2)
        lost = await producer.send("t", b"lost", partition=0)
        await asyncio.sleep(0.35)  # it is in flight once more
        behind = await producer.send("t", b"1", partition=0)
        with pytest.raises(KafkaTimeoutError):
            await lost
        assert (await behind).offset == 1


async def test_what_could_not_be_sent_at_all_says_so(broker: Broker) -> None:
    async with producer_of(broker, request_timeout_ms=200, delivery_timeout_ms=300) as producer:
        await producer.partitions_for("t")
        for node in (1, 2, 3):
            await broker.stop_node(node, clean=False)
        future = await producer.send("t", b"v", partition=0)
        with pytest.raises(KafkaTimeoutError, match="could not be sent"):
            await future


async def test_a_batch_that_is_refused_for_good_leaves_the_others_in_order(
    broker: Broker,
) -> None:
    async with producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)  # there is a connection now
        broker.on("Produce").fail(InvalidTimestampError)
        refused = await producer.send("t", b"refused", partition=0)
        await asyncio.sleep(0)  # it is on its way, alone
        behind = await send_slowly(producer, range(1, 30))
        with pytest.raises(InvalidTimestampError):
            await refused
        await asyncio.gather(*behind)
    assert await values_in(broker, "t") == as_values(range(30))
    assert len(broker.requests.of("InitProducerId")) == 1


@pytest.mark.parametrize("error", [OutOfOrderSequenceNumber, UnknownProducerId])
async def test_a_broker_that_has_forgotten_the_producer_is_written_to_under_another_epoch(
    broker: Broker, error: type[BrokerResponseError], caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").fail(error)
        await asyncio.gather(*await send_slowly(producer, range(1, 40)))
    assert await values_in(broker, "t") == as_values(range(40))
    assert caplog.text.count("sequences of t-0 have a gap") == 1


@pytest.mark.virtual_time
async def test_a_gap_is_closed_though_the_leader_cannot_be_reached_meanwhile() -> None:
    async with Broker() as broker, producer_of(broker, max_batch_size=50) as producer:
        broker.create_topic("t", 8)
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").fail(OutOfOrderSequenceNumber)
        broker.on("Produce").silence()
        futures = await send_slowly(producer, range(1, 6))
        await asyncio.sleep(0.5)  # the first is refused, and the others are in flight
        for partition in range(1, 8):  # five requests at most, and the rest is listed
            futures.append(await producer.send("t", b"other", partition=partition))
            await asyncio.sleep(0)
        futures += await send_slowly(producer, range(6, 7))
        await broker.stop_node(1, clean=False)
        await asyncio.sleep(1)
        await broker.start_node(1)
        async with timeout(10):
            await asyncio.gather(*futures)
        assert await values_in(broker, "t") == as_values(range(7))


async def test_records_that_an_unclean_election_lost_stop_nothing(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        for number in range(10):
            await producer.send_and_wait("t", b"%d" % number, partition=0)
        broker.truncate(TP, 5)
        await asyncio.gather(*await send_slowly(producer, range(10, 40)))
    assert await values_in(broker, "t") == [*as_values(range(5)), *as_values(range(10, 40))]


async def test_an_epoch_below_the_brokers_is_left_for_another_producer_id(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").fail(InvalidProducerEpoch)
        with broker.on("InitProducerId").delay(0.0, times=None) as asked:
            with pytest.raises(InvalidProducerEpoch):
                await producer.send_and_wait("t", b"lost", partition=0)
            await asyncio.gather(*await send_numbers(producer, "t", range(1, 20)))
        assert asked.hits == 1
    assert await values_in(broker, "t") == as_values(range(20))


async def test_a_producer_that_gets_no_other_id_raises_why(broker: Broker) -> None:
    async with timeout(10), producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").fail(InvalidProducerEpoch)
        broker.on("InitProducerId").fail(ClusterAuthorizationFailedError)
        with pytest.raises(InvalidProducerEpoch):
            await producer.send_and_wait("t", b"lost", partition=0)
        with pytest.raises(ClusterAuthorizationFailedError):
            await producer.send_and_wait("t", b"1", partition=0)


@pytest.mark.virtual_time
async def test_another_producer_id_is_asked_for_until_there_is_one(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.on("Produce").fail(InvalidProducerEpoch)
        broker.on("InitProducerId").fail(CoordinatorLoadInProgressError, times=3)
        with pytest.raises(InvalidProducerEpoch):
            await producer.send_and_wait("t", b"lost", partition=0)
        assert (await producer.send_and_wait("t", b"1", partition=0)).offset == 1


@pytest.mark.virtual_time
async def test_a_batch_that_has_expired_is_not_sent_again_in_parts(broker: Broker) -> None:
    broker.create_topic("small", 1, {"max.message.bytes": "300"})
    async with producer_of(broker, request_timeout_ms=300, delivery_timeout_ms=400) as producer:
        await producer.send_and_wait("small", b"0", partition=0)
        with broker.on("Produce").silence() as rule:
            futures = [await producer.send("small", bytes(200), partition=0) for _ in range(2)]
            await rule.reached()
        with broker.on("Produce").hold():
            for future in futures:
                with pytest.raises(KafkaTimeoutError):
                    await future
        await producer.send_and_wait("small", b"1", partition=0)
    assert await values_in(broker, "small") == [b"0", b"1"]


@pytest.mark.virtual_time
async def test_records_behind_an_expired_batch_are_written_when_their_leader_is_back() -> None:
    settings = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 5_000}
    async with Broker() as broker, producer_of(broker, **settings) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        with broker.on("Produce").disconnect(handled=False) as rule:
            lost = await producer.send("t", b"lost", partition=0)
            await rule.reached()
            await broker.stop_node(1, clean=False)
        await asyncio.sleep(3)
        behind = await producer.send("t", b"1", partition=0)
        with pytest.raises(KafkaTimeoutError):
            await lost
        await broker.start_node(1)
        assert (await behind).offset == 1


# --- For good ----------------------------------------------------------------------------------
async def test_a_refusal_concerns_only_the_partition_refused(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        broker.on("Produce", topic="t", partition=1).fail(TopicAuthorizationFailedError)
        refused = await producer.send("t", b"v", partition=1)
        assert (await producer.send_and_wait("t", b"v", partition=0)).offset == 0
        with pytest.raises(TopicAuthorizationFailedError, match="t-1"):
            await refused


@pytest.mark.virtual_time
@pytest.mark.parametrize("transactional_id", [None, "tx"])
async def test_a_record_that_waits_for_its_topic_raises_the_producers_fatal_error(
    broker: Broker, transactional_id: str | None
) -> None:
    broker.create_topic("other")
    async with producer_of(broker, transactional_id=transactional_id) as producer:
        await producer.partitions_for("t")
        if transactional_id is not None:
            await producer.begin_transaction()
        with broker.on("Metadata").hold() as held:
            waiting = asyncio.ensure_future(producer.send("other", b"v"))
            await held.reached()
            broker.on("Produce").fail(ClusterAuthorizationFailedError)
            with pytest.raises(ClusterAuthorizationFailedError):
                await producer.send_and_wait("t", b"v", partition=0)
        with pytest.raises(ClusterAuthorizationFailedError):
            await waiting


async def test_after_a_fatal_error_every_call_raises_it(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_of(broker) as producer:
        broker.on("Produce").fail(ClusterAuthorizationFailedError)
        with pytest.raises(ClusterAuthorizationFailedError):
            await producer.send_and_wait("t", b"v", partition=0)
        for _ in range(2):
            with pytest.raises(ClusterAuthorizationFailedError):
                await producer.send("t", b"v", partition=0)
            with pytest.raises(ClusterAuthorizationFailedError):
                await producer.flush()
    assert caplog.text.count("the producer has failed permanently") == 1
    assert await values_in(broker, "t") == []


@pytest.mark.parametrize("place", ["ProduceRequest", "fate_of"])
async def test_a_bug_in_sending_or_in_the_handling_of_answers_is_told_and_ends_the_producer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(*args: object, **kwargs: object) -> BatchFate:
        raise ZeroDivisionError

    async with producer_of(broker) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        monkeypatch.setattr(sender, place, fail)
        broker.on("Produce").fail(NotEnoughReplicasError)
        future = await producer.send("t", b"1", partition=0)
        for _ in range(2):
            with pytest.raises(KafkaError, match="a bug") as caught:
                await future
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            future = asyncio.ensure_future(producer.send_and_wait("t", b"2", partition=0))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task does not know who cancels it")
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_program_that_ends_without_a_stop_is_told_of_lost_records_and_of_no_bug(
    caplog: pytest.LogCaptureFixture, *, is_lost: bool
) -> None:
    async def main() -> None:
        broker = Broker()
        await broker.start()
        producer = producer_of(broker)
        await producer.start()
        await producer.send_and_wait("t", b"v")
        if is_lost:
            broker.on("Produce").hold()
            future = await producer.send("t", b"w")
            future.add_done_callback(lambda it: it.cancelled() or it.exception())
        raise ZeroDivisionError

    with pytest.warns(ResourceWarning, match="Unclosed"):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(main())
        gc.collect()
    told = [each for each in caplog.records if each.name.startswith("aiokafka_lite.producing")]
    assert [each.getMessage() for each in told if each.levelno >= logging.WARNING] == [
        "ProducerClosed: the event loop ended before the producer was stopped: unsent records of "
        "this producer may be lost"
    ] * is_lost


async def test_whenever_a_producer_is_stopped_during_its_start_it_takes_no_record(
    broker: Broker,
) -> None:
    async def start(*, turns: int) -> int:
        """Stop after so many turns of the loop, and return how many there are at most."""
        producer = producer_of(broker)
        starting, count = asyncio.ensure_future(producer.start()), 0
        while count < turns and not starting.done():
            await asyncio.sleep(0)
            count += 1
        await producer.stop()
        await asyncio.wait([starting])
        assert starting.exception() is None or isinstance(starting.exception(), KafkaError)
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"v")
        return count

    most = await start(turns=1_000)
    for turns in range(max(most - 8, 0), most + 1):
        await start(turns=turns)


async def test_a_failed_start_leaves_nothing_and_may_be_tried_again(broker: Broker) -> None:
    broker.on("InitProducerId").fail(ClusterAuthorizationFailedError)
    producer = producer_of(broker)
    with pytest.raises(ClusterAuthorizationFailedError):
        await producer.start()
    await producer.start()
    await producer.send_and_wait("t", b"v")
    await producer.stop()


@pytest.mark.virtual_time
async def test_a_start_without_a_producer_id_ends_in_time(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    producer = producer_of(broker, request_timeout_ms=5_000)
    rule = broker.on("InitProducerId").fail(CoordinatorLoadInProgressError, times=None)
    with pytest.raises(KafkaTimeoutError, match="no broker returned a producer id"):
        await producer.start()
    assert 3.0 < loop.time() <= 5.0
    assert 5 < rule.hits < 20


async def test_a_topic_that_does_not_exist_is_not_asked_for_any_more() -> None:
    async with Broker(auto_create_topics=False) as broker:
        broker.create_topic("t")
        async with producer_of(broker, request_timeout_ms=200) as producer:
            with pytest.raises(UnknownTopicOrPartitionError, match="was not found"):
                await producer.send("missing", b"v")
            await producer.send_and_wait("t", b"v")
            last = broker.requests.of("Metadata")[-1].request
            assert isinstance(last, MetadataRequest)
            assert [topic.name for topic in last.topics or ()] == ["t"]


async def test_a_producer_that_is_stopping_takes_no_record(broker: Broker) -> None:
    producer = producer_of(broker)
    await producer.start()
    await producer.partitions_for("t")
    with broker.on("Produce").hold():
        first = await producer.send("t", b"0", partition=0)
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.sleep(0)
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"1", partition=0)
    await stopping
    assert (await first).offset == 0
    assert await values_in(broker, "t") == [b"0"]


def tasks_of_producers() -> list[str]:
    """Return the names of tasks of producers that are running."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("produce:")]


@pytest.mark.virtual_time
async def test_stop_in_time_fails_what_is_not_acknowledged(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    producer = producer_of(broker)
    await producer.start()
    await producer.partitions_for("t")
    assert tasks_of_producers()
    with broker.on("Produce").silence(times=None):
        future = await producer.send("t", b"v", partition=0)
        began = loop.time()
        await producer.stop(timeout=3)
    assert loop.time() - began == pytest.approx(3)
    assert tasks_of_producers() == []
    with pytest.raises(ProducerClosed, match="before the record was acknowledged"):
        await future


@pytest.mark.virtual_time
async def test_a_stop_that_is_cancelled_fails_what_is_not_acknowledged(broker: Broker) -> None:
    producer = producer_of(broker)
    await producer.start()
    with broker.on("Produce").silence(times=None) as rule:
        future = await producer.send("t", b"v", partition=0)
        stopping = asyncio.ensure_future(producer.stop())
        await rule.reached()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        with pytest.raises(ProducerClosed):
            await future
    await until(lambda: broker.connection_count == 0)


@pytest.mark.virtual_time
async def test_a_send_that_waits_for_metadata_ends_with_the_producer(broker: Broker) -> None:
    async with producer_of(broker) as producer:
        with broker.on("Metadata").hold() as held:
            waiting = asyncio.ensure_future(producer.send("t", b"v"))
            await held.reached()
            await producer.stop(timeout=0)
            with pytest.raises(ProducerClosed, match="during the call"):
                await waiting


@pytest.mark.virtual_time
@pytest.mark.parametrize("transactional_id", [None, "tx"])
async def test_a_producer_that_is_starting_takes_no_record(
    broker: Broker, transactional_id: str | None
) -> None:
    producer = producer_of(broker, transactional_id=transactional_id)
    with broker.on("InitProducerId").hold() as held:
        starting = asyncio.ensure_future(producer.start())
        await held.reached()
        with pytest.raises(IllegalStateError, match="not started"):
            await producer.send("t", b"v")
    await starting
    await producer.stop()


@pytest.mark.virtual_time
async def test_a_topic_that_cannot_exist_is_refused_at_once(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    async with producer_of(broker) as producer:
        began = loop.time()
        with pytest.raises(InvalidTopicError, match="cannot send to topic 'no name'"):
            await producer.send("no name", b"v")
        assert loop.time() - began < 1


# --- Room and rate -----------------------------------------------------------------------------
async def test_send_waits_for_room_and_goes_on_in_order(broker: Broker) -> None:
    async with producer_of(broker, buffer_memory=2_000) as producer:
        await producer.partitions_for("t")
        rule = broker.on("Produce").hold()
        sending = asyncio.ensure_future(send_numbers(producer, "t", range(200)))
        await asyncio.wait([sending], timeout=0.1)
        await producer.client.force_metadata_update()  # which makes no room
        await asyncio.sleep(0)
        assert not sending.done()
        rule.remove()
        await asyncio.gather(*await sending)
    assert await values_in(broker, "t") == as_values(range(200))


@pytest.mark.virtual_time
async def test_a_full_buffer_ends_the_linger(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    async with producer_of(broker, buffer_memory=2_000, linger_ms=5_000) as producer:
        await producer.partitions_for("t")
        began = loop.time()
        futures = await send_numbers(producer, "t", range(200))
        assert loop.time() - began < 5
        await producer.flush()
        await asyncio.gather(*futures)
    assert await values_in(broker, "t") == as_values(range(200))


async def test_no_room_in_time_is_an_error_and_a_cancelled_send_is_not_sent(
    broker: Broker,
) -> None:
    async with producer_of(broker, buffer_memory=100, request_timeout_ms=300) as producer:
        await producer.partitions_for("t")
        with broker.on("Produce").hold() as rule:
            first = await producer.send("t", bytes(60), partition=0)
            waiting = asyncio.ensure_future(producer.send("t", b"cancelled" * 6, partition=0))
            with pytest.raises(KafkaTimeoutError, match="buffer_memory=100"):
                await producer.send("t", b"late" * 12, partition=0)
            waiting.cancel()
            rule.release()
        await asyncio.gather(first, waiting, return_exceptions=True)
        assert waiting.cancelled() or isinstance(waiting.exception(), KafkaTimeoutError)
        with pytest.raises(KafkaError, match="never fits"):
            await producer.send("t", bytes(101), partition=0)
    assert await values_in(broker, "t") == [bytes(60)]


async def test_a_throttled_producer_holds_back(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    async with producer_of(broker) as producer:
        broker.on("Produce").throttle(0.4)  # the broker would take the next one at once
        await producer.send_and_wait("t", b"0", partition=0)
        began = loop.time()
        await producer.send_and_wait("t", b"1", partition=0)
        assert loop.time() - began > 0.3


@pytest.mark.parametrize("what", ["throttled", "not reachable", "does not answer"])
async def test_what_expires_unsent_names_what_its_leader_was_waited_for(
    broker: Broker, what: str
) -> None:
    reasons = {
        "throttled": (ThrottlingQuotaExceededError, r"node \d at \S+ throttles this client for"),
        "not reachable": (KafkaConnectionError, "cannot connect"),
        "does not answer": (KafkaConnectionError, "is still being opened"),
    }
    # What the producer asks for metadata is not the leader: the leader is connected to later.
    asked = next(node for node in broker.live_nodes if node.id != broker.leader_of(TP))
    async with producer_of(
        asked.bootstrap_servers, request_timeout_ms=500, delivery_timeout_ms=500
    ) as producer:
        await producer.partitions_for("t")
        if what == "throttled":
            broker.on("Produce").throttle(5)
            await producer.send_and_wait("t", b"0", partition=0)
        elif what == "not reachable":
            for node in (1, 2, 3):
                await broker.stop_node(node, clean=False)
            # It has been waited for before the batch is there.
            await asyncio.wait([await producer.send("t", b"0", partition=0)], timeout=0.3)
        else:
            broker.on("ApiVersions").silence(times=None)
        late = await producer.send("t", b"late", partition=0)
        with pytest.raises(KafkaTimeoutError, match="could not be sent, last ") as caught:
            await late
        kind, text = reasons[what]
        assert isinstance(caught.value.__cause__, kind)
        assert re.search(text, str(caught.value))
