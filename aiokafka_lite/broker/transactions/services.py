"""The cluster as transactions use it: other nodes' coordinators, partitions, producer ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.coordinator import GroupCoordinator
from aiokafka_lite.broker.groups.coordinator_log import partition_for
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.topics import (
    GROUP_METADATA_TOPIC,
    NO_LEADER,
    TRANSACTION_STATE_TOPIC,
    Partition,
    ServingNode,
)
from aiokafka_lite.broker.transactions.coordinator import TransactionCoordinator
from aiokafka_lite.broker.transactions.machine import ErrorType, Marker
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorNotAvailableError,
    KafkaStorageError,
    LeaderNotAvailableError,
    NoError,
)
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.records import ControlType, control_batch, iter_batches
from aiokafka_lite.structs import TopicPartition

# transaction.remove.expired.transaction.cleanup.interval.ms
EXPIRY_CHECK_S: Final = 3_600.0


class CoordinatingNode(ServingNode, Protocol):
    groups: GroupCoordinator
    transactions: TransactionCoordinator


@dataclass(eq=False)
class ClusterTransactions:
    """The cluster's transactions, which tests reach as `broker.transactions`."""

    config: BrokerConfig
    nodes: Mapping[int, CoordinatingNode]
    catalog: TopicCatalog
    disk: DiskQueue
    clock: Callable[[], int]
    scope: TaskScope

    @property
    def partition_count(self) -> int:
        """The topic's partition count, which must not follow later configuration."""
        topic = self.catalog.by_name(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return self.config.transaction_topic_partitions
        return topic.partition_count

    def partition(self, topic: str, index: int) -> Partition:
        return self.catalog.partition(topic, index)

    def leader_epoch(self, index: int) -> int:
        return self.partition(TRANSACTION_STATE_TOPIC, index).leader_epoch

    async def new_producer_id(self) -> int:
        producer_id = self.catalog.next_producer_id()
        await self.disk.settled()
        return producer_id

    def expire_ids(self) -> Steps[None]:
        for node in self.nodes.values():
            yield from node.transactions.expire_ids()

    # For tests

    def hold_markers(self) -> None:
        """Delay the markers of transactions that end, on every node, until `release_markers`.

        EndTxn is answered and its outcome is stored. Consumers with read_committed wait, and
        producers get CONCURRENT_TRANSACTIONS.
        """
        for node in self.nodes.values():
            node.transactions.markers.hold()

    def release_markers(self) -> None:
        """Write the delayed markers."""
        for node in self.nodes.values():
            node.transactions.markers.release()

    # Other nodes

    def coordinator_id_of(self, transactional_id: str) -> int:
        """Return the id of the node that coordinates a transactional id, or -1."""
        if self.catalog.by_name(TRANSACTION_STATE_TOPIC) is None:
            return NO_LEADER
        index = partition_for(transactional_id, self.partition_count)
        return self.partition(TRANSACTION_STATE_TOPIC, index).leader_id

    def coordinator_of(self, transactional_id: str) -> TransactionCoordinator:
        """Return the coordinator of a transactional id, or raise CoordinatorNotAvailableError."""
        node = self.nodes.get(self.coordinator_id_of(transactional_id))
        if node is None:
            raise CoordinatorNotAvailableError(f"nobody coordinates {transactional_id!r} now")
        return node.transactions

    def write_marker(self, tp: TopicPartition, marker: Marker) -> ErrorType:
        """End a producer's transaction in a partition, on the partition's leader."""
        try:
            partition = self.partition(*tp)
            if partition.leader_id == NO_LEADER:
                return LeaderNotAvailableError
            if tp.topic == GROUP_METADATA_TOPIC:
                return self._write_to_groups(partition, marker)
            self._write(partition, marker)
        except BrokerResponseError as error:
            return type(error)
        except OSError:
            return KafkaStorageError
        return NoError

    def _write_to_groups(self, partition: Partition, marker: Marker) -> ErrorType:
        """End a transaction that committed offsets, also in the group coordinator."""
        groups = self.nodes[partition.leader_id].groups
        error = groups.availability_of(partition.index)
        if error is NoError:
            self._write(partition, marker)
            groups.offsets.end_transaction(
                partition.index, marker.producer_id, is_commit=marker.is_commit
            )
        return error

    def _write(self, partition: Partition, marker: Marker) -> None:
        batch = bytearray(
            control_batch(
                ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                producer_id=marker.producer_id,
                producer_epoch=marker.epoch,
                timestamp_ms=self.clock(),
                coordinator_epoch=marker.coordinator_epoch,
            )
        )
        ((header, _),) = iter_batches(memoryview(batch))
        partition.log.producers.check_marker(header, marker.coordinator_epoch, marker.version)
        partition.append_batch(header, batch)
