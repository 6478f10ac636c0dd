"""Transactions by themselves: their states and their requests, without a network."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import sys
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite._transaction import BegunTransaction, DecidedOffsets
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.versions import ApiVersions
from aiokafka_lite.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    CommitFailedError,
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    IllegalOperation,
    IllegalStateError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumber,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing.config import ProducerConfig
from aiokafka_lite.producing.group_offsets import OffsetsOfGroup
from aiokafka_lite.producing.transactions import Transactions, TransactionStage
from aiokafka_lite.protocol.framing import decode_request, encode_request
from aiokafka_lite.protocol.messages.offsets import PartitionErrorCode
from aiokafka_lite.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)
from aiokafka_lite.protocol.prepared import AnyRequest, PreparedRequest
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import ConsumerGroupMetadata, TopicPartition
from tests.producing.line import Line, ended
from tests.support.frames import request_in

pytestmark = pytest.mark.virtual_time
TP = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
GROUP = ConsumerGroupMetadata("g")


class Coordinated(Line):
    """A line with transactions, and a coordinator.

    Attributes:
        asked: The names and versions of the requests to the coordinator, in order.
        requests: The requests themselves.
        errors: The next errors of an API, by its name; then there is none.
        held: Whether the coordinator responds to no request until this is set.
        changes: How often the state has changed.
    """

    def __init__(self, version: int, **settings: object) -> None:
        super().__init__(2, transactional_id="tx", **settings)
        self.version = version
        self.asked: list[tuple[str, int]] = []
        self.requests: list[Request[Response]] = []
        self.errors: defaultdict[str, list[type[BrokerResponseError]]] = defaultdict(list)
        self.held = asyncio.Event()
        self.held.set()
        self.changes = 0
        self.fatal: list[KafkaError] = []
        self.config = SimpleNamespace(request_timeout_s=40.0)
        config: ProducerConfig = ProducerConfig(
            transactional_id="tx",
            retry_backoff_ms=10,
            **settings,  # type: ignore[arg-type]
        )
        self.transactions = Transactions(
            config,
            "tx",
            cast("Cluster", self),
            self.identity,
            self.accumulator,
            self.sender,
            self.scope,
            random.Random(1),
            on_change=self._note_change,
            fail=self._note_fatal,
        )
        self.admit: Callable[..., bool] = self.transactions.admit

    def _note_change(self) -> None:
        self.changes += 1

    def _note_fatal(self, error: KafkaError) -> None:
        self.fatal.append(error)

    async def find_coordinator(self, key: str, *, key_type: int, timeout_s: float) -> int:
        return 3

    async def find_coordinator_elsewhere(
        self, node_id: int, key: str, key_type: int, give_up_at: float
    ) -> int | None:
        return node_id

    async def connect(self, node_id: int, lane: object = None) -> object:
        features = {"transaction.version": self.version} if self.version else {}
        ranges = {TxnOffsetCommitRequest.api_key: (0, 6)}
        return SimpleNamespace(wire=SimpleNamespace(api_versions=ApiVersions(ranges, features)))

    async def request(self, node_id: int, request: AnyRequest[Response]) -> Response:
        name = request.request_class.__name__.removesuffix("Request")
        version = request.usable_max_version
        encoded = (
            request.encode(version, 1, None)
            if isinstance(request, PreparedRequest)
            else encode_request(request, version, 1, None)
        )
        frame = memoryview(encoded)[4:]
        self.asked.append((name, version))
        self.requests.append(request_in(decode_request(frame)))
        await self.held.wait()
        error = self.errors[name].pop(0) if self.errors[name] else NoError
        return self._response(name, self.requests[-1], error.errno)

    def _response(self, name: str, request: Request[Response], code: int) -> Response:
        if isinstance(request, InitProducerIdRequest):
            epoch = request.producer_epoch + 1
            return InitProducerIdResponse(error_code=code, producer_id=0, producer_epoch=epoch)
        if isinstance(request, AddPartitionsToTxnRequest):
            (transaction,) = request.transactions
            topics = [
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=code
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in transaction.topics
            ]
            result = AddPartitionsToTxnResult(topic_results=topics)
            return AddPartitionsToTxnResponse(results_by_transaction=[result])
        if isinstance(request, TxnOffsetCommitRequest):
            partition = PartitionErrorCode(partition_index=0, error_code=code)
            topic = TxnOffsetCommitResponseTopic(name="t", partitions=[partition])
            return TxnOffsetCommitResponse(topics=[topic])
        if isinstance(request, EndTxnRequest):
            if self.version < 2 or code:
                return EndTxnResponse(error_code=code)
            return EndTxnResponse(producer_id=0, producer_epoch=request.producer_epoch + 1)
        return AddOffsetsToTxnResponse(error_code=code)

    # --- The application -------------------------------------------------------------------
    async def write(self, partition: int = 0) -> None:
        """Write a record in the open transaction."""
        (future,) = await self.send(partition)
        (await self.next()).respond()
        await future

    async def commit(self) -> KafkaError | None:
        return await self.transactions.begin_commit()

    async def abort(self) -> KafkaError | None:
        return await self.transactions.begin_abort()


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
async def tx(request: pytest.FixtureRequest) -> AsyncIterator[Coordinated]:
    """Transactions that are started, of both versions."""
    async with started(request.param) as tx:
        yield tx


@asynccontextmanager
async def started(version: int, **settings: object) -> AsyncIterator[Coordinated]:
    async with ended(Coordinated(version, **settings)) as tx:
        await tx.transactions.start(tx.loop.time() + 10)
        yield tx


class Delivery(OffsetsOfGroup):
    """Offsets that note what becomes of them."""

    def __init__(self, *, ids: Collection[bytes] = (), offset: int = 1) -> None:
        super().__init__(GROUP, {TP: (offset, "", -1)})
        self.ids = ids
        self.outcomes: list[bool | None] = []
        self.confirmations = 0
        self.revoked: KafkaError | None = None
        self.unconfirmed: KafkaError | None = None
        self.blocks = 0
        self.is_alone = False
        # Whether each outcome came before other commits of its consumer.
        self.in_turn: list[bool] = []
        self.enlisted: list[bool] = []

    def enlist(self, transaction: BegunTransaction, *, is_stored: bool = False) -> None:
        self.enlisted.append(is_stored)

    def alone(self) -> AbstractAsyncContextManager[None]:
        return self._alone()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        self.blocks += 1
        self.is_alone = True
        try:
            yield
        finally:
            self.is_alone = False

    def topic_ids(self) -> Collection[tuple[TopicPartition, bytes]]:
        return [(TP, each) for each in self.ids]

    async def confirm_topics(self, deadline: float) -> None:
        self.confirmations += 1
        if self.unconfirmed is not None:
            raise self.unconfirmed

    def to_commit(self) -> tuple[ConsumerGroupMetadata, DecidedOffsets]:
        if self.revoked is not None:
            raise self.revoked
        return super().to_commit()

    def settle(self, transaction: BegunTransaction, *, is_committed: bool | None) -> None:
        self.outcomes.append(is_committed)
        self.in_turn.append(self.is_alone)


class Block:
    """A block of a batch that notes the outcome."""

    def __init__(self) -> None:
        self.outcomes: list[bool] = []

    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None:
        self.outcomes.append(is_committed)


# --- Requests ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("version", "asked"),
    [
        (0, [("AddPartitionsToTxn", 3), ("AddOffsetsToTxn", 4), ("TxnOffsetCommit", 4)]),
        (1, [("AddPartitionsToTxn", 3), ("AddOffsetsToTxn", 4), ("TxnOffsetCommit", 4)]),
        (2, [("TxnOffsetCommit", 5)]),
    ],
)
async def test_the_version_of_the_cluster_decides_which_requests_are_sent(
    version: int, asked: list[tuple[str, int]]
) -> None:
    async with started(version) as tx:
        assert tx.sender.newest_version == (13 if version == 2 else 11)
        tx.asked.clear()
        for number in range(2):
            before = tx.identity.current
            transaction = await tx.transactions.begin()
            await tx.write()
            delivery = Delivery()
            tx.transactions.commit_at_the_end(delivery)
            assert await tx.commit() is None
            assert tx.asked == [*asked, ("EndTxn", 5 if version == 2 else 4)]
            assert (transaction.is_committed, transaction.is_over) == (True, True)
            assert (delivery.outcomes, delivery.blocks, delivery.in_turn) == ([True], 1, [True])
            assert (tx.identity.current == before) is (version < 2)
            assert tx.transactions.state is TransactionStage.READY
            assert tx.transactions.current is None, number
            tx.asked.clear()
        await tx.transactions.begin()
        assert await tx.commit() is None
        await tx.transactions.begin()
        assert await tx.abort() is None
        assert not tx.asked, "there was nothing to end"


async def test_partitions_and_groups_are_added_together_and_once() -> None:
    async with started(1) as tx:
        await tx.transactions.begin()
        tx.asked.clear()
        await tx.send(0, 1)
        await tx.turn()
        request = await tx.next()
        assert request.partitions == [0, 1]
        request.respond()
        await tx.write(1)
        assert tx.asked == [("AddPartitionsToTxn", 3)]
        (added,) = cast("AddPartitionsToTxnRequest", tx.requests[-1]).transactions
        assert (added.producer_id, added.producer_epoch) == tx.identity.current
        for _ in range(2):
            await tx.transactions.send_offsets(Delivery())
        assert [name for name, _ in tx.asked[1:]] == ["AddOffsetsToTxn", "TxnOffsetCommit"] * 2


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("ids", "is_by_id"), [([], False), ([TOPIC_ID], True), ([TOPIC_ID, bytes(16)], False)]
)
async def test_topics_are_confirmed_unless_their_ids_are_sent(
    version: int, ids: list[bytes], *, is_by_id: bool
) -> None:
    async with started(version) as tx:
        await tx.transactions.begin()
        delivery = Delivery(ids=ids)
        await tx.transactions.send_offsets(delivery)
        is_sent = is_by_id and version == 2
        assert delivery.confirmations == (not is_sent)
        newest = 6 if is_sent else 5 if version == 2 else 4
        assert tx.asked[-1] == ("TxnOffsetCommit", newest)
        assert await tx.abort() is None
        assert delivery.outcomes == [False]


async def test_offsets_that_are_empty_are_not_sent(tx: Coordinated) -> None:
    await tx.transactions.begin()
    delivery = Delivery()
    delivery.offsets = {}
    tx.asked.clear()
    await tx.transactions.send_offsets(delivery)
    tx.transactions.commit_at_the_end(delivery)
    assert await tx.commit() is None
    assert not tx.asked
    assert delivery.outcomes == [True, True]


async def test_a_transaction_to_which_a_group_was_added_is_ended() -> None:
    async with started(1) as tx:
        await tx.transactions.begin()
        delivery = Delivery()
        delivery.unconfirmed = CommitFailedError("the topic was deleted")
        with pytest.raises(CommitFailedError):
            await tx.transactions.send_offsets(delivery)
        assert await tx.abort() is None
        assert tx.asked[-2:] == [("AddOffsetsToTxn", 4), ("EndTxn", 4)]


async def test_deliveries_of_one_source_are_committed_together(tx: Coordinated) -> None:
    await tx.transactions.begin()
    deliveries = [Delivery(offset=offset) for offset in (1, 2)]
    for delivery in deliveries:
        tx.transactions.commit_at_the_end(delivery)
    stored = Delivery(offset=3)
    await tx.transactions.send_offsets(stored)
    assert [each.enlisted for each in (*deliveries, stored)] == [[False], [False], [True]]
    before = tx.identity.current
    assert await tx.commit() is None
    sent = [each for each in tx.requests if isinstance(each, TxnOffsetCommitRequest)]
    offsets = [each.topics[0].partitions[0].committed_offset for each in sent]
    assert offsets == [3, 2]
    assert {(each.producer_id, each.producer_epoch) for each in sent} == {before}


async def test_nobody_keeps_the_task_that_has_stored_offsets(tx: Coordinated) -> None:
    await tx.transactions.begin()
    tx.held.clear()
    storing = asyncio.ensure_future(tx.transactions.send_offsets(Delivery()))
    await tx.turn()
    (kept,) = [
        weakref.ref(task) for task in asyncio.all_tasks() if "store offsets" in task.get_name()
    ]
    tx.held.set()
    await storing
    await tx.turn()
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    ("api", "version"), [("TxnOffsetCommit", 1), ("TxnOffsetCommit", 2), ("AddOffsetsToTxn", 1)]
)
async def test_offsets_that_are_refused_break_the_transaction(api: str, version: int) -> None:
    async with started(version) as tx:
        await tx.transactions.begin()
        tx.errors[api].append(GroupAuthorizationFailedError)
        with pytest.raises(GroupAuthorizationFailedError):
            await tx.transactions.send_offsets(Delivery())
        with pytest.raises(TransactionAbortableError):
            tx.transactions.begin_commit()
        assert await tx.abort() is None


async def test_an_abort_ends_the_attempts_to_store_offsets(tx: Coordinated) -> None:
    await tx.transactions.begin()
    tx.errors["TxnOffsetCommit"] = [CoordinatorLoadInProgressError] * 1_000
    storing = asyncio.ensure_future(tx.transactions.send_offsets(Delivery()))
    await asyncio.sleep(5)
    began = tx.loop.time()
    assert await tx.abort() is None
    assert tx.loop.time() - began < 2
    with pytest.raises(TransactionAbortableError):
        await storing


# --- Ends ----------------------------------------------------------------------------------------
async def test_an_abort_gives_up_what_is_unsent_and_waits_for_what_is_in_flight(
    tx: Coordinated,
) -> None:
    transaction = await tx.transactions.begin()
    block, delivery = Block(), Delivery()
    transaction.hold(block)
    tx.transactions.commit_at_the_end(delivery)
    await tx.write(0)
    (flying,) = await tx.send(0)
    await tx.turn()
    request = await tx.next()
    aborting = tx.transactions.begin_abort()
    assert tx.transactions.begin_abort() is aborting
    assert tx.transactions.ending is aborting
    assert (block.outcomes, delivery.outcomes, transaction.is_committed) == ([False],) * 2 + (
        False,
    )
    later = Block()
    transaction.hold(later)
    assert later.outcomes == [False]
    await asyncio.sleep(1)
    assert not aborting.done()
    request.respond()
    assert await aborting is None
    assert flying.result().offset == 0
    assert tx.asked[-1][0] == "EndTxn"
    assert len([name for name, _ in tx.asked if name == "InitProducerId"]) == 1
    assert transaction.is_over


async def test_sequences_in_doubt_get_another_epoch_after_an_abort(tx: Coordinated) -> None:
    await tx.transactions.begin()
    await tx.write()
    before = tx.identity.current
    assert before is not None
    (lost,) = await tx.send(0)
    (await tx.next()).respond(OutOfOrderSequenceNumber)
    assert lost.exception() is not None
    tx.asked.clear()
    assert await tx.abort() is None
    again = [("InitProducerId", 5)] if tx.version == 1 else []
    assert tx.asked == [("EndTxn", 5 if tx.version == 2 else 4), *again]
    assert tx.identity.current == before._replace(epoch=before.epoch + 1)
    await tx.transactions.begin()
    await tx.write()
    assert await tx.commit() is None


async def test_a_transaction_begins_after_the_end_of_the_one_before(tx: Coordinated) -> None:
    first = await tx.transactions.begin()
    with pytest.raises(IllegalStateError, match="one transaction at a time"):
        await tx.transactions.begin()
    await tx.write()
    tx.held.clear()
    ending = tx.transactions.begin_commit()
    beginning = asyncio.ensure_future(tx.transactions.begin())
    await tx.turn()
    assert not beginning.done()
    for refused in (tx.transactions.begin_commit, lambda: tx.transactions.require(first)):
        with pytest.raises(IllegalOperation, match="committing a transaction"):
            refused()
    tx.held.set()
    second = await beginning
    assert ending.result() is None
    assert (first.is_over, second.is_over) == (True, False)
    with pytest.raises(IllegalOperation, match="has ended"):
        tx.transactions.require(first)
    tx.transactions.require(second)


async def test_the_abort_of_an_abandoned_commit_is_not_that_of_the_next(tx: Coordinated) -> None:
    await tx.transactions.begin()
    await tx.write()
    tx.held.clear()
    tx.transactions.begin_commit()
    beginning = asyncio.ensure_future(tx.transactions.begin())
    await tx.turn()
    tx.transactions.abandon()
    tx.held.set()
    second = await beginning
    for _ in range(3):
        await tx.turn()
    tx.transactions.require(second)


async def test_a_commit_that_a_lost_record_spoils_is_aborted_when_abandoned(
    tx: Coordinated,
) -> None:
    await tx.transactions.begin()
    await tx.send(0)
    tx.transactions.begin_commit()
    await tx.turn()
    tx.transactions.spoil(GroupAuthorizationFailedError())
    tx.transactions.abandon()
    (await tx.next()).respond()
    await tx.transactions.begin()


@pytest.mark.parametrize("is_committing", [True, False])
async def test_no_transaction_is_aborted_when_the_producer_ends(
    tx: Coordinated, *, is_committing: bool
) -> None:
    await tx.transactions.begin()
    await tx.write()
    tx.held.clear()
    if is_committing:
        tx.transactions.begin_commit()
        await tx.turn()
    tx.scope.cancel_all()
    names = tx.scope.task_names
    tx.transactions.abandon()
    assert tx.scope.task_names == names


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task does not know who cancels it")
@pytest.mark.parametrize("end", ["open", "committing", "outlasted"])
def test_the_end_of_the_loop_starts_no_abort(end: str) -> None:
    names: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def write(tx: Coordinated) -> None:
        transactions = tx.transactions
        await transactions.begin()
        try:
            await tx.write()
            tx.held.clear()
            if end == "open":
                await tx.held.wait()
            ending = transactions.begin_commit()
            try:
                await transactions.outcome(ending)
            except asyncio.CancelledError:
                if end == "outlasted":
                    await transactions.outlast_commit(ending)
                raise
        finally:
            transactions.abandon()
            names.extend(tx.scope.task_names)

    async def main() -> None:
        tx = Coordinated(2)
        await tx.transactions.start(tx.loop.time() + 10)
        tasks.append(asyncio.ensure_future(write(tx)))
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert tasks[0].cancelled()
    assert not [name for name in names if name.endswith(":abort")]


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_commit_whose_caller_is_cancelled_ends_as_it_can(
    tx: Coordinated, *, is_sent: bool
) -> None:
    transaction = await tx.transactions.begin()
    await tx.write()
    if not is_sent:
        await tx.send(0)  # the commit waits for its response
        await tx.turn()
    tx.held.clear()
    ending = tx.transactions.begin_commit()
    await tx.turn()
    outlasting = asyncio.ensure_future(tx.transactions.outlast_commit(ending))
    for _ in range(2):
        await tx.turn()
        assert not outlasting.done()
        outlasting.cancel()
    if not is_sent:
        (await tx.next()).respond()
    tx.held.set()
    await asyncio.wait([outlasting])
    assert transaction.is_committed is is_sent
    assert tx.transactions.state is TransactionStage.READY


async def test_a_commit_and_an_abort_wait_for_offsets_that_are_being_stored(
    tx: Coordinated,
) -> None:
    for end in (tx.transactions.begin_commit, tx.transactions.begin_abort):
        await tx.transactions.begin()
        tx.held.clear()
        tx.asked.clear()
        storing = asyncio.ensure_future(tx.transactions.send_offsets(Delivery()))
        await tx.turn()
        storing.cancel()
        ending = end()
        await asyncio.sleep(1)
        assert not ending.done()
        assert "EndTxn" not in [name for name, _ in tx.asked]
        tx.held.set()
        await asyncio.wait([ending])
        assert tx.asked[-1][0] == "EndTxn"


async def test_an_abort_fails_what_is_unsent(tx: Coordinated) -> None:
    await tx.transactions.begin()
    (unsent,) = await tx.send(0)
    (await tx.next()).respond(NotEnoughReplicasError)
    assert await tx.abort() is None
    assert "was aborted before the record was acknowledged" in str(unsent.exception())
    await asyncio.sleep(2)
    assert not tx.sent
    await tx.transactions.begin()
    await tx.write()
    assert await tx.commit() is None
    ends = [each.committed for each in tx.requests if isinstance(each, EndTxnRequest)]
    assert ends == [False, True]


async def test_an_abort_ends_the_attempts_to_add_a_partition() -> None:
    async with started(1) as tx:
        await tx.transactions.begin()
        tx.errors["AddPartitionsToTxn"] = [UnknownTopicOrPartitionError] * 1_000
        await tx.send(0)
        await asyncio.sleep(5)
        began = tx.loop.time()
        assert await tx.abort() is None
        assert tx.loop.time() - began < 2
        tx.asked.clear()
        await asyncio.sleep(5)
        assert not tx.asked
        tx.errors.clear()
        await tx.transactions.begin()
        await tx.write(1)
        (added,) = cast("AddPartitionsToTxnRequest", tx.requests[-1]).transactions
        assert [each.partitions for each in added.topics] == [[1]]


# --- Errors --------------------------------------------------------------------------------------
async def test_an_error_of_a_record_breaks_the_transaction_until_its_abort(
    tx: Coordinated,
) -> None:
    transaction = await tx.transactions.begin()
    delivery = Delivery()
    tx.transactions.commit_at_the_end(delivery)
    (unsent,) = await tx.send(0)
    (await tx.next()).respond(NotEnoughReplicasError)
    changes = tx.changes
    tx.transactions.spoil(KafkaError("lost"))
    assert tx.changes == changes + 1
    assert delivery.outcomes == [False]
    assert transaction.is_committed is False
    for refused in (
        tx.transactions.begin_commit,
        lambda: tx.transactions.require(transaction),
        lambda: tx.transactions.commit_at_the_end(Delivery()),
    ):
        with pytest.raises(TransactionAbortableError, match="lost") as caught:
            refused()
        assert str(caught.value.__cause__) == "KafkaError: lost"
    error = unsent.exception()
    assert isinstance(error, TransactionAbortableError)
    assert str(error.__cause__) == "KafkaError: lost"
    aborting = tx.transactions.begin_abort()
    with pytest.raises(TransactionAbortableError, match="lost"):
        raise tx.transactions.refusal()
    assert await aborting is None
    assert isinstance(tx.transactions.refusal(), IllegalOperation)
    await tx.transactions.begin()
    await tx.write()
    assert await tx.commit() is None


@pytest.mark.parametrize(
    ("api", "error", "is_fatal"),
    [
        ("EndTxn", TransactionAbortableError, False),
        ("EndTxn", InvalidTxnState, True),
        ("EndTxn", ProducerFencedError, True),
        ("EndTxn", InvalidProducerEpoch, True),
        ("TxnOffsetCommit", GroupAuthorizationFailedError, False),
        ("TxnOffsetCommit", ProducerFencedError, True),
    ],
)
async def test_an_error_of_a_commit_breaks_the_transaction_or_ends_the_producer(
    tx: Coordinated, api: str, error: type[BrokerResponseError], *, is_fatal: bool
) -> None:
    transaction = await tx.transactions.begin()
    await tx.write()
    delivery = Delivery()
    tx.transactions.commit_at_the_end(delivery)
    tx.errors[api].append(error)
    expected = ProducerFencedError if error is InvalidProducerEpoch else error
    assert isinstance(await tx.commit(), expected)
    assert [type(each) for each in tx.fatal] == [expected] * is_fatal
    assert delivery.in_turn == [api == "EndTxn"]
    if is_fatal:
        assert tx.transactions.state is TransactionStage.FATAL
        assert transaction.is_over
        assert not tx.transactions.is_open
        with pytest.raises(IllegalOperation, match="in a fatal error state"):
            tx.transactions.begin_abort()
        return
    assert tx.transactions.state is TransactionStage.BROKEN
    assert await tx.abort() is None
    assert transaction.is_committed is False
    assert tx.asked[-1][0] == "EndTxn"


async def test_a_start_that_the_coordinator_refuses_raises_its_error() -> None:
    async with ended(Coordinated(2)) as tx:
        tx.errors["InitProducerId"].append(TransactionalIdAuthorizationFailed)
        with pytest.raises(TransactionalIdAuthorizationFailed, match="starting a transaction of"):
            await tx.transactions.start(tx.loop.time() + 10)
        assert tx.transactions.state is TransactionStage.NEW


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (InvalidTxnState("e"), r"longer than transaction_timeout_ms=60000\.$"),
        (InvalidTransactionTimeout("e"), r"at most the brokers' transaction\.max\.timeout\.ms\.$"),
        (InvalidProducerIdMapping("e"), r"transactional\.id\.expiration\.ms .* create another"),
        (InvalidProducerEpoch("e"), r"another producer with this transactional_id was started"),
        (GroupAuthorizationFailedError("e"), "committing a transaction of 'tx' failed: e$"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_an_error_is_explained_with_its_remedy(error: KafkaError, hint: str) -> None:
    async with started(2) as tx:
        assert re.search(hint, str(tx.transactions.explained(error, "committing")))


async def test_the_outcome_is_unknown_if_the_coordinator_does_not_respond(tx: Coordinated) -> None:
    transaction = await tx.transactions.begin()
    await tx.write()
    delivery = Delivery()
    tx.transactions.commit_at_the_end(delivery)
    tx.errors["EndTxn"] = [NotCoordinatorError] * 10_000
    began = tx.loop.time()
    assert isinstance(await tx.commit(), KafkaTimeoutError)
    assert 100 < tx.loop.time() - began <= 120
    assert transaction.is_committed is None
    assert delivery.outcomes == [None]
    (fatal,) = tx.fatal
    assert "it is unknown whether the transaction was committed" in str(fatal)


async def test_an_abort_that_fails_ends_the_producer(tx: Coordinated) -> None:
    await tx.transactions.begin()
    await tx.write()
    tx.errors["EndTxn"].append(InvalidTxnState)
    assert isinstance(await tx.abort(), InvalidTxnState)
    assert tx.transactions.state is TransactionStage.FATAL
    assert len(tx.fatal) == 1


async def test_a_delivery_that_is_revoked_breaks_the_transaction(tx: Coordinated) -> None:
    async def store(delivery: Delivery) -> None:
        await tx.transactions.send_offsets(delivery)

    async def name(delivery: Delivery) -> None:
        tx.transactions.commit_at_the_end(delivery)

    for give in (store, name):
        await tx.transactions.begin()
        delivery = Delivery()
        delivery.revoked = CommitFailedError("revoked")
        with pytest.raises(CommitFailedError):
            await give(delivery)
        assert delivery.outcomes == [False]
        with pytest.raises(TransactionAbortableError, match="revoked"):
            tx.transactions.begin_commit()
        assert await tx.abort() is None


async def test_a_partition_that_is_refused_breaks_the_transaction() -> None:
    async with started(1) as tx:
        await tx.transactions.begin()
        tx.errors["AddPartitionsToTxn"].append(ClusterAuthorizationFailedError)
        await tx.send(0)
        await tx.turn()
        assert [type(each) for each in tx.fatal] == [ClusterAuthorizationFailedError]
        assert not tx.sent
