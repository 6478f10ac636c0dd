"""Requests of a transactional producer, by hand, with defaults for what no test cares about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from aiokafka_lite import records
from aiokafka_lite.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    TopicRequest,
    TransactionState,
)
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient

NEWEST_FOR_CLIENTS = 3  # of AddPartitionsToTxn
PRODUCE_THAT_ADDS = 12
BEFORE_ADDING = 11
# The newest versions of each kind of transaction.
VERSION_1, VERSION_2 = 4, 5

TRANSACTION = 1
GROUP = 0

NOT_READY = (
    CoordinatorNotAvailableError.errno,
    CoordinatorLoadInProgressError.errno,
    NotCoordinatorError.errno,
)
NOT_SETTLED = (*NOT_READY, ConcurrentTransactions.errno)

R = TypeVar("R")


async def once_settled(
    attempt: Callable[[], Awaitable[R]],
    error_code: Callable[[R], int],
    not_settled: Sequence[int] = NOT_SETTLED,
) -> R:
    """Return the first answer that is not about something that is about to end."""
    for _ in range(500):
        answer = await attempt()
        if error_code(answer) not in not_settled:
            return answer
        await asyncio.sleep(0.01)
    raise TimeoutError("it does not settle")


async def await_transactions(kafka: KafkaHandle, key_type: int = TRANSACTION) -> None:
    """Have the cluster make the topic of a coordinator, and wait until somebody coordinates."""
    find = FindCoordinatorRequest(coordinator_keys=["any"], key_type=key_type)
    async with kafka.raw() as client:
        await once_settled(
            lambda: client.request(find), lambda answer: answer.coordinators[0].error_code
        )


class Producer:
    """A transactional producer without any logic: it sends what the test says."""

    def __init__(
        self, client: RawClient, transactional_id: str | None = None, *, timeout_ms: int = 60_000
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id or unique("txn")
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def try_init(
        self, expected: tuple[int, int] = (-1, -1), *, version: int = 5
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        return await once_settled(
            lambda: self.client.request(request, version),
            lambda answer: answer.error_code,
            NOT_READY,
        )

    async def init(self, expected: tuple[int, int] = (-1, -1)) -> Producer:
        """Start, or start again."""
        answer = await once_settled(
            lambda: self.try_init(expected), lambda answer: answer.error_code
        )
        assert answer.error_code == 0
        self.take(answer.producer_id, answer.producer_epoch)
        return self

    def take(self, producer_id: int, epoch: int) -> None:
        """Go on with this identity."""
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    async def try_add(
        self, partitions: Mapping[str, Sequence[int]], *, version: int = NEWEST_FOR_CLIENTS
    ) -> list[int]:
        """Add partitions, and return the error code of each."""
        topics = [AddPartitionsToTxnTopic(name=n, partitions=[*p]) for n, p in partitions.items()]
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=topics,
        )
        request = AddPartitionsToTxnRequest(transactions=[transaction])
        answer = await self.client.request(request, version)
        return [
            partition.partition_error_code
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        ]

    async def add(self, topic: str, *partitions: int) -> None:
        """Add partitions, the first by default, waiting for the transaction before to end."""
        wanted = {topic: partitions or (0,)}
        codes = await once_settled(lambda: self.try_add(wanted), lambda codes: max(codes))
        assert set(codes) == {0}

    async def add_offsets(self, group_id: str, *, version: int = 3) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group_id,
        )

        async def attempt() -> int:
            return (await self.client.request(request, version)).error_code

        return await once_settled(attempt, lambda code: code)

    def batch(
        self,
        count: int = 1,
        *,
        sequence: int = 0,
        epoch: int | None = None,
        is_transactional: bool = True,
    ) -> bytes:
        return records.build_batch(
            [(int(time.time() * 1000), b"key", b"%d" % n, ()) for n in range(count)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )

    async def try_produce(
        self,
        topic: str,
        batch: bytes,
        *,
        partition: int = 0,
        version: int = BEFORE_ADDING,
        has_id: bool = True,
    ) -> PartitionProduceResponse:
        """Send a batch as it is and return what becomes of it."""
        item = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id if has_id else None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[item])],
        )
        answer = await self.client.request(request, version)
        ((result,),) = (each.partition_responses for each in answer.responses)
        return result

    async def produce(
        self, topic: str, count: int = 1, *, partition: int = 0, version: int = BEFORE_ADDING
    ) -> int:
        """Append a batch within the transaction and return its base offset."""
        place = (topic, partition)
        batch = self.batch(count, sequence=self.sequences.get(place, 0))
        result = await once_settled(
            lambda: self.try_produce(topic, batch, partition=partition, version=version),
            lambda result: result.error_code,
        )
        assert result.error_code == 0, result.error_message
        self.sequences[place] = self.sequences.get(place, 0) + count
        return result.base_offset

    async def try_end(
        self, *, commit: bool, version: int = VERSION_1, settles: bool = True
    ) -> EndTxnResponse:
        """Send EndTxn and return the answer; the identity stays as it is."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return await once_settled(
            lambda: self.client.request(request, version),
            lambda answer: answer.error_code,
            NOT_SETTLED if settles else NOT_READY,
        )

    async def end(self, *, commit: bool, version: int = VERSION_1) -> None:
        """Commit or abort, and go on as the answer says."""
        answer = await self.try_end(commit=commit, version=version)
        assert answer.error_code == 0
        if version >= VERSION_2:
            self.take(answer.producer_id, answer.producer_epoch)

    async def describe(self) -> TransactionState:
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        (state,) = (await self.client.request(request)).transaction_states
        return state

    async def until_state(self, state: str) -> TransactionState:
        """Wait until the coordinator says that the transaction is in a state."""
        for _ in range(1_500):
            described = await self.describe()
            if described.transaction_state == state:
                return described
            await asyncio.sleep(0.01)
        raise TimeoutError(f"{described.transaction_state} did not become {state}")


async def describe_producers(
    client: RawClient, topic: str, partition: int = 0
) -> PartitionResponse:
    """Return who writes to a partition."""
    wanted = TopicRequest(name=topic, partition_indexes=[partition])
    ((described,),) = (
        each.partitions
        for each in (await client.request(DescribeProducersRequest(topics=[wanted]))).topics
    )
    return described
