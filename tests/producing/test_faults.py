"""Records are written once and in order, whatever brokers and connections do meanwhile."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    BrokerResponseError,
    DuplicateSequenceNumber,
    InvalidTimestampError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumber,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
    TopicAuthorizationFailedError,
    UnknownProducerId,
)
from aiokafka_lite.producing import AIOKafkaProducer, sender
from aiokafka_lite.producing.sender import BatchFate
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.structs import RecordMetadata, TopicPartition
from tests.producing.sending import as_values, producer_of, send_numbers, values_in

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
async def test_pauses_between_attempts_double_up_to_a_second(broker: Broker) -> None:
    async with producer_of(broker, retry_backoff_ms=100) as producer:
        await producer.partitions_for("t")
        asked = len(broker.requests.of("Metadata"))
        broker.on("Produce").fail(NotEnoughReplicasError, times=5)
        await producer.send_and_wait("t", b"0", partition=0)
        assert len(broker.requests.of("Metadata")) == asked, "the leader is the same"
    times = [each.arrived_at for each in broker.requests.of("Produce")]
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
        with pytest.raises(KafkaTimeoutError, match="may have written the records") as caught:
            await lost
        assert caught.value.__cause__ is not None
        rule.remove()
        await asyncio.gather(*await send_numbers(producer, "t", range(50)))
    kept = [b"lost"] if is_written else []
    assert await values_in(broker, "t") == [b"first", *kept, *as_values(range(50))]


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
    assert caplog.text.count("rejected the sequence numbers of t-0 as out of order") == 1


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


# --- Room and rate -----------------------------------------------------------------------------


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
        with pytest.raises(
            KafkaTimeoutError,
            match=r"could not be sent\. The last error was: "
            r"",
        ) as caught:
            await late
        kind, text = reasons[what]
        assert isinstance(caught.value.__cause__, kind)
        assert re.search(text, str(caught.value))
