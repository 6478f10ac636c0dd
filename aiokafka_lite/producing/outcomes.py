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

    WRITTEN = "it is in the log, and the broker does not remember where"
    RETRY = "it is sent again as it is"
    OUT_OF_ORDER = "it is behind one that failed, or behind a gap"
    SPLIT = "it is sent again in parts"
    FAIL = "its senders get the error"


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
