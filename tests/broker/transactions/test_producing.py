"""Which Produce requests are refused for their transactional records."""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka_lite.broker.handlers.logs import why_refused
from aiokafka_lite.errors import InvalidProducerIdMapping, TransactionalIdAuthorizationFailed
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.source import run_to_end
from aiokafka_lite.records import build_batch
from tests.support.for_each import for_each


def batch(producer_id: int = 7, *, is_transactional: bool = True) -> bytes:
    return build_batch(
        [(1, None, b"v", ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=is_transactional,
    )


def of_the_future(batch: bytes) -> bytes:
    return batch[:16] + b"\x09" + batch[17:]


@for_each(
    [
        ([batch()], "p", None),
        ([batch()], None, TransactionalIdAuthorizationFailed),
        ([batch(is_transactional=False)], None, None),
        ([batch(7), batch(8)], "p", InvalidProducerIdMapping),
        ([batch(7), batch(8, is_transactional=False)], "p", None),
        ([of_the_future(batch()), batch()], None, TransactionalIdAuthorizationFailed),
        # Others are refused where they are looked at.
        ([None, b"", batch()[:22], batch()[:40], of_the_future(batch())], None, None),
    ]
)
def test_transactional_records_are_of_one_producer_that_names_its_id(
    records: Sequence[bytes | None], transactional_id: str | None, error: type[Exception] | None
) -> None:
    items = [PartitionProduceData(index=index, records=each) for index, each in enumerate(records)]
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1,
        topic_data=[TopicProduceData(name="t", partition_data=items)],
    )
    refused = run_to_end(why_refused(request))
    assert (None if refused is None else type(refused)) is error
