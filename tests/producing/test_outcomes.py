"""What a broker's error means for a batch."""

from __future__ import annotations

from aiokafka_lite.errors import (
    ClusterAuthorizationFailedError,
    DuplicateSequenceNumber,
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumber,
    ProducerFencedError,
    UnknownProducerId,
)
from aiokafka_lite.producing.sender import BatchFate, fate_of, is_fatal
from tests.support.for_each import for_each


@for_each(
    [
        (DuplicateSequenceNumber, 1, BatchFate.WRITTEN),
        (OutOfOrderSequenceNumber, 1, BatchFate.OUT_OF_ORDER),
        (UnknownProducerId, 1, BatchFate.OUT_OF_ORDER),
        (MessageSizeTooLargeError, 1, BatchFate.FAIL),
        (MessageSizeTooLargeError, 2, BatchFate.SPLIT),
        (NotEnoughReplicasError, 2, BatchFate.RETRY),
        (InvalidTimestampError, 2, BatchFate.FAIL),
    ]
)
def test_an_error_decides_what_becomes_of_a_batch(
    error: type[KafkaError], count: int, fate: BatchFate
) -> None:
    assert fate_of(error, count) is fate


def test_some_errors_are_fatal_for_a_producer() -> None:
    assert is_fatal(ClusterAuthorizationFailedError())
    assert is_fatal(ProducerFencedError())
    assert not is_fatal(InvalidTimestampError())
