"""The state machine of one transactional id, without I/O.

Every request is answered by a decision: an error (NoError where there is nothing to do), or the
value that the transactional id is to have. The coordinator appends the value to the log and then
has the machine `become` it; a decision changes nothing by itself, so a value that could not be
stored was never decided.

    Empty ──────── partitions added ──▶ Ongoing ── commit ──▶ PrepareCommit ──▶ CompleteCommit
      ▲                                    │                                       │
      │                                    ├── abort ────▶ PrepareAbort ──▶ CompleteAbort
      │                                    │                    ▲                  │
      │                                    └─▶ PrepareEpochFence┘                  │
      └── InitProducerId ──────────────────────────────────────────────────────────┘

From the Prepare states on the outcome stands; the Complete states follow when every partition has
its marker, and until then requests are put off with CONCURRENT_TRANSACTIONS. PrepareEpochFence
(the producer timed out, or another took its place) never rests: the abort is one step.

In transactions of version 2 (KIP-890) a transaction has an epoch of its own: its end bumps it.
Then a repeated EndTxn comes with the epoch before, and nothing of an earlier transaction gets into
a later one. When epochs run out, a new producer id takes over at the end of the transaction.

Reference: kafka.coordinator.transaction.TransactionCoordinator,
org.apache.kafka.coordinator.transaction.TransactionMetadata.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.broker.log.producers import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER,
    NO_PRODUCER_ID,
    ProducerIdentity,
)
from aiokafka_lite.errors import (
    BrokerResponseError,
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NoError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownError,
)
from aiokafka_lite.structs import TopicPartition

ErrorType: TypeAlias = type[BrokerResponseError]

NO_TIME: Final = -1
# The last epoch a producer gets: one more is left for fencing it.
EXHAUSTED_EPOCH: Final = LAST_EPOCH - 1


class TransactionState(enum.IntEnum):
    """What a transactional id is doing, with Kafka's numbers and names."""

    Empty = 0
    Ongoing = 1
    PrepareCommit = 2
    PrepareAbort = 3
    CompleteCommit = 4
    CompleteAbort = 5
    Dead = 6
    PrepareEpochFence = 7


EMPTY: Final = TransactionState.Empty
ONGOING: Final = TransactionState.Ongoing
PREPARE_COMMIT: Final = TransactionState.PrepareCommit
PREPARE_ABORT: Final = TransactionState.PrepareAbort
COMPLETE_COMMIT: Final = TransactionState.CompleteCommit
COMPLETE_ABORT: Final = TransactionState.CompleteAbort
DEAD: Final = TransactionState.Dead
PREPARE_EPOCH_FENCE: Final = TransactionState.PrepareEpochFence

IDLE: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
ENDING: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})

# From which states each may be reached. A transaction that was never given a partition may be
# aborted since KIP-890: then PrepareAbort follows a state of rest.
ALLOWED_FROM: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        EMPTY: IDLE,
        ONGOING: IDLE | {ONGOING},
        PREPARE_COMMIT: frozenset({ONGOING}),
        PREPARE_ABORT: IDLE | {ONGOING, PREPARE_EPOCH_FENCE},
        COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
        COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
        DEAD: IDLE,
        PREPARE_EPOCH_FENCE: frozenset({ONGOING}),
    }
)


class TransactionVersion(enum.IntEnum):
    """Levels of the feature ``transaction.version``."""

    ORIGINAL = 0
    FLEXIBLE_RECORDS = 1  # of __transaction_state
    EPOCH_PER_TRANSACTION = 2  # KIP-890

    @property
    def bumps_epochs(self) -> bool:
        return self >= TransactionVersion.EPOCH_PER_TRANSACTION


