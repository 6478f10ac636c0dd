"""The state machine of one transactional id, without I/O.

A request yields a `Decision`: an error (NoError without a change), or a new value. The
coordinator appends the value to the log, then calls `become`. Values that are not stored have no
effect.

    Empty ──────── partitions added ──▶ Ongoing ── commit ──▶ PrepareCommit ──▶ CompleteCommit ▲
        │                                       │ │                                    ├── abort
        ────▶ PrepareAbort ──▶ CompleteAbort │                                    │
        ▲                  │ │                                    └─▶ PrepareEpochFence┘
        │ └── InitProducerId ──────────────────────────────────────────────────────────┘

The Prepare states are final outcomes. Complete follows when every partition has its marker. Until
then, requests get CONCURRENT_TRANSACTIONS. PrepareEpochFence (after a timeout, or for another
producer) is never stored, because the abort follows in the same step.

In version 2 (KIP-890), the end of a transaction bumps the epoch. A repeated EndTxn has the previous
epoch, and late batches cannot join the next transaction. After the last epoch, the end of the
transaction assigns a new producer id.

Kafka: kafka.coordinator.transaction.TransactionCoordinator,
org.apache.kafka.coordinator.transaction.{TransactionMetadata, TransactionState,
TxnTransitMetadata}.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.broker.groups.coordinator_log import ErrorType
from aiokafka_lite.broker.log.producers import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER,
    NO_PRODUCER_ID,
    ProducerIdentity,
)
from aiokafka_lite.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NoError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownError,
)
from aiokafka_lite.structs import TopicPartition

NO_TIME: Final = -1
# The last epoch of a producer. One more remains to fence it.
EXHAUSTED_EPOCH: Final = LAST_EPOCH - 1


class TransactionState(enum.IntEnum):
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

# The states before each state. Since KIP-890, a transaction without partitions may be aborted, so
# PrepareAbort may follow an idle state.
ALLOWED_FROM: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    EMPTY: IDLE,
    ONGOING: IDLE | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: IDLE | {ONGOING, PREPARE_EPOCH_FENCE},
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
    DEAD: IDLE,
    PREPARE_EPOCH_FENCE: frozenset({ONGOING}),
}


class TransactionVersion(enum.IntEnum):
    ORIGINAL = 0
    FLEXIBLE_RECORDS = 1  # of __transaction_state
    EPOCH_PER_TRANSACTION = 2  # KIP-890

    @property
    def bumps_epochs(self) -> bool:
        return self >= TransactionVersion.EPOCH_PER_TRANSACTION


class TransactionValue(NamedTuple):
    """The state of a transactional id. The log stores all but `last_epoch`."""

    producer_id: int
    epoch: int
    timeout_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    # The producer id after this transaction, -1 for the same.
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH  # the previous epoch, -1 if no producer may repeat a request with it
    state: TransactionState = EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    client_version: TransactionVersion = TransactionVersion.ORIGINAL

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)


class Marker(NamedTuple):
    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    version: TransactionVersion


class Ended(NamedTuple):
    """The reply to EndTxn, with the producer's identity from now on."""

    error: ErrorType
    producer: ProducerIdentity = NO_PRODUCER


Decision: TypeAlias = "ErrorType | TransactionValue"


class IllegalTransitionError(Exception):
    """A state does not follow the current one: a bug."""


