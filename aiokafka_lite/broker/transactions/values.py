"""The states of a transactional id, what is kept about it, and what goes in and out of the machine.

Reference: org.apache.kafka.coordinator.transaction.{TransactionState, TxnTransitMetadata}.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.broker.log.producers import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER,
    NO_PRODUCER_ID,
    ProducerIdentity,
)
from aiokafka_lite.errors import BrokerResponseError
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
