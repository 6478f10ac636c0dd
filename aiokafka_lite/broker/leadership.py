"""Elects the leaders of partitions, like Kafka's controller, without its log.

The leader is a running replica in sync, or else an eligible one (KIP-966). Without any, the
partition has no leader until one returns. Every election starts a new leader epoch.

Reference: org.apache.kafka.controller.PartitionChangeBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aiokafka_lite.broker.topics import NO_LEADER, Partition
from aiokafka_lite.errors import (
    BrokerNotAvailableError,
    InvalidReplicationFactorError,
)


@dataclass(eq=False)
class Leadership:
    """The only writer of leaders and replicas in sync.

    `min_in_sync` returns the number of replicas in sync that acks=all requires. `on_election` is
    called after each election, also if there is no leader.
    """

    node_ids: Sequence[int]
    is_up: Callable[[int], bool]
    min_in_sync: Callable[[Partition], int]
    on_election: Callable[[Partition], None]

    # Placing replicas

    def place(self, count: int, replication: int, first: int) -> list[list[int]]:
        """Return the replicas of `count` partitions, spread over the nodes from `first` on.

        Stopped nodes get a replica only if the others are not enough, and do not lead.
        """
        nodes = self.node_ids
        if not 1 <= replication <= len(nodes):
            raise InvalidReplicationFactorError(
                f"Unable to replicate the partition {replication} time(s): The target replication "
                f"factor of {replication} cannot be reached because only {len(nodes)} broker(s) "
                f"are registered or some brokers have all their log directories cordoned."
            )
        up = [node for node in nodes if self.is_up(node)] or nodes
        others = [node for node in nodes if node not in up]
        return [
            [
                *[up[(first + each + n) % len(up)] for n in range(min(replication, len(up)))],
                *others[: max(0, replication - len(up))],
            ]
            for each in range(count)
        ]

    def in_sync(self, replicas: Sequence[int]) -> list[int]:
        """Return the replicas of a new partition that are in sync: those on running nodes.

        Before the broker starts, all are.
        """
        return [node for node in replicas if self.is_up(node)] or [*replicas]

    def adopt(self, partition: Partition) -> None:
        """Adjust a loaded partition to this cluster's nodes. All replicas are in sync."""
        known = [node for node in partition.replicas if node in self.node_ids]
        is_led = known == partition.replicas and partition.leader_id in known
        partition.replicas = known or [self.node_ids[0]]
        partition.isr = [*partition.replicas]
        if not is_led:
            partition.lead(partition.replicas[0])

    # Elections

    def move(self, partition: Partition, node_id: int | None) -> int:
        """Make a node the leader, and return the leader. See `Broker.move_leader`."""
        old = partition.leader_id
        if node_id is None:
            node_id = next((node for node in self._candidates(partition) if node != old), None)
            if node_id is None:
                raise BrokerNotAvailableError(
                    f"{partition.topic}-{partition.index} has no other replica that can become "
                    f"leader: replicas {partition.replicas}, in sync {partition.isr}"
                )
        if node_id not in self.node_ids or not self.is_up(node_id):
            raise BrokerNotAvailableError(
                f"node {node_id} cannot become leader: the node does not exist or is stopped"
            )
        if node_id == old:
            return node_id
        if node_id not in partition.replicas:
            position = partition.replicas.index(old) if old in partition.replicas else 0
            partition.replicas[position] = node_id
            partition.isr = [node for node in partition.isr if node != old]
        partition.held.pop(node_id, None)
        self._elect(partition, node_id)
        return node_id

    def node_down(self, partitions: Iterable[Partition], node_id: int) -> None:
        for partition in partitions:
            self._leave(partition, node_id)
            if partition.leader_id == node_id:
                self._elect(partition, next(iter(self._candidates(partition)), NO_LEADER))

    def node_up(self, partitions: Iterable[Partition], node_id: int) -> None:
        """Add the node's replicas to the ISR. It leads partitions that only it can lead."""
        for partition in partitions:
            if node_id not in partition.replicas or node_id in partition.held:
                continue
            if partition.leader_id == NO_LEADER:
                if node_id in self._candidates(partition):
                    self._elect(partition, node_id)
            elif node_id not in partition.isr:
                self._join(partition, node_id)

    def elect_again(self, partition: Partition) -> None:
        candidates = self._candidates(partition)
        others = [node for node in candidates if node != partition.leader_id]
        self._elect(partition, next(iter(others or candidates), NO_LEADER))

    def _candidates(self, partition: Partition) -> list[int]:
        up = [node for node in partition.replicas if self.is_up(node)]
        in_sync = [node for node in up if node in partition.isr]
        return in_sync or [node for node in up if node in partition.eligible]

    def _elect(self, partition: Partition, leader: int) -> None:
        partition.lead(leader)
        if leader != NO_LEADER and leader not in partition.isr:
            self._join(partition, leader)
        self.on_election(partition)

    def _leave(self, partition: Partition, node_id: int) -> None:
        if node_id in partition.isr:
            partition.isr = [node for node in partition.isr if node != node_id]
            if len(partition.isr) < self._needed(partition):
                partition.eligible.append(node_id)

    def _join(self, partition: Partition, node_id: int) -> None:
        partition.isr = [*partition.isr, node_id]
        is_enough = len(partition.isr) >= self._needed(partition)
        partition.eligible = (
            [] if is_enough else [node for node in partition.eligible if node != node_id]
        )

    def _needed(self, partition: Partition) -> int:
        return min(self.min_in_sync(partition), len(partition.replicas))

    # Lagging followers

    def hold(self, partition: Partition, node_id: int) -> None:
        """Remove a follower from the replicas in sync."""
        if node_id not in partition.replicas or node_id == partition.leader_id:
            raise BrokerNotAvailableError(
                f"node {node_id} is not a follower of {partition.topic}-{partition.index}: "
                f"it leads the partition, or has no replica of the partition"
            )
        partition.held[node_id] = partition.high_watermark
        self._leave(partition, node_id)

    def release(self, partition: Partition, node_id: int) -> None:
        if partition.held.pop(node_id, None) is not None and self.is_up(node_id):
            self._join(partition, node_id)