class Transaction:
    """A transactional id, which only `become` and `marked` change."""

    def __init__(self, transactional_id: str, value: TransactionValue) -> None:
        self.transactional_id = transactional_id
        self.value = value
        # While the transaction ends, the partitions without a marker.
        self.unmarked: dict[TopicPartition, None] = {}
        self._enter()

    @property
    def state(self) -> TransactionState:
        return self.value.state

    @property
    def is_ending(self) -> bool:
        return self.value.state in ENDING

    @property
    def needs_producer_id(self) -> bool:
        """The epochs are used up, so the next decision may need another producer id."""
        return self.value.epoch >= EXHAUSTED_EPOCH

    def become(self, value: TransactionValue) -> None:
        check_transition(self.value.state, value.state)
        self.value = value
        self._enter()

    def _enter(self) -> None:
        self.unmarked = dict.fromkeys(self.value.partitions) if self.is_ending else {}

    def marked(self, tp: TopicPartition) -> None:
        """Note that a partition has its marker, or needs no marker."""
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
        """Decide InitProducerId. An open transaction is aborted first, and the client must retry.

        `expected` is the producer's identity (KIP-360), None for a new producer.
        `spare_producer_id` is used if `needs_producer_id`.
        """
        value = self.value
        if self.is_ending:
            return ConcurrentTransactions
        if expected is not None and not self._may_be(expected):
            return ProducerFencedError
        if value.state is ONGOING:
            return self.fence(version, now_ms)
        renewed = value._replace(
            previous_producer_id=value.producer_id,
            timeout_ms=timeout_ms,
            state=EMPTY,
            partitions=(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )
        if self.needs_producer_id and (expected is None or expected.epoch == value.epoch):
            last_epoch = NO_EPOCH if expected is None else value.epoch
            return renewed._replace(producer_id=spare_producer_id, epoch=0, last_epoch=last_epoch)
        if self.needs_producer_id:
            return UnknownError
        bumped = renewed._replace(epoch=value.epoch + 1)
        if expected is None:
            return bumped._replace(last_epoch=NO_EPOCH)
        if value.epoch in (NO_EPOCH, expected.epoch):
            return bumped._replace(last_epoch=value.epoch)
        if expected.epoch == value.last_epoch:  # a repeated request whose response was lost
            return renewed
        return ProducerFencedError

    def _may_be(self, expected: ProducerIdentity) -> bool:
        value = self.value
        return (
            value.epoch == NO_EPOCH
            or expected.producer_id == value.producer_id
            # The response with another producer id may have been lost.
            or (
                expected.producer_id == value.previous_producer_id
                and expected.epoch >= EXHAUSTED_EPOCH
            )
        )

    # A transaction continues

    def add(
        self,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        version: TransactionVersion,
        now_ms: int,
    ) -> Decision:
        value = self.value
        if self.is_ending:
            return ConcurrentTransactions
        error = self._check_producer(producer)
        if error is not NoError:
            return error
        more = dict.fromkeys((*value.partitions, *partitions))
        if value.state is ONGOING and len(more) == len(value.partitions):
            return NoError
        return value._replace(
            previous_producer_id=value.producer_id,
            state=ONGOING,
            partitions=tuple(more),
            started_ms=value.started_ms if value.state is ONGOING else now_ms,
            updated_ms=now_ms,
            client_version=version,
        )

    def verify(self, producer: ProducerIdentity, tp: TopicPartition) -> ErrorType:
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
        """Decide EndTxn. NoError if the transaction has ended with this outcome already."""
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
        # The end of this producer's transaction bumped its epoch, or changed its id.
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
        return prepared._replace(
            next_producer_id=spare_producer_id if self.needs_producer_id else NO_PRODUCER_ID,
            # An abort without a transaction starts one to end it.
            started_ms=value.started_ms if value.state is ONGOING else now_ms,
        )

    def fence(self, version: TransactionVersion, now_ms: int) -> TransactionValue:
        """Decide to abort the open transaction, with an epoch that no producer gets."""
        check_transition(self.value.state, PREPARE_EPOCH_FENCE)
        prepared = self._prepared(version, now_ms, is_commit=False)
        if prepared.epoch > self.value.epoch:  # the abort bumps the epoch anyway
            return prepared
        return prepared._replace(epoch=self.value.epoch + 1, last_epoch=NO_EPOCH)

    def _prepared(
        self, version: TransactionVersion, now_ms: int, *, is_commit: bool
    ) -> TransactionValue:
        value = self.value
        prepared = value._replace(
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            state=PREPARE_COMMIT if is_commit else PREPARE_ABORT,
            updated_ms=now_ms,
            client_version=version,
        )
        if version.bumps_epochs and value.epoch < LAST_EPOCH:
            return prepared._replace(epoch=value.epoch + 1, last_epoch=value.epoch)
        return prepared

    def complete(self, now_ms: int) -> TransactionValue:
        value = self.value
        completed = value._replace(
            previous_producer_id=value.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            state=COMPLETE_COMMIT if value.state is PREPARE_COMMIT else COMPLETE_ABORT,
            partitions=(),
            updated_ms=now_ms,
        )
        if value.client_version.bumps_epochs and value.next_producer_id != NO_PRODUCER_ID:
            return completed._replace(producer_id=value.next_producer_id, epoch=0)
        return completed

    # The transactional id is forgotten

    def may_expire(self, older_than_ms: int) -> bool:
        return self.value.state in ALLOWED_FROM[DEAD] and self.value.updated_ms <= older_than_ms


def check_transition(old: TransactionState, new: TransactionState) -> None:
    if old not in ALLOWED_FROM[new]:
        raise IllegalTransitionError(f"a transaction cannot change from {old.name} to {new.name}")
