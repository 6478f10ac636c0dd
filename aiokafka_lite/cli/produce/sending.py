"""Batches on their way to their partitions' leaders.

An idempotent producer (KIP-98) with one batch in flight for each partition: what gets lost is sent
again with the same sequence number, so that each record is there once, and in order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka_lite.cli.asking import ask_for_topics, why
from aiokafka_lite.cli.problems import CommandError, LineProblem
from aiokafka_lite.client.blocking import BlockingConnection
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.wire import Pending
from aiokafka_lite.errors import (
    DuplicateSequenceNumber,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    for_code,
)
from aiokafka_lite.protocol.messages.init_producer_id import InitProducerIdRequest
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aiokafka_lite.records.build import BatchBuilder
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.partitioner import partition_for_key
from aiokafka_lite.structs import TopicPartition

# Brokers take a megabyte by default (message.max.bytes), of what is left when it is compressed.
BATCH_BYTES: Final = 512 << 10
RETRY_AFTER_S: Final = 0.1
NO_PRODUCER: Final = -1
NO_TIMEOUT: Final = 2**31 - 1
SEQUENCES: Final = 2**31


class ProducerRecord(NamedTuple):
    """A record to produce; without a partition its key decides, or whose turn it is."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Sender:
    """Collects records in a batch for each partition, and sends these.

    Attributes:
        count: How many records brokers have acknowledged.
    """

    def __init__(
        self, cluster: BlockingCluster, topic: str, *, codec: Codec, partition_count: int
    ) -> None:
        """Ask for a producer's id, which a broker that has just started does not give at once.

        Raises:
            KafkaError: There is none to be had.
        """
        self._cluster = cluster
        self._topic = topic
        self._codec = codec
        self._partition_count = partition_count
        self._batches: dict[int, BatchBuilder] = {}
        self._sequences: dict[int, int] = {}
        self._turn = 0
        self.count = 0
        self._producer = cluster.retrying(self._ask_for_producer)

    def _ask_for_producer(self) -> tuple[int, int]:
        answer = self._cluster.request_any(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TIMEOUT)
        )
        if answer.error_code:
            error = for_code(answer.error_code)
            raise error(f"no producer id was given: {why(error)}")
        return answer.producer_id, answer.producer_epoch

    def add(self, record: ProducerRecord) -> None:
        """Add a record; sends what there is when its batch is full.

        Raises:
            LineProblem: There is no such partition.
            CommandError: A broker refuses a batch.
            KafkaError: Leaders cannot be reached.
        """
        partition = self._partition_of(record)
        if (builder := self._batches.get(partition)) is None:
            builder = self._batches[partition] = BatchBuilder(codec=self._codec)
        at = int(time.time() * 1000) if record.timestamp_ms is None else record.timestamp_ms
        builder.append(at, record.key, record.value, record.headers)
        if builder.size_estimate >= BATCH_BYTES:
            self.flush()

    def _partition_of(self, record: ProducerRecord) -> int:
        if record.partition is not None:
            if not 0 <= record.partition < self._partition_count:
                raise LineProblem(
                    f"topic {self._topic} has no partition {record.partition}: it has 0 to "
                    f"{self._partition_count - 1}"
                )
            return record.partition
        if record.key is not None:
            return partition_for_key(record.key, self._partition_count)
        return self._turn

    def flush(self) -> None:
        """Send all there is, and wait until it is acknowledged; tried again for a while.

        Raises:
            CommandError: A broker refuses a batch; says which, and why.
            KafkaTimeoutError: Leaders did not take it in time; what they did take counts.
        """
        batches, self._batches = self._batches, {}
        self._turn = (self._turn + 1) % self._partition_count  # of those without a key
        producer_id, epoch = self._producer
        left = {
            partition: (
                builder.build(
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=self._sequences.get(partition, 0),
                ),
                builder.count,
            )
            for partition, builder in batches.items()
        }
        give_up_at = time.monotonic() + self._cluster.config.request_timeout_s
        while left:
            failure = self._send(left)
            if not left:
                return
            if time.monotonic() >= give_up_at:
                raise KafkaTimeoutError(
                    f"partitions {', '.join(map(str, sorted(left)))} of {self._topic} did not take "
                    f"their records in time: {failure}"
                ) from failure
            time.sleep(RETRY_AFTER_S)
            try:
                ask_for_topics(self._cluster, [self._topic])
            except KafkaError as error:
                if not error.retriable:
                    raise

    def _send(self, left: dict[int, tuple[bytes, int]]) -> KafkaError | None:
        """Send what is left once, and take out what was acknowledged; return why not all was."""
        failure: KafkaError | None = None
        by_leader: dict[int, dict[int, tuple[bytes, int]]] = {}
        for partition, batch in left.items():
            view = self._cluster.view.leader(TopicPartition(self._topic, partition))
            if view is None:
                failure = LeaderNotAvailableError(f"partition {partition} has no leader")
            else:
                by_leader.setdefault(view.leader, {})[partition] = batch
        sent: list[tuple[BlockingConnection, Pending[ProduceResponse]]] = []
        timeout_s = self._cluster.config.request_timeout_s
        for node, batches in by_leader.items():
            try:
                connection = self._cluster.connection(node)
                sent.append(
                    (connection, connection.send(self._request(batches), timeout_s=timeout_s))
                )
            except KafkaError as error:
                failure = _passing(error)
        for connection, exchange in sent:
            try:
                response = connection.receive(exchange)
            except KafkaError as error:
                failure = _passing(error)
                continue
            for topic in response.responses:
                for outcome in topic.partition_responses:
                    failure = self._settle(outcome, left) or failure
        return failure

    def _request(self, batches: Mapping[int, tuple[bytes, int]]) -> ProduceRequest:
        return ProduceRequest(
            acks=-1,
            timeout_ms=int(self._cluster.config.request_timeout_s * 1000),
            topic_data=[
                TopicProduceData(
                    name=self._topic,
                    partition_data=[
                        PartitionProduceData(index=partition, records=memoryview(batch))
                        for partition, (batch, _) in batches.items()
                    ],
                )
            ],
        )

    def _settle(
        self, outcome: PartitionProduceResponse, left: dict[int, tuple[bytes, int]]
    ) -> KafkaError | None:
        """Take one partition's outcome; returns what passes by itself.

        Raises:
            CommandError: The batch was refused.
        """
        partition = outcome.index
        if outcome.error_code and outcome.error_code != DuplicateSequenceNumber.errno:
            error_class = for_code(outcome.error_code)
            reason = outcome.error_message or why(error_class)
            named = [each.batch_index_error_message for each in outcome.record_errors]
            if reasons := "; ".join(each for each in named if each):
                reason += f" ({reasons})"
            if not (error_class.retriable or error_class.invalid_metadata):
                raise CommandError(f"partition {partition} of {self._topic} refuses: {reason}")
            return error_class(reason)
        _, count = left.pop(partition)
        self.count += count
        self._sequences[partition] = (self._sequences.get(partition, 0) + count) % SEQUENCES
        return None


def _passing(error: KafkaError) -> KafkaError:
    """Return an error that may pass; raise one that does not."""
    if not error.retriable:
        raise error
    return error