@dataclass(frozen=True)
class TransactionValue:
    """What is kept about a transactional id; all but `last_epoch` is in the log.

    Attributes:
        producer_id: The id in use.
        previous_producer_id: The one before the latest transition.
        next_producer_id: The one to be used when the transaction has ended, -1 for the same.
        epoch: Of the producer that may write.
        last_epoch: The one before, -1 if nobody may repeat a request with it.
        timeout_ms: How long a transaction may take.
        state: What it is doing.
        partitions: What the transaction writes to, in the order in which it was told.
        started_ms: When the transaction began, -1 without one.
        updated_ms: When any of this was changed.
        client_version: How the client goes about the transaction.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    state: TransactionState = EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    client_version: TransactionVersion = TransactionVersion.ORIGINAL

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)


class Marker(NamedTuple):
    """What is written to every partition of a transaction to end it there."""

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    version: TransactionVersion


class Ended(NamedTuple):
    """The answer to EndTxn: the producer goes on with this identity."""

    error: ErrorType
    producer: ProducerIdentity = NO_PRODUCER


Decision: TypeAlias = "ErrorType | TransactionValue"


class IllegalTransitionError(Exception):
    """The machine was to go from a state to one that does not follow it: a bug."""


class Transaction:
    """A transactional id: `become` is the only method that changes it, and `marked`.

    Attributes:
        value: What is kept about it.
        unmarked: While the transaction ends, the partitions that have no marker yet.
    """

    def __init__(self, transactional_id: str, value: TransactionValue) -> None:
        self.transactional_id = transactional_id
        self.value = value
        self.unmarked: dict[TopicPartition, None] = {}
        self._enter()

    @property
    def state(self) -> TransactionState:
        return self.value.state

    @property
    def is_ending(self) -> bool:
        """The outcome stands, and not every partition has its marker."""
        return self.value.state in ENDING

    @property
    def needs_producer_id(self) -> bool:
        """The epochs of the producer id are used up: the next decision may need another id."""
        return self.value.epoch >= EXHAUSTED_EPOCH

    def become(self, value: TransactionValue) -> None:
        """Take over a value that was decided and stored.

        Raises:
            IllegalTransitionError: Its state does not follow the present one.
        """
        check_transition(self.value.state, value.state)
        self.value = value
        self._enter()

    def _enter(self) -> None:
        self.unmarked = dict.fromkeys(self.value.partitions) if self.is_ending else {}

    def marked(self, tp: TopicPartition) -> None:
        """Note that a partition has its marker, or needs none any more."""
        self.unmarked.pop(tp, None)

    # A producer starts

    def init(
        self,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        version: TransactionVersion,
        spare_producer_id: int,
        now_ms: int,
    ) -> Decision:
        """Decide about InitProducerId.

        An open transaction is aborted first: that decision's state is PrepareAbort, and the
        client has to ask again.

        Args:
            timeout_ms: For the transactions to come.
            expected: What the producer believes it is (KIP-360); None for one that starts.
            version: Of the transactions of this cluster.
            spare_producer_id: Is used if `needs_producer_id`.
            now_ms: Wall time.
        """
        value = self.value
        if self.is_ending:
            return ConcurrentTransactions
        if expected is not None and not self._may_be(expected):
            return ProducerFencedError
        if value.state is ONGOING:
            return self.fence(version, now_ms)
        renewed = replace(
            value,
            previous_producer_id=value.producer_id,
            timeout_ms=timeout_ms,
            state=EMPTY,
            partitions=(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )
        if self.needs_producer_id and (expected is None or expected.epoch == value.epoch):
            last_epoch = NO_EPOCH if expected is None else value.epoch
            return replace(renewed, producer_id=spare_producer_id, epoch=0, last_epoch=last_epoch)
        if self.needs_producer_id:
            return UnknownError
        bumped = replace(renewed, epoch=value.epoch + 1)
        if expected is None:
            return replace(bumped, last_epoch=NO_EPOCH)
        if value.epoch in (NO_EPOCH, expected.epoch):
            return replace(bumped, last_epoch=value.epoch)
        if expected.epoch == value.last_epoch:  # a repeated request whose answer got lost
            return renewed
        return ProducerFencedError

    def _may_be(self, expected: ProducerIdentity) -> bool:
        value = self.value
        return (
            value.epoch == NO_EPOCH
            or expected.producer_id == value.producer_id
            # The answer that brought another producer id may have got lost.
            or (
                expected.producer_id == value.previous_producer_id
                and expected.epoch >= EXHAUSTED_EPOCH
            )
        )

    # A transaction goes on

    def add(
        self,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        version: TransactionVersion,
        now_ms: int,
    ) -> Decision:
        """Decide about partitions that the producer wants to write to."""
        value = self.value
        if self.is_ending:
            return ConcurrentTransactions
        error = self._check_producer(producer)
        if error is not NoError:
            return error
        more = dict.fromkeys((*value.partitions, *partitions))
        if value.state is ONGOING and len(more) == len(value.partitions):
            return NoError
        return replace(
            value,
            previous_producer_id=value.producer_id,
            state=ONGOING,
            partitions=tuple(more),
            started_ms=value.started_ms if value.state is ONGOING else now_ms,
            updated_ms=now_ms,
            client_version=version,
        )

    def verify(self, producer: ProducerIdentity, tp: TopicPartition) -> ErrorType:
        """Say whether a producer may write to a partition: only within its transaction."""
        error = self._check_producer(producer)
        if error is not NoError:
            return error
        if self.is_ending:
            return ConcurrentTransactions
        return NoError if tp in self.value.partitions else TransactionAbortableError

    def _check_producer(self, producer: ProducerIdentity) -> ErrorType:
        if producer.producer_id != self.value.producer_id:
            return InvalidProducerIdMapping
        return NoError if producer.epoch == self.value.epoch else ProducerFencedError

    # A transaction ends

    def end(
        self,
        producer: ProducerIdentity,
        version: TransactionVersion,
        spare_producer_id: int,
        now_ms: int,
        *,
        is_commit: bool,
    ) -> Decision:
        """Decide about EndTxn; NoError if the transaction has ended so already.

        Args:
            producer: Who asks.
            version: How it goes about transactions.
            spare_producer_id: Is used if `needs_producer_id`.
            now_ms: Wall time.
            is_commit: False to abort.
        """
        if version.bumps_epochs:
            return self._end_with_epoch(producer, spare_producer_id, now_ms, is_commit=is_commit)
        value = self.value
        error = self._check_producer(producer)
        if error is not NoError:
            return error
        if self.is_ending:
            return ConcurrentTransactions
        if value.state is ONGOING:
            return self._prepared(version, now_ms, is_commit=is_commit)
        wanted = COMPLETE_COMMIT if is_commit else COMPLETE_ABORT
        return NoError if value.state is wanted else InvalidTxnState

    def _end_with_epoch(
        self, producer: ProducerIdentity, spare_producer_id: int, now_ms: int, *, is_commit: bool
    ) -> Decision:
        value = self.value
        if self.is_ending:
            return ConcurrentTransactions
        # The end of this producer's transaction bumped its epoch, or gave it another id.
        was_bumped = value.epoch == producer.epoch + 1
        was_renewed = producer == (value.previous_producer_id, EXHAUSTED_EPOCH) and value.epoch == 0
        if producer.producer_id != value.producer_id and not was_renewed:
            return InvalidProducerIdMapping
        has_ended = value.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
        is_repeated = has_ended and (was_bumped or was_renewed)
        if producer.epoch != value.epoch and not is_repeated:
            return ProducerFencedError
        if is_repeated:
            wanted = COMPLETE_COMMIT if is_commit else COMPLETE_ABORT
            return NoError if value.state is wanted else InvalidTxnState
        if value.state is not ONGOING and is_commit:
            return InvalidTxnState
        prepared = self._prepared(
            TransactionVersion.EPOCH_PER_TRANSACTION, now_ms, is_commit=is_commit
        )
        return replace(
            prepared,
            next_producer_id=spare_producer_id if self.needs_producer_id else NO_PRODUCER_ID,
            # An abort without a transaction starts one to end it.
            started_ms=value.started_ms if value.state is ONGOING else now_ms,
        )

    def fence(self, version: TransactionVersion, now_ms: int) -> TransactionValue:
        """Decide to abort the open transaction, and to let its producer write no more.

        Nobody is ever given the epoch that this bumps to.
        """
        check_transition(self.value.state, PREPARE_EPOCH_FENCE)
        prepared = self._prepared(version, now_ms, is_commit=False)
        if prepared.epoch > self.value.epoch:  # the abort has an epoch of its own anyway
            return prepared
        return replace(prepared, epoch=self.value.epoch + 1, last_epoch=NO_EPOCH)

    def _prepared(
        self, version: TransactionVersion, now_ms: int, *, is_commit: bool
    ) -> TransactionValue:
        value = self.value
        prepared = replace(
            value,
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            state=PREPARE_COMMIT if is_commit else PREPARE_ABORT,
            updated_ms=now_ms,
            client_version=version,
        )
        if version.bumps_epochs and value.epoch < LAST_EPOCH:
            return replace(prepared, epoch=value.epoch + 1, last_epoch=value.epoch)
        return prepared

    def complete(self, now_ms: int) -> TransactionValue:
        """Decide that the transaction has ended: every partition has its marker."""
        value = self.value
        completed = replace(
            value,
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            state=COMPLETE_COMMIT if value.state is PREPARE_COMMIT else COMPLETE_ABORT,
            partitions=(),
            updated_ms=now_ms,
        )
        if value.client_version.bumps_epochs and value.next_producer_id != NO_PRODUCER_ID:
            return replace(completed, producer_id=value.next_producer_id, epoch=0)
        return completed

    # The transactional id is forgotten

    def may_expire(self, older_than_ms: int) -> bool:
        """Say whether nothing happened to the id since a time, so that it may be forgotten."""
        return self.value.state in ALLOWED_FROM[DEAD] and self.value.updated_ms <= older_than_ms


def check_transition(old: TransactionState, new: TransactionState) -> None:
    """Check that a state follows another.

    Raises:
        IllegalTransitionError: It does not.
    """
    if old not in ALLOWED_FROM[new]:
        raise IllegalTransitionError(f"a transaction cannot change from {old.name} to {new.name}")
