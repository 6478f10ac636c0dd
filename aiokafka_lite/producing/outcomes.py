"""The meaning of a broker's error for a batch and for the producer.

After `Sender.completeBatch` and `TransactionManager.canRetry`, `maybeTransitionToErrorState` of
org.apache.kafka.clients.producer.internals.
"""

from __future__ import annotations

import enum
from typing import Final

from aiokafka_lite.errors import (
    ClusterAuthorizationFailedError,
    DuplicateSequenceNumber,
    InvalidProducerIdMapping,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFencedError,
    TransactionalIdAuthorizationFailed,
    UnknownProducerId,
    UnsupportedVersionError,
)

# After these a producer can do nothing more, with or without transactions.
FATAL: Final = (
    ClusterAuthorizationFailedError,
    InvalidProducerIdMapping,
    ProducerFencedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersionError,
)


class BatchFate(enum.Enum):
    """The outcome of a batch."""

    WRITTEN = "the batch is in the log, but the broker does not know its offset"
    RETRY = "the batch is sent again unchanged"
    OUT_OF_ORDER = "the batch follows a failed batch, or a gap in the sequence"
    SPLIT = "the batch is split and sent again"
    FAIL = "the broker's error is set on the futures of the batch's records"


def fate_of(error: type[KafkaError], record_count: int) -> BatchFate:
    """Return the outcome of a batch after an error."""
    if error is DuplicateSequenceNumber:
        return BatchFate.WRITTEN
    if error in (OutOfOrderSequenceNumber, UnknownProducerId):
        return BatchFate.OUT_OF_ORDER
    if error is MessageSizeTooLargeError:
        return BatchFate.SPLIT if record_count > 1 else BatchFate.FAIL
    return BatchFate.RETRY if error.retriable else BatchFate.FAIL


def is_fatal(error: BaseException) -> bool:
    """Whether this error is fatal for a producer."""
    return isinstance(error, FATAL)
