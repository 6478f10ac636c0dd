"""Transactions on a broker that fails, in both ways that brokers speak of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite._transaction import DecidedOffsets
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.handlers.base import RequestContext
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    CommitFailedError,
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedMemberEpochError,
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    InvalidProducerIdMapping,
    InvalidSessionTimeoutError,
    InvalidTimestampError,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    KafkaTimeoutError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OperationNotAttempted,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFencedError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    TopicAuthorizationFailedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationFailed,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.coordinators import FROM_MEMORY
from aiokafka_lite.producing.group_offsets import DeliverySource, OffsetsOfGroup
from aiokafka_lite.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    InitProducerIdRequest,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import ConsumerGroupMetadata, TopicPartition
from tests.producing.sending import as_values, producer_of, send_numbers, values_in
from tests.support.reading import consumer_of
from tests.support.waiting import until

TP = TopicPartition("t", 0)
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """Three nodes, and a topic "t"; with and without KIP-890."""
    async with Broker(
        nodes=3, default_replication_factor=3, transaction_version=request.param
    ) as broker:
        broker.create_topic("t", 2)
        yield broker
    assert broker.failure is None


@pytest.fixture
async def producer(broker: Broker) -> AsyncIterator[AIOKafkaProducer]:
    async with producer_of(broker, transactional_id="tx") as producer:
        yield producer


async def committed_in(broker: Broker, partition: int = 0) -> list[bytes | None]:
    return await values_in(broker, "t", partition, isolation_level="read_committed")


async def commit(producer: AIOKafkaProducer, numbers: range) -> None:
    async with producer.transaction():
        await send_numbers(producer, "t", numbers)


async def test_the_version_of_the_cluster_decides_who_adds_partitions(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    with broker.on("AddPartitionsToTxn").delay(0.0, times=None) as added:
        async with producer.transaction() as tx:
            await send_numbers(producer, "t", range(3))
            tx.commit_offsets({TP: 3}, "g")
    is_old = broker.config.transaction_version == 1
    assert bool(added.hits) == is_old
    for api, version in (("Produce", 11), ("TxnOffsetCommit", 4), ("EndTxn", 4)):
        (seen,) = broker.requests.of(api)
        assert (seen.api_version == version) if is_old else (seen.api_version > version)


async def test_a_transaction_without_records_asks_nobody(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    before = len(broker.requests)
    async with producer.transaction():
        pass
    await producer.begin_transaction()
    await producer.abort_transaction()
    assert len(broker.requests) == before
    await commit(producer, range(3))
    async with producer.transaction() as tx:
        tx.commit_offsets(delivery(OffsetsOfGroup(ConsumerGroupMetadata("g"), {})))
    assert len(broker.requests.of("EndTxn")) == 1
    assert not broker.requests.of("TxnOffsetCommit")


def delivery(offsets: OffsetsOfGroup) -> DeliverySource:
    """Return an object whose records have these offsets."""
    return cast("DeliverySource", SimpleNamespace(delivery=lambda: offsets))


async def test_offsets_of_an_aborted_transaction_are_not_committed_with_the_next(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    async def fail() -> None:
        async with producer.transaction() as tx:
            await tx.send_and_wait("t", b"lost", partition=0)
            tx.commit_offsets({TP: 5}, "g")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with producer.transaction() as tx:
        await tx.send("t", b"kept", partition=0)
        tx.commit_offsets({TopicPartition("t", 1): 3}, "g")
    assert broker.committed("g") == {TopicPartition("t", 1): 3}


# --- What passes by itself ---------------------------------------------------------------------
@pytest.mark.few_rows(12)
@pytest.mark.parametrize(
    "error",
    [
        ConcurrentTransactions,
        CoordinatorLoadInProgressError,
        CoordinatorNotAvailableError,
        NotCoordinatorError,
    ],
)
@pytest.mark.parametrize(
    "api", ["InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
)
async def test_a_coordinator_that_is_not_ready_is_asked_again(
    broker: Broker, api: str, error: type[BrokerResponseError]
) -> None:
    broker.on(api).fail(error, times=2)
    async with producer_of(broker, transactional_id="tx") as producer:
        for start in (0, 3):
            async with producer.transaction() as tx:
                await send_numbers(producer, "t", range(start, start + 3))
                tx.commit_offsets({TP: start + 1}, "g")
    assert await committed_in(broker) == as_values(range(6))


@pytest.mark.virtual_time
async def test_a_transaction_that_is_not_over_yet_is_waited_for_briefly(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    async with producer_of(broker, transactional_id="tx", retry_backoff_ms=5_000) as producer:
        await commit(producer, range(1))
        broker.on("AddOffsetsToTxn").fail(ConcurrentTransactions)
        broker.on("TxnOffsetCommit").fail(ConcurrentTransactions)
        began = loop.time()
        async with producer.transaction() as tx:
            tx.commit_offsets({TP: 1}, "g")
        assert loop.time() - began < 1


@pytest.mark.few_rows(8)
@pytest.mark.parametrize("handled", [True, False], ids=["done", "not-done"])
@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "TxnOffsetCommit", "EndTxn", "Produce"])
async def test_a_lost_connection_costs_no_transaction(
    broker: Broker, producer: AIOKafkaProducer, api: str, handled: bool
) -> None:
    for start in range(0, 9, 3):
        broker.on(api).disconnect(handled=handled)
        async with producer.transaction() as tx:
            await send_numbers(producer, "t", range(start, start + 3))
            tx.commit_offsets({TP: start + 1}, "g")
    assert await committed_in(broker) == as_values(range(9))
    assert await values_in(broker, "t") == as_values(range(9))


@pytest.mark.parametrize("handled", [True, False], ids=["done", "not-done"])
async def test_an_abort_whose_answer_is_lost_is_asked_for_again(
    broker: Broker, producer: AIOKafkaProducer, handled: bool
) -> None:
    await producer.begin_transaction()
    await asyncio.gather(*await send_numbers(producer, "t", range(3)))
    broker.on("EndTxn").disconnect(handled=handled)
    await producer.abort_transaction()
    await commit(producer, range(3, 6))
    assert await committed_in(broker) == as_values(range(3, 6))
    assert len(broker.requests.of("InitProducerId")) == 1, "no sequence is in doubt"


async def test_the_coordinator_moves_between_and_within_transactions(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    for start in range(0, 20, 5):
        async with producer.transaction():
            await asyncio.gather(*await send_numbers(producer, "t", range(start, start + 3)))
            move_transaction_coordinator(broker)
            await send_numbers(producer, "t", range(start + 3, start + 5))
        move_transaction_coordinator(broker)

    def is_outdated(context: RequestContext, _: object) -> bool:
        return context.node.id != broker.catalog.coordinator_of("__transaction_state", "tx")

    api = "AddPartitionsToTxn" if broker.config.transaction_version == 1 else "EndTxn"
    await commit(producer, range(20, 21))
    for number, error in enumerate(FROM_MEMORY, 21):
        move_transaction_coordinator(broker)
        # As a node that was suspended answers before it has read the cluster's log.
        with broker.on(api, when=is_outdated).fail(error) as rule:
            await commit(producer, range(number, number + 1))
        assert rule.hits == 1
    assert await committed_in(broker) == as_values(range(25))


@pytest.mark.virtual_time
async def test_a_fenced_producer_fails_whatever_the_other_nodes_know(broker: Broker) -> None:
    def is_other(context: RequestContext, _: object) -> bool:
        return context.node.id != broker.catalog.coordinator_of("__transaction_state", "tx")

    loop = asyncio.get_running_loop()
    finds = broker.on("FindCoordinator", when=is_other)
    for are_outdated, least_s, most_s in ((False, 0.0, 1.0), (True, 30.0, 41.0)):
        async with producer_of(broker, transactional_id="tx") as old:
            await old.begin_transaction()
            await asyncio.gather(*await send_numbers(old, "t", range(1)))
            async with producer_of(broker, transactional_id="tx"):
                pass
            began_at = loop.time()
            if are_outdated:
                finds.fail(CoordinatorNotAvailableError, times=None)
            with pytest.raises(ProducerFencedError):
                await old.commit_transaction()
            assert least_s <= loop.time() - began_at < most_s


def move_transaction_coordinator(broker: Broker) -> None:
    topic = broker.known_topic("__transaction_state")
    for partition in topic.partitions:
        broker.move_leader(TopicPartition(topic.name, partition.index))


async def test_leaders_move_and_replicas_lack_within_a_transaction(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    for start in range(0, 40, 10):
        async with producer.transaction():
            for number in range(start, start + 10):
                await send_numbers(producer, "t", range(number, number + 1))
                await asyncio.sleep(0)
            broker.on("Produce").fail(NotEnoughReplicasError)
            broker.move_leader(TP)
    assert await committed_in(broker) == as_values(range(40))


@pytest.mark.virtual_time
@pytest.mark.parametrize("seed", SEEDS)
async def test_transactions_are_whole_in_a_storm_of_faults(broker: Broker, seed: int) -> None:
    rng = random.Random(seed)
    apis = ["Produce", "EndTxn", "AddPartitionsToTxn", "FindCoordinator", "TxnOffsetCommit"]
    async with producer_of(
        broker, transactional_id="tx", request_timeout_ms=300, max_batch_size=200
    ) as producer:
        written = 0
        while written < 150:
            strike(broker, rng, rng.choice(apis))
            try:
                async with producer.transaction() as tx:
                    for number in range(written, written + 10):
                        await tx.send("t", b"%d" % number, partition=0)
                        if rng.random() < 0.3:
                            await asyncio.sleep(0)
                    tx.commit_offsets({TP: written + 10}, "g")
                    if rng.random() < 0.2:
                        raise ZeroDivisionError
            except (TransactionAbortableError, ZeroDivisionError):
                continue
            written += 10
    assert await committed_in(broker) == as_values(range(written))
    async with consumer_of(broker, group_id="g", enable_auto_commit=False) as observer:
        observer.assign([TP])
        assert await observer.committed(TP) == written


def strike(broker: Broker, rng: random.Random, api: str) -> None:
    action = rng.randrange(7)
    if action == 0:
        broker.on(api).disconnect(handled=rng.random() < 0.5)
    elif action == 1:
        broker.on(api).silence(handled=rng.random() < 0.5)
    elif action == 2:
        broker.on(api).delay(rng.random() * 0.05, times=2)
    elif action == 3:
        broker.move_leader(TP)
    elif action == 4:
        move_transaction_coordinator(broker)
    elif action == 5:
        broker.on("Produce").fail(rng.choice([NotEnoughReplicasError, InvalidTimestampError]))


@pytest.mark.parametrize("broker", [1], indirect=True)  # from 2 on brokers add by themselves
@pytest.mark.parametrize("error", [UnknownTopicOrPartitionError, TopicAuthorizationFailedError])
async def test_a_partition_that_cannot_be_added_is_what_others_are_refused_for(
    broker: Broker, producer: AIOKafkaProducer, error: type[BrokerResponseError]
) -> None:
    def refuse(context: object, request: Request[Response]) -> AddPartitionsToTxnResponse:
        codes = {0: OperationNotAttempted.errno, 1: error.errno}
        results = [
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            for index, code in codes.items()
        ]
        topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=results)
        return AddPartitionsToTxnResponse(
            results_by_transaction=[AddPartitionsToTxnResult(topic_results=[topic])]
        )

    broker.on("AddPartitionsToTxn").answer(refuse)
    await producer.begin_transaction()
    futures = [await producer.send("t", b"v", partition=index) for index in range(2)]
    if error.retriable:
        asked = len(broker.requests.of("Metadata"))
        await asyncio.gather(*futures)
        await producer.commit_transaction()
        await until(lambda: len(broker.requests.of("Metadata")) > asked)
        return
    with pytest.raises(TransactionAbortableError) as caught:
        await producer.commit_transaction()
    assert isinstance(caught.value.__cause__, error)
    await producer.abort_transaction()
    await commit(producer, range(3))


# --- What breaks a transaction -----------------------------------------------------------------
@pytest.mark.parametrize(
    "error",
    [
        InvalidTimestampError,
        InvalidTxnState,
        OutOfOrderSequenceNumber,
        TopicAuthorizationFailedError,
        TransactionAbortableError,
    ],
)
async def test_after_a_refused_record_an_abort_makes_all_well(
    broker: Broker, producer: AIOKafkaProducer, error: type[BrokerResponseError]
) -> None:
    await commit(producer, range(3))
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"lost", partition=0)
    broker.on("Produce").fail(error)
    futures = await send_numbers(producer, "t", range(10, 20))
    with pytest.raises(error):
        await futures[0]
    with pytest.raises(TransactionAbortableError):
        await producer.send("t", b"more", partition=1)
    with pytest.raises(TransactionAbortableError):
        await producer.commit_transaction()
    await producer.abort_transaction()
    await commit(producer, range(3, 6))
    assert await committed_in(broker) == as_values(range(6))


@pytest.mark.virtual_time
async def test_a_record_that_is_lost_in_time_breaks_the_transaction(broker: Broker) -> None:
    async with producer_of(
        broker, transactional_id="tx", request_timeout_ms=200, delivery_timeout_ms=400
    ) as producer:
        await commit(producer, range(3))
        with broker.on("Produce").silence(times=None):
            await producer.begin_transaction()
            future = await producer.send("t", b"lost", partition=0)
            with pytest.raises(KafkaTimeoutError):
                await future
        await producer.abort_transaction()
        await commit(producer, range(3, 6))
    assert await committed_in(broker) == as_values(range(6))
    _, *again = broker.requests.of("InitProducerId")
    assert len(again) == (broker.config.transaction_version == 1)
    for each in again:  # or it would fence a newer producer
        assert isinstance(each.request, InitProducerIdRequest)
        assert each.request.producer_id >= 0


async def test_a_commit_that_the_coordinator_refuses_is_aborted_and_known_to_be(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    broker.on("EndTxn").fail(TransactionAbortableError)
    tx = producer.transaction()

    async def write() -> None:
        async with tx:
            await tx.send("t", b"lost", partition=0)

    with pytest.raises(TransactionAbortableError):
        await write()
    assert tx.is_committed is False
    await commit(producer, range(3))
    assert await committed_in(broker) == as_values(range(3))


async def test_a_delivery_that_is_refused_at_once_breaks_the_transaction(
    producer: AIOKafkaProducer,
) -> None:
    class Revoked(OffsetsOfGroup):
        def to_commit(self) -> tuple[ConsumerGroupMetadata, DecidedOffsets]:
            raise CommitFailedError("revoked")

    await producer.begin_transaction()
    with pytest.raises(CommitFailedError, match="revoked"):
        await producer.send_offsets_to_transaction({TP: 1}, cast("str", Group(Revoked)))
    with pytest.raises(TransactionAbortableError, match="revoked"):
        await producer.commit_transaction()
    await producer.abort_transaction()


class Group:
    """A group of a consumer that makes deliveries of a class."""

    def __init__(self, cls: type[OffsetsOfGroup]) -> None:
        self._cls = cls

    def name(self, offsets: DecidedOffsets) -> OffsetsOfGroup:
        return self._cls(ConsumerGroupMetadata("g"), offsets)


async def test_offsets_that_are_refused_break_the_transaction(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    broker.on("TxnOffsetCommit").fail(GroupAuthorizationFailedError, times=2)
    await producer.begin_transaction()
    with pytest.raises(GroupAuthorizationFailedError):
        await producer.send_offsets_to_transaction({TP: 1}, "g")
    with pytest.raises(TransactionAbortableError):
        await producer.commit_transaction()
    await producer.abort_transaction()

    async def commit_offsets() -> None:
        async with producer.transaction() as tx:
            await tx.send("t", b"lost", partition=0)
            tx.commit_offsets({TP: 1}, "g")

    with pytest.raises(GroupAuthorizationFailedError):
        await commit_offsets()
    await commit(producer, range(3))
    assert await committed_in(broker) == as_values(range(3))


@pytest.mark.parametrize(
    "error",
    [
        FencedMemberEpochError,
        IllegalGenerationError,
        RebalanceInProgressError,
        StaleMemberEpochError,
        UnknownMemberIdError,
    ],
)
async def test_offsets_of_a_member_that_has_lost_its_partitions_are_a_failed_commit(
    broker: Broker, producer: AIOKafkaProducer, error: type[BrokerResponseError]
) -> None:
    async def at_the_end() -> None:
        async with producer.transaction() as tx:
            await tx.send("t", b"lost", partition=0)
            tx.commit_offsets({TP: 1}, "g")

    broker.on("TxnOffsetCommit").fail(error, times=2)
    with pytest.raises(CommitFailedError) as caught:
        await at_the_end()
    assert isinstance(caught.value.__cause__, error)
    await producer.begin_transaction()
    with pytest.raises(CommitFailedError):
        await producer.send_offsets_to_transaction({TP: 1}, "g")
    await producer.abort_transaction()
    assert broker.committed("g") == {}


@pytest.mark.parametrize("group", ["", None, 5])
async def test_offsets_of_no_group_are_refused(producer: AIOKafkaProducer, group: str) -> None:
    async with producer.transaction() as tx:
        with pytest.raises(ValueError, match="group_id must be a group's name"):
            await producer.send_offsets_to_transaction({TP: 1}, group)
        with pytest.raises((ValueError, TypeError), match="group"):
            tx.commit_offsets({TP: 1}, group)
        with pytest.raises(TypeError, match="only with a dict of offsets"):
            tx.commit_offsets(delivery(OffsetsOfGroup(ConsumerGroupMetadata("g"), {})), "g")


@pytest.mark.parametrize("text", ["\ud800", "x" * 32_768], ids=["no UTF-8", "too long"])
async def test_offsets_that_no_request_has_room_for_are_refused_and_the_transaction_goes_on(
    broker: Broker, producer: AIOKafkaProducer, text: str
) -> None:
    async with producer.transaction():
        with pytest.raises(ValueError, match="group_id must"):
            await producer.send_offsets_to_transaction({TP: 1}, text)
        with pytest.raises(ValueError, match="group_id must"):
            await producer.send_offsets_to_transaction({TP: 1}, ConsumerGroupMetadata(text))
        with pytest.raises(ValueError, match="the metadata of an offset must"):
            await producer.send_offsets_to_transaction({TP: (1, text)}, "g")
        await producer.send_offsets_to_transaction({TP: 1}, "g")
    assert broker.committed("g") == {TP: 1}


@pytest.mark.virtual_time
@pytest.mark.parametrize("broker", [1], indirect=True)
async def test_an_abort_does_not_wait_for_a_partition_that_cannot_be_added(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    loop = asyncio.get_running_loop()
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"lost", partition=0)
    with broker.on("AddPartitionsToTxn").fail(UnknownTopicOrPartitionError, times=None):
        await producer.send("t", b"never added", partition=1)
        await asyncio.sleep(3)
        began = loop.time()
        await producer.abort_transaction()
        assert loop.time() - began < 3
    await commit(producer, range(3))
    assert await committed_in(broker) == as_values(range(3))
    added = broker.requests.of("AddPartitionsToTxn")[-1].request
    assert isinstance(added, AddPartitionsToTxnRequest)
    assert [each.partitions for each in added.transactions[0].topics] == [[0]], "what is written"


@pytest.mark.virtual_time
async def test_offsets_that_cannot_be_stored_fail_within_the_delivery_timeout(
    broker: Broker,
) -> None:
    loop = asyncio.get_running_loop()
    async with producer_of(
        broker, transactional_id="tx", request_timeout_ms=4_000, delivery_timeout_ms=4_000
    ) as producer:
        await commit(producer, range(1))
        broker.on("AddOffsetsToTxn").delay(3.0)
        broker.on("TxnOffsetCommit").fail(CoordinatorLoadInProgressError, times=None)
        await producer.begin_transaction()
        began = loop.time()
        with pytest.raises(KafkaTimeoutError, match="coordinator of group 'g'"):
            await producer.send_offsets_to_transaction({TP: 1}, "g")
        assert loop.time() - began <= 4.0
        await producer.abort_transaction()


@pytest.mark.virtual_time
async def test_a_start_without_a_coordinator_ends_in_time(broker: Broker) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(100)
    broker.on("FindCoordinator").fail(CoordinatorNotAvailableError, times=None)
    began = loop.time()
    with pytest.raises(KafkaError):
        await producer_of(broker, transactional_id="tx", request_timeout_ms=5_000).start()
    assert 3 < loop.time() - began < 6


# --- What ends a producer ----------------------------------------------------------------------
async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_is_told(
    broker: Broker,
) -> None:
    async with producer_of(broker, transactional_id="tx", transaction_timeout_ms=100) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"too slow", partition=0)
        async with consumer_of(broker, "t", isolation_level="read_committed") as consumer:
            while not (consumer.last_stable_offset(TP) or 0):  # the coordinator's marker is behind
                await consumer.getmany(timeout_ms=50)
        with pytest.raises(KafkaError, match="transaction_timeout_ms=100") as caught:
            await producer.commit_transaction()
        assert isinstance(caught.value, (ProducerFencedError, InvalidTxnState))
        with pytest.raises(type(caught.value)):
            await producer.begin_transaction()
    async with producer_of(broker, transactional_id="tx") as producer:
        await commit(producer, range(3))
    assert await committed_in(broker) == as_values(range(3))


async def test_an_abort_that_is_refused_ends_the_producer(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"v", partition=0)
    broker.on("EndTxn").fail(InvalidTxnState)
    for call in (producer.abort_transaction, producer.begin_transaction):
        with pytest.raises(InvalidTxnState, match="aborting a transaction of 'tx' failed"):
            await call()


async def test_after_a_fatal_error_a_transaction_is_left_to_the_coordinator(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    tx = producer.transaction()

    async def write() -> None:
        async with tx:
            await tx.send_and_wait("t", b"lost", partition=0)

    broker.on("Produce").fail(ClusterAuthorizationFailedError)
    with pytest.raises(ClusterAuthorizationFailedError) as caught:
        await write()
    assert caught.value.__cause__ is None, "it is the error of the block"
    assert tx.is_committed is False
    await producer.stop()
    assert not broker.requests.of("EndTxn")


async def test_a_fatal_error_replaces_the_error_of_its_block(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    async def write() -> None:
        async with producer.transaction() as tx:
            await asyncio.wait([await tx.send("t", b"lost", partition=0)])
            raise CommitFailedError

    broker.on("Produce").fail(ClusterAuthorizationFailedError)
    with pytest.raises(ClusterAuthorizationFailedError) as caught:
        await write()
    assert isinstance(caught.value.__cause__, CommitFailedError)


@pytest.mark.virtual_time
async def test_a_commit_that_a_stop_cuts_short_is_known_to_have_failed(broker: Broker) -> None:
    async with producer_of(broker, transactional_id="tx") as producer:
        tx = producer.transaction()

        async def write() -> None:
            async with tx:
                await tx.send("t", b"lost", partition=0)

        broker.on("Produce").silence(times=None)
        writing = asyncio.ensure_future(write())
        await asyncio.sleep(1)
        assert tx.is_committed is None
        await producer.stop(timeout=1)
        assert tx.is_committed is False
        with pytest.raises(ProducerClosed):
            await writing


async def test_a_transaction_does_not_begin_after_a_stop(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"lost", partition=0)
    with broker.on("EndTxn").hold() as held:
        aborting = [asyncio.ensure_future(producer.abort_transaction()) for _ in range(2)]
        await held.reached()
        beginning = asyncio.ensure_future(producer.begin_transaction())
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.sleep(0)
    await asyncio.gather(*aborting, stopping)
    with pytest.raises(ProducerClosed):
        await beginning


async def test_a_producer_that_may_not_use_its_id_says_so_for_good(broker: Broker) -> None:
    broker.on("InitProducerId").fail(TransactionalIdAuthorizationFailed)
    producer = producer_of(broker, transactional_id="tx")
    with pytest.raises(TransactionalIdAuthorizationFailed, match="'tx'"):
        await producer.start()
    await producer.start()
    await producer.begin_transaction()
    broker.on("EndTxn").fail(TransactionalIdAuthorizationFailed)
    await producer.send("t", b"v")
    for call in (producer.commit_transaction, producer.abort_transaction, producer.flush):
        with pytest.raises(TransactionalIdAuthorizationFailed):
            await call()
    await producer.stop()


@pytest.mark.parametrize("api", ["Produce", "TxnOffsetCommit", "EndTxn"])
async def test_a_producer_whose_id_the_brokers_have_forgotten_is_told_what_to_do(
    broker: Broker, producer: AIOKafkaProducer, api: str
) -> None:
    async def write() -> None:
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"v", partition=0)
        await producer.send_offsets_to_transaction({TP: 1}, "g")
        await producer.commit_transaction()

    broker.on(api).fail(InvalidProducerIdMapping)
    with pytest.raises(InvalidProducerIdMapping, match=r"'tx'.*transactional\.id\.expiration\.ms"):
        await write()
    for call in (producer.commit_transaction, producer.abort_transaction, producer.flush):
        with pytest.raises(InvalidProducerIdMapping, match="another producer"):
            await call()


@pytest.mark.virtual_time
async def test_a_commit_without_an_answer_leaves_no_doubt_that_there_is_doubt(
    broker: Broker,
) -> None:
    async with producer_of(
        broker, transactional_id="tx", request_timeout_ms=200, delivery_timeout_ms=400
    ) as producer:
        with broker.on("EndTxn").silence(times=None):
            await producer.begin_transaction()
            await producer.send("t", b"v", partition=0)
            with pytest.raises(
                KafkaTimeoutError, match="it is unknown whether the transaction was committed"
            ):
                await producer.commit_transaction()
        with pytest.raises(KafkaTimeoutError, match="another producer"):
            await producer.begin_transaction()


@pytest.mark.virtual_time
async def test_leaving_the_block_does_not_wait_for_a_silent_coordinator_for_ever(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    producer = producer_of(
        broker, transactional_id="tx", request_timeout_ms=300, delivery_timeout_ms=60_000
    )
    await producer.start()

    async def fail() -> None:
        async with producer.transaction() as tx:
            await tx.send_and_wait("t", b"v", partition=0)
            raise ZeroDivisionError

    with broker.on("EndTxn").silence(times=None):
        async with timeout(5):
            with pytest.raises(ZeroDivisionError):
                await fail()
    assert "the transaction is still being aborted" in caplog.text
    async with timeout(10):
        await commit(producer, range(3))  # behind the abort, which goes on
    await producer.stop()
    assert await committed_in(broker) == as_values(range(3))


async def test_errors_are_kafkas(broker: Broker, producer: AIOKafkaProducer) -> None:
    broker.on("EndTxn").fail(InvalidTxnState)
    await producer.begin_transaction()
    await producer.send("t", b"v")
    with pytest.raises(KafkaError, match="committing a transaction of 'tx' failed"):
        await producer.commit_transaction()


@pytest.mark.parametrize("is_good", [True, False])
async def test_offsets_whose_sender_is_cancelled_are_stored_before_the_end(
    broker: Broker, producer: AIOKafkaProducer, *, is_good: bool
) -> None:
    end = producer.commit_transaction if is_good else producer.abort_transaction
    await producer.begin_transaction()
    with broker.on("TxnOffsetCommit").hold() as rule:
        sending = asyncio.ensure_future(producer.send_offsets_to_transaction({TP: 5}, "g"))
        await rule.reached()
        sending.cancel()
        await asyncio.wait([sending])
        ending = asyncio.ensure_future(end())
        await asyncio.wait([ending], timeout=0.1)
        assert not ending.done()
        assert not broker.requests.of("EndTxn")
    await ending
    async with consumer_of(broker, group_id="g", enable_auto_commit=False) as observer:
        observer.assign([TP])
        assert await observer.committed(TP) == (5 if is_good else None)


async def test_an_abort_waits_for_what_is_on_the_wire(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    await producer.begin_transaction()
    await producer.send_and_wait("t", b"lost", partition=0)
    with broker.on("Produce").hold() as rule:
        await producer.send("t", b"late", partition=0)
        await rule.reached()
        aborting = asyncio.ensure_future(producer.abort_transaction())
        await asyncio.wait([aborting], timeout=0.1)
        assert not aborting.done()
    await aborting
    await commit(producer, range(3))
    assert await committed_in(broker) == as_values(range(3))
    async with consumer_of(broker, "t", isolation_level="read_committed") as consumer:
        ends = await consumer.end_offsets([TP])
        assert ends[TP] == broker.partition(*TP).log.log_end_offset, "nothing hangs"


@pytest.mark.virtual_time
async def test_an_abort_tries_nothing_again_that_is_lost_meanwhile(broker: Broker) -> None:
    async with producer_of(broker, transactional_id="tx", request_timeout_ms=300) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"lost", partition=0)
        with broker.on("Produce").silence() as rule:
            future = await producer.send("t", b"late", partition=0)
            await rule.reached()
            await producer.abort_transaction()
        with pytest.raises(TransactionAbortableError, match="aborted before"):
            await future
        await commit(producer, range(3))
    assert await committed_in(broker) == as_values(range(3))


async def test_a_limit_of_the_brokers_is_named_with_the_setting_that_exceeds_it() -> None:
    async with Broker(transaction_max_timeout_ms=10_000, group_max_session_timeout_ms=8_000) as b:
        b.create_topic("t")
        with pytest.raises(InvalidTransactionTimeout, match=r"transaction_timeout_ms.*max"):
            await AIOKafkaProducer(
                bootstrap_servers=b.bootstrap_servers, transactional_id="too-long"
            ).start()
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=b.bootstrap_servers, group_id="g", group_protocol="classic"
        )
        with pytest.raises(InvalidSessionTimeoutError, match=r"session_timeout_ms.*group\.max"):
            await consumer.start()
        await consumer.stop()


async def test_a_flush_ends_though_the_topic_is_deleted_before_it_is_added_to_the_transaction() -> (
    None
):
    async with Broker(transaction_version=1, auto_create_topics=False) as broker:
        broker.create_topic("t")
        broker.create_topic("gone")
        async with producer_of(
            broker, transactional_id="tx", request_timeout_ms=500, delivery_timeout_ms=1_500
        ) as producer:
            async with producer.transaction():
                await producer.send("gone", b"known")
            with pytest.raises(TransactionAbortableError, match="UnknownTopicOrPartitionError"):
                await send_to_a_topic_that_is_deleted(broker, producer)
            await commit(producer, range(3))
        assert await committed_in(broker) == as_values(range(3))


async def send_to_a_topic_that_is_deleted(broker: Broker, producer: AIOKafkaProducer) -> None:
    async with producer.transaction():
        broker.delete_topic("gone")
        await producer.send("gone", b"lost")
        async with timeout(10):
            await producer.flush()


async def test_offsets_go_to_another_coordinator_when_theirs_has_left_the_cluster(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    async with producer.transaction() as tx:
        tx.commit_offsets({TP: 1}, "g")  # so that the group's coordinator is known
    await broker.stop_node(broker.coordinator_of("g"), clean=False)
    async with timeout(10), producer.transaction() as tx:
        await send_numbers(producer, "t", range(3))
        tx.commit_offsets({TP: 2}, "g")
    assert broker.committed("g") == {TP: 2}
    assert await committed_in(broker) == as_values(range(3))
