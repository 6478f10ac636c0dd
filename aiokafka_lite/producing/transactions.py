"""The transactions of a producer: their states, and the requests to the coordinator.

    state       allowed                              ends by
    ----------  -----------------------------------  ----------------------------------------
    NEW         -                                    id and epoch of the coordinator: READY
    READY       begin                                `begin`: OPEN
    OPEN        send, commit offsets, commit, abort  `commit`: COMMITTING; `abort`: ABORTING;
                                                     a lost record or offset: BROKEN
    BROKEN      abort                                `abort`: ABORTING
    COMMITTING  -                                    READY; a loss: BROKEN
    ABORTING    -                                    READY
    FATAL       stop                                 never

Every state may become FATAL. A separate task ends a transaction.

If the cluster's feature transaction.version is 2 or more (KIP-890), brokers add partitions and
groups to a transaction at the first write, and EndTxn returns a new epoch, so that a late request
cannot join the next transaction. Below that, the producer first sends each partition
(AddPartitionsToTxn) and group (AddOffsetsToTxn), and the epoch stays. If an abort left sequences in
doubt, InitProducerId returns another epoch (KIP-360).

After Java's TransactionManager. References: KIP-98, KIP-360, KIP-447 (group metadata), KIP-890.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import TaskScope, own_copy
from aiokafka_lite._transaction import BlockInTransaction
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.errors import (
    IllegalOperation,
    IllegalStateError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    OperationNotAttempted,
    ProducerClosed,
    ProducerFencedError,
    TransactionAbortableError,
    for_code,
)
from aiokafka_lite.producing import group_offsets
from aiokafka_lite.producing.accumulator import Accumulator
from aiokafka_lite.producing.batch import ProducerIdAndEpoch
from aiokafka_lite.producing.config import AnyProducerConfig
from aiokafka_lite.producing.coordinators import GROUP, TRANSACTION, CoordinatorClient
from aiokafka_lite.producing.group_offsets import DeliveryInTransaction
from aiokafka_lite.producing.partition_queue import CurrentIdentity, PartitionQueue
from aiokafka_lite.producing.sender import BatchSender, is_fatal
from aiokafka_lite.protocol.messages.transactions import (
    FIRST_BY_TOPIC_ID,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from aiokafka_lite.protocol.prepared import UpTo

log = logging.getLogger(__name__)

TRANSACTION_VERSION: Final = "transaction.version"
NOBODY: Final = ProducerIdAndEpoch(-1, -1)
# The newest versions by transaction.version: below 2, and from 2 on.
PRODUCE_VERSIONS: Final = (11, 13)
END_VERSIONS: Final = (4, 5)
OFFSETS_VERSIONS: Final = (4, 5)
# Another producer replaced this one, or the coordinator has fenced this one.
FENCED: Final = (InvalidProducerEpoch, ProducerFencedError)
# Errors of any broker about a producer with a transactional id.
ABOUT_PRODUCER: Final = (*FENCED, InvalidProducerIdMapping)


class TransactionStage(enum.Enum):
    NEW = "not started"
    READY = "not in a transaction"
    OPEN = "in a transaction"
    BROKEN = "in a transaction that must be aborted"
    COMMITTING = "committing a transaction"
    ABORTING = "aborting a transaction"
    FATAL = "in a fatal error state"


_S = TransactionStage
MOVES: Final[Mapping[TransactionStage, frozenset[TransactionStage]]] = {
    _S.NEW: frozenset({_S.READY, _S.FATAL}),
    _S.READY: frozenset({_S.OPEN, _S.FATAL}),
    _S.OPEN: frozenset({_S.COMMITTING, _S.ABORTING, _S.BROKEN, _S.FATAL}),
    _S.BROKEN: frozenset({_S.ABORTING, _S.FATAL}),
    _S.COMMITTING: frozenset({_S.READY, _S.BROKEN, _S.FATAL}),
    _S.ABORTING: frozenset({_S.READY, _S.FATAL}),
    _S.FATAL: frozenset(),
}


class ProducerTransaction:
    """One transaction, written by `Transactions`. `is_committed` is None while that is unknown."""

    def __init__(self) -> None:
        self.is_committed: bool | None = None
        self.is_over = self.is_settled = self.is_being_committed = False
        # The deliveries that are committed with it, by source.
        self.deliveries: dict[Hashable, DeliveryInTransaction] = {}
        # Offsets that were sent to their group before the end.
        self.stored: list[DeliveryInTransaction] = []
        # Blocks of batches that were opened inside the transaction's block.
        self.blocks: list[BlockInTransaction] = []

    def hold(self, block: BlockInTransaction) -> None:
        if self.is_settled:
            block.decide(self, is_committed=bool(self.is_committed))
        else:
            self.blocks.append(block)

    def settle(self) -> None:
        """Pass the outcome to consumers. Idempotent."""
        self.is_settled = True
        if not self.is_being_committed:
            self.is_committed = bool(self.is_committed)
        named, self.deliveries, self.stored = [*self.deliveries.values(), *self.stored], {}, []
        for delivery in named:
            delivery.settle(self, is_committed=self.is_committed)
        blocks, self.blocks = self.blocks, []
        for block in blocks:
            block.decide(self, is_committed=bool(self.is_committed))


class Transactions:
    """The transactions of a producer, one after the other. `fail` sets its fatal error."""

    def __init__(
        self,
        config: AnyProducerConfig,
        transactional_id: str,
        cluster: Cluster,
        identity: CurrentIdentity,
        accumulator: Accumulator,
        sender: BatchSender,
        scope: TaskScope,
        rng: random.Random,
        *,
        on_change: Callable[[], None],
        fail: Callable[[KafkaError], None],
    ) -> None:
        self._config = config
        self._id = transactional_id
        self._cluster = cluster
        self._identity = identity
        self._accumulator = accumulator
        self._sender = sender
        self._scope = scope
        self._rng = rng
        self._on_change = on_change
        self._fail_producer = fail
        self._loop = asyncio.get_running_loop()
        self.state = TransactionStage.NEW
        self._coordinator = self._coordinator_of(transactional_id, TRANSACTION)
        # By group.
        self._group_coordinators: dict[str, CoordinatorClient] = {}
        # transaction.version is 2: brokers add partitions, and each transaction has an epoch.
        self._is_version_2: bool  # `start` sets it
        # The coordinator has the transaction, so it has to be ended.
        self._has_begun = False
        # Why the transaction must be aborted.
        self._error: KafkaError | None = None
        self._to_add: dict[PartitionQueue, None] = {}
        self._adding: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[KafkaError | None] | None = None
        # Offsets that are being stored now.
        self._storing: set[asyncio.Task[KafkaError | None]] = set()
        # The open or ending transaction.
        self.current: ProducerTransaction | None = None

    def _coordinator_of(self, key: str, key_type: int) -> CoordinatorClient:
        return CoordinatorClient(
            self._cluster,
            key,
            key_type,
            first_backoff_s=self._config.retry_backoff_s,
            rng=self._rng,
        )

    def _enter(self, state: TransactionStage) -> None:
        if state not in MOVES[self.state]:
            raise AssertionError(
                f"a transaction cannot change from state {self.state.name} to {state.name}"
            )
        self.state = state
        self._on_change()

    def _new_deadline(self) -> float:
        return self._loop.time() + self._config.delivery_timeout_s

    # --- Start -----------------------------------------------------------------------------
    async def start(self, deadline: float) -> None:
        """Get an id and epoch, which fences earlier producers and aborts their transaction."""
        await self._init(NOBODY, deadline)
        features = await self._coordinator.features(deadline)
        self._is_version_2 = features.get(TRANSACTION_VERSION, 0) >= 2
        self._sender.newest_version = PRODUCE_VERSIONS[self._is_version_2]
        self._enter(TransactionStage.READY)

    async def _init(self, known_as: ProducerIdAndEpoch, deadline: float) -> None:
        def request() -> InitProducerIdRequest:
            return InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._config.transaction_timeout_ms,
                producer_id=known_as.producer_id,
                producer_epoch=known_as.epoch,
            )

        answer = await self._coordinator.ask(request, _code_of, deadline)
        self._raise_for(answer.error_code, "starting")
        self._identity.renew(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))

    def _raise_for(self, code: int, what: str) -> None:
        if code != NoError.errno:
            error_class = for_code(code)
            raise self.explained(error_class(error_class.description), what)

    def explained(self, error: KafkaError, what: str) -> KafkaError:
        """Return a broker's error with its meaning for transactions, and the remedy."""
        failed = f"{what} a transaction of {self._id!r} failed"
        timeout_ms = self._config.transaction_timeout_ms
        if isinstance(error, FENCED):
            fenced = ProducerFencedError(
                f"{failed}: another producer with this transactional_id was started, or the "
                f"transaction took longer than transaction_timeout_ms={timeout_ms}. The "
                "uncommitted records of this producer are aborted. Stop this producer. If this "
                "program should continue, create another producer"
            )
            fenced.__cause__ = error
            return fenced
        hint = ""
        if isinstance(error, InvalidTxnState):
            hint = (
                " The coordinator may have aborted the transaction, because it took longer than "
                f"transaction_timeout_ms={timeout_ms}."
            )
        elif isinstance(error, InvalidTransactionTimeout):
            hint = (
                f" The brokers do not allow transaction_timeout_ms={timeout_ms}: set a value of "
                "at most the brokers' transaction.max.timeout.ms."
            )
        elif isinstance(error, InvalidProducerIdMapping):
            hint = (
                " The brokers may have deleted this transactional_id, because it was unused for "
                "longer than transactional.id.expiration.ms (7 days by default). Stop this "
                "producer, and create another producer with this transactional_id."
            )
        error.args = (f"{failed}: {error.args[0]}{hint}",)
        return error

    # --- Checks ------------------------------------------------------------------------------
    @property
    def takes_records(self) -> bool:
        return self.state is TransactionStage.OPEN

    def refusal(self) -> BaseException:
        if self._error is not None:
            return self._aborted()
        return IllegalOperation(
            f"Can't send messages while not in transaction: the producer is {self.state.value}. "
            "Use `async with producer.transaction()`"
        )

    def _aborted(self) -> TransactionAbortableError:
        error = TransactionAbortableError(
            "the transaction must be aborted: call abort_transaction() or leave the transaction() "
            "block, then begin another transaction"
            + (f". Cause: {self._error}" if self._error is not None else "")
        )
        error.__cause__ = self._error
        return error

    def require(self, transaction: ProducerTransaction | None) -> None:
        """Raise IllegalOperation if it is not open, TransactionAbortableError if it is broken."""
        if transaction is None or transaction is not self.current:
            raise IllegalOperation(
                "Can't send messages while not in transaction: this transaction has ended, so "
                "the record or the offsets are not sent"
            )
        if not self.takes_records:
            raise self.refusal()

    async def begin(self) -> ProducerTransaction:
        """Begin a transaction, after the previous one has ended. Sends no request."""
        while (ending := self.ending) is not None:
            await asyncio.wait([ending])
        if self.state is not TransactionStage.READY:
            raise IllegalStateError(
                f"a transaction cannot begin, because the producer is {self.state.value}. A "
                "producer can have only one transaction at a time"
            )
        self.current = ProducerTransaction()
        self._enter(TransactionStage.OPEN)
        return self.current

    # --- While it is open ------------------------------------------------------------------
    def admit(self, queue: PartitionQueue) -> bool:
        if self._is_version_2:
            self._has_begun = queue.is_in_transaction = True
            return True
        self._to_add[queue] = None
        if self._adding is None:
            self._adding = self._scope.spawn(self._add_partitions(), name="add partitions")
        return False

    async def _add_partitions(self) -> None:
        try:
            while self._to_add:
                queues = tuple(self._to_add)
                answer = await self._coordinator.ask(
                    lambda queues=queues: self._add_request(queues),  # type: ignore[misc]
                    _codes_of_added,
                    self._new_deadline(),
                    retriable=(OperationNotAttempted,),
                )
                for code in _codes_of_added(answer):
                    # If one partition is rejected, the others are not added either.
                    if code != OperationNotAttempted.errno:
                        self._raise_for(code, "adding a partition to")
                self._has_begun = True
                for queue in queues:
                    del self._to_add[queue]
                    queue.is_in_transaction = True
                    self._sender.wake(queue)
        except KafkaError as error:
            self._lose(error)
        finally:
            self._adding = None

    def _add_request(self, queues: Iterable[PartitionQueue]) -> AddPartitionsToTxnRequest:
        if self._sender.abort_reason is not None:
            raise self._aborted()
        topics: dict[str, list[int]] = {}
        for queue in queues:
            topics.setdefault(queue.tp.topic, []).append(queue.tp.partition)
        producer = self._identity.current or NOBODY
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=self._id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=partitions)
                        for name, partitions in topics.items()
                    ],
                )
            ]
        )

    def _lose(self, error: KafkaError) -> None:
        """Handle a coordinator's error: it is fatal, or the transaction must abort."""
        if is_fatal(error) or isinstance(error, InvalidTxnState):
            self.fail(error)
        else:
            self.spoil(error)

    def spoil(self, error: KafkaError) -> None:
        if self.state in (TransactionStage.OPEN, TransactionStage.COMMITTING):
            log.warning(
                "the transaction of transactional_id %r must be aborted: %s", self._id, error
            )
            self._error = error
            self._enter(TransactionStage.BROKEN)
            self._give_up_unsent()
            self.settle()

    def settle(self) -> None:
        if self.current is not None:
            self.current.settle()

    def _give_up_unsent(self) -> None:
        reason = self._aborted()
        if self._error is None:
            reason = TransactionAbortableError(
                "the transaction was aborted before the record was acknowledged"
            )
        self._sender.abort_reason = reason
        self._accumulator.fail_unsent(reason)

    def fail(self, error: KafkaError) -> None:
        if self.state is not TransactionStage.FATAL:
            self._enter(TransactionStage.FATAL)
            self.settle()
            if self.current is not None:
                self.current.is_over = True
            self._fail_producer(error)

    # --- Offsets ---------------------------------------------------------------------------
    def _taking(self) -> ProducerTransaction:
        """Return the transaction that takes records and offsets. Raises as `require`."""
        if not self.takes_records or self.current is None:
            raise self.refusal()
        return self.current

    def commit_at_the_end(self, delivery: DeliveryInTransaction) -> None:
        """Add a delivery's offsets, which are committed at the end of the transaction.

        Raises as `require`, AutoCommitError, and CommitFailedError if partitions were revoked.
        """
        transaction = self._taking()
        delivery.enlist(transaction)
        if (earlier := transaction.deliveries.get(delivery.source)) is None:
            transaction.deliveries[delivery.source] = delivery
        else:
            earlier.join(delivery)
        self._check(delivery.to_commit)

    def _check(self, check: Callable[[], object]) -> None:
        """Run a check of offsets. A KafkaError makes the transaction abort."""
        try:
            check()
        except KafkaError as error:
            self.spoil(error)
            raise

    async def send_offsets(self, delivery: DeliveryInTransaction) -> None:
        """Send a group's offsets now. They are committed with the transaction.

        If cancelled, the request continues, and the end of the transaction waits for it. After
        every error but AutoCommitError the transaction has to be aborted.
        """
        transaction = self._taking()
        delivery.enlist(transaction, is_stored=True)
        transaction.stored.append(delivery)
        self._check(delivery.to_commit)
        storing = self._scope.spawn(self._try_to_store(delivery), name="store offsets")
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        await asyncio.wait([storing])
        if not storing.cancelled() and (error := storing.result()) is not None:
            raise own_copy(error)

    async def _try_to_store(self, delivery: DeliveryInTransaction) -> KafkaError | None:
        try:
            async with self._alone([delivery]):
                await self._store(delivery)
        except KafkaError as error:
            self._lose(error)
            return error
        return None

    async def _store(self, delivery: DeliveryInTransaction) -> None:
        deadline = self._new_deadline()
        group, offsets = delivery.to_commit()
        if not offsets:
            return
        producer = self._identity.current or NOBODY
        if not self._is_version_2:
            await self._add_group(group.group_id, producer, deadline)
        coordinator = self._group_coordinators.get(group.group_id)
        if coordinator is None:
            coordinator = self._coordinator_of(group.group_id, GROUP)
            self._group_coordinators[group.group_id] = coordinator

        topic_ids = delivery.topic_ids()
        is_by_id = self._is_version_2 and group_offsets.are_known(topic_ids)
        newest = FIRST_BY_TOPIC_ID if is_by_id else OFFSETS_VERSIONS[self._is_version_2]
        if not is_by_id or not await coordinator.speaks(
            TxnOffsetCommitRequest, FIRST_BY_TOPIC_ID, deadline
        ):
            await delivery.confirm_topics(deadline)

        def request() -> UpTo[TxnOffsetCommitResponse]:
            if self._sender.abort_reason is not None:
                raise self._aborted()
            self._has_begun = True
            group, offsets = delivery.to_commit()  # again, because this may be a later attempt
            committed = group_offsets.commit_request(self._id, producer, group, offsets, topic_ids)
            return UpTo(committed, newest)

        answer = await coordinator.ask(
            request,
            group_offsets.codes_of,
            deadline,
            prepare=lambda: delivery.confirm_topics(deadline),
        )
        try:
            group_offsets.raise_refusal(delivery, group.group_id, answer)
        except ABOUT_PRODUCER as error:
            raise self.explained(error, "committing offsets in") from error.__cause__
        # A member that has joined again under its id may have read the committed offsets before
        # the group got these. It reads the same records again, so only an abort hides these copies.
        delivery.raise_if_revoked()

    async def _add_group(
        self, group_id: str, producer: ProducerIdAndEpoch, deadline: float
    ) -> None:
        def request() -> AddOffsetsToTxnRequest:
            return AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id=group_id,
            )

        answer = await self._coordinator.ask(request, _code_of, deadline)
        self._raise_for(answer.error_code, "adding a group to")
        self._has_begun = True

    # --- The end ---------------------------------------------------------------------------
    def begin_commit(self) -> asyncio.Task[KafkaError | None]:
        """Return a task that commits and returns the error or None. Raises as `require`."""
        transaction = self._taking()
        self._enter(TransactionStage.COMMITTING)
        self._ending = self._scope.spawn(self._commit(transaction), name="commit")
        return self._ending

    async def outcome(self, ending: asyncio.Task[KafkaError | None]) -> KafkaError | None:
        """Wait for a commit or abort, which a cancellation does not end, and return its error."""
        await asyncio.wait([ending])
        if ending.cancelled():
            return ProducerClosed(
                "the producer was stopped during the commit or abort of the transaction"
            )
        return ending.result()

    async def outlast_commit(self, task: asyncio.Task[KafkaError | None]) -> None:
        """Wait for the end of a commit whose caller was cancelled, within the delivery timeout.

        The transaction is aborted, unless EndTxn was sent, or the event loop ends.
        """
        self._spoil_unless_committed()
        await _outlast(task)
        if self.is_open and self._may_abort():
            await _outlast(self.begin_abort())

    def abandon(self) -> None:
        """Abort the transaction in the background, unless EndTxn was sent to commit it."""
        ending, transaction = self.ending, self.current
        # A commit whose record was lost is BROKEN.
        is_committing = ending is not None and self.state in (_S.COMMITTING, _S.BROKEN)
        if transaction is None or not (is_committing or self.is_open) or not self._may_abort():
            return
        if ending is None:
            self.begin_abort()
        else:
            self._spoil_unless_committed()
            aborting = self._abort_after(ending, transaction)
            self._ending = self._scope.spawn(aborting, name="abort")

    def _may_abort(self) -> bool:
        return not self._scope.is_ending and not self._scope.is_loop_ending()

    async def _abort_after(
        self, ending: asyncio.Task[KafkaError | None], transaction: ProducerTransaction
    ) -> KafkaError | None:
        await asyncio.wait([ending])
        if not self.is_open or self.current is not transaction:
            return None
        self._enter(TransactionStage.ABORTING)
        self.settle()
        return await self._abort()

    def _spoil_unless_committed(self) -> None:
        transaction = self.current
        if transaction is not None and not transaction.is_being_committed:
            self.spoil(TransactionAbortableError("the commit of the transaction was cancelled"))

    def begin_abort(self) -> asyncio.Task[KafkaError | None]:
        """Return a task that aborts, or the one that already ends the transaction."""
        if (ending := self.ending) is not None:
            return ending
        if self.state not in (TransactionStage.OPEN, TransactionStage.BROKEN):
            raise self.refusal()
        self._enter(TransactionStage.ABORTING)
        self.settle()
        self._ending = self._scope.spawn(self._abort(), name="abort")
        return self._ending

    @property
    def is_open(self) -> bool:
        return self.state in (TransactionStage.OPEN, TransactionStage.BROKEN)

    @property
    def ending(self) -> asyncio.Task[KafkaError | None] | None:
        return None if self._ending is None or self._ending.done() else self._ending

    async def _commit(self, transaction: ProducerTransaction) -> KafkaError | None:
        await self._accumulator.flush()
        if self._storing:
            await asyncio.wait(self._storing)
        try:
            async with self._alone(transaction.deliveries.values()):
                if self.state is TransactionStage.COMMITTING:
                    for delivery in tuple(transaction.deliveries.values()):
                        await self._store(delivery)
                if self.state is not TransactionStage.COMMITTING:
                    return self._aborted()
                await self._end_with_commit(transaction)
        except KafkaError as error:
            self._lose(error)
            return error
        self._ended()
        return None

    @asynccontextmanager
    async def _alone(self, deliveries: Iterable[DeliveryInTransaction]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            try:
                async with timeout_at(self._new_deadline()):
                    # Each consumer once, and in one order for all transactions, against deadlocks.
                    for alone in sorted({each.alone() for each in deliveries}, key=id):
                        await stack.enter_async_context(alone)
            except asyncio.TimeoutError:
                raise KafkaTimeoutError(
                    "an earlier offset commit of the consumer did not finish within "
                    f"delivery_timeout_ms={self._config.delivery_timeout_s * 1000:g}, so the "
                    "transaction cannot commit offsets"
                ) from None
            yield

    async def _end_with_commit(self, transaction: ProducerTransaction) -> None:
        if self._has_begun:
            transaction.is_being_committed = True
            try:
                await self._end(is_commit=True)
            except BaseException:  # the end of the producer, too
                transaction.settle()
                raise
        transaction.is_committed = True
        transaction.settle()

    async def _abort(self) -> KafkaError | None:
        self._give_up_unsent()
        asking = [*self._storing, *([] if self._adding is None else [self._adding])]
        if asking:
            await asyncio.wait(asking)
        # A batch in flight could otherwise be written after EndTxn.
        await self._sender.until_quiet()
        try:
            if self._has_begun:
                await self._end(is_commit=False)
            is_in_doubt = any(queue.is_broken for queue in self._accumulator.queues())
            if is_in_doubt and not self._is_version_2:
                await self._init(self._identity.current or NOBODY, self._new_deadline())
        except KafkaError as error:
            self.fail(error)
            return error
        self._ended()
        return None

    async def _end(self, *, is_commit: bool) -> None:
        producer = self._identity.current or NOBODY
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=is_commit,
        )

        what = "committing" if is_commit else "aborting"
        try:
            answer = await self._coordinator.ask(
                lambda: UpTo(request, END_VERSIONS[self._is_version_2]),
                _code_of,
                self._new_deadline(),
            )
        except KafkaTimeoutError as error:
            self.fail(
                KafkaTimeoutError(
                    f"{what} a transaction of {self._id!r} failed: the coordinator did not respond "
                    f"within delivery_timeout_ms={self._config.delivery_timeout_s * 1000:g}, so it "
                    "is unknown whether the transaction was committed. Start another producer with "
                    "this transactional_id to end the transaction. Then read the topics with "
                    "isolation_level='read_committed' to see whether it was committed"
                )
            )
            raise error
        self._raise_for(answer.error_code, what)
        if answer.producer_id >= 0:
            self._identity.renew(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))

    def _ended(self) -> None:
        for queue in self._accumulator.queues():
            queue.is_in_transaction = False
            if queue.identity != self._identity.current:
                queue.reset()
        if self.current is not None:
            self.current.is_over = True
            self.current.is_committed = bool(self.current.is_committed)
        self.current = None
        self._to_add.clear()
        self._error = None
        self._has_begun = False
        self._sender.abort_reason = None
        self._enter(TransactionStage.READY)


def _code_of(
    answer: InitProducerIdResponse | AddOffsetsToTxnResponse | EndTxnResponse,
) -> Iterable[int]:
    return (answer.error_code,)


def _codes_of_added(answer: AddPartitionsToTxnResponse) -> list[int]:
    return [
        partition.partition_error_code
        for transaction in answer.results_by_transaction
        for topic in transaction.topic_results
        for partition in topic.results_by_partition
    ]


async def _outlast(task: asyncio.Task[KafkaError | None]) -> None:
    """Wait for a task's end through cancellations. The caller raises them."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
