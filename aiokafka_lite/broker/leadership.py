"""Who leads which partition: the controller's part of the cluster, without its log.

A leader is a node that is up and in sync; when there is none the partition has no leader, until
one comes back. Every election starts a new leader epoch. Reference: KIP-966 left aside,
org.apache.kafka.controller.PartitionChangeBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aiokafka_lite.broker.topics import NO_LEADER, Partition
from aiokafka_lite.errors import (
    BrokerNotAvailableError,
    InvalidReplicationFactorError,
)


class Leadership:
    """Elects leaders and keeps replicas in sync. Only this class changes either.

    Args:
        node_ids: All nodes of the cluster, in order.
        is_up: Says whether a node can lead.
        on_election: Told of each partition that got another leader or none, after the fact.
    """

    def __init__(
        self,
        node_ids: Sequence[int],
        is_up: Callable[[int], bool],
        on_election: Callable[[Partition], None],
    ) -> None:
        self._node_ids = node_ids
        self._is_up = is_up
        self._on_election = on_election

    # Placing replicas

    def place(self, count: int, replication: int, first: int) -> list[list[int]]:
        """Return the replicas of so many partitions, spread over the nodes from `first` on.

        Raises:
            InvalidReplicationFactorError: There are not so many nodes.
        """
        nodes = self._node_ids
        if not 1 <= replication <= len(nodes):
            raise InvalidReplicationFactorError(
                f"Unable to replicate the partition {replication} time(s): The target replication "
                f"factor of {replication} cannot be reached because only {len(nodes)} broker(s) "
                f"are registered or some brokers have all their log directories cordoned."
            )
        return [
            [nodes[(first + partition + replica) % len(nodes)] for replica in range(replication)]
            for partition in range(count)
        ]

    def adopt(self, partition: Partition) -> bool:
        """Fit a partition of an earlier cluster to this one's nodes; say if that changed it."""
        known = [node for node in partition.replicas if node in self._node_ids]
        if known == partition.replicas and partition.leader_id in partition.isr:
            return False
        partition.replicas = known or [self._node_ids[0]]
        partition.lead(partition.replicas[0], partition.replicas)
        return True

    # Elections

    def move(self, partition: Partition, node_id: int | None) -> int:
        """Make a node the leader, by default the next replica that can; return the leader.

        A node without a replica gets that of the old leader.

        Raises:
            BrokerNotAvailableError: The node is down, or there is no other replica in sync.
        """
        old = partition.leader_id
        if node_id is None:
            node_id = next((node for node in self._candidates(partition) if node != old), None)
            if node_id is None:
                raise BrokerNotAvailableError(
                    f"{partition.topic}-{partition.index} has no other replica in sync to lead it: "
                    f"replicas {partition.replicas}, in sync {partition.isr}"
                )
        if node_id not in self._node_ids or not self._is_up(node_id):
            raise BrokerNotAvailableError(f"node {node_id} is not there or not up: it cannot lead")
        if node_id == old:
            return node_id
        if node_id not in partition.replicas:
            position = partition.replicas.index(old) if old in partition.replicas else 0
            partition.replicas[position] = node_id
        partition.held.pop(node_id, None)
        in_sync = [n for n in partition.replicas if n in partition.isr or n == node_id]
        self._elect(partition, node_id, in_sync)
        return node_id

    def reassign(self, partition: Partition, replicas: Sequence[int]) -> None:
        """Put a partition on other nodes, where it is in sync at once if they are up.

        The leader stays if it still has a replica.
        """
        partition.replicas = [*replicas]
        for node_id in tuple(partition.held):
            if node_id not in replicas:
                del partition.held[node_id]
        in_sync = [n for n in replicas if self._is_up(n) and n not in partition.held]
        if partition.leader_id in in_sync:
            partition.isr = in_sync
        else:
            leader = in_sync[0] if in_sync else NO_LEADER
            self._elect(partition, leader, in_sync or replicas[:1])

    def node_down(self, partitions: Iterable[Partition], node_id: int) -> None:
        """Have others lead what the node led; the last replica in sync stays one."""
        for partition in partitions:
            if node_id not in partition.replicas:
                continue
            in_sync = [node for node in partition.isr if node != node_id] or partition.isr
            if partition.leader_id == node_id:
                leader = next(iter(self._candidates(partition)), NO_LEADER)
                self._elect(partition, leader, in_sync)
            else:
                partition.isr = in_sync

    def node_up(self, partitions: Iterable[Partition], node_id: int) -> None:
        """Take the node's replicas back in sync; it leads what nobody else could."""
        for partition in partitions:
            if node_id not in partition.replicas or node_id in partition.held:
                continue
            if partition.leader_id == NO_LEADER:
                if node_id in partition.isr:
                    self._elect(partition, node_id, partition.isr)
            elif node_id not in partition.isr:
                partition.isr.append(node_id)

    def elect_again(self, partition: Partition) -> None:
        """Elect the next replica in sync, or the same leader in a new epoch."""
        candidates = self._candidates(partition)
        others = [node for node in candidates if node != partition.leader_id]
        leader = next(iter(others or candidates), NO_LEADER)
        self._elect(partition, leader, partition.isr)

    def _candidates(self, partition: Partition) -> list[int]:
        return [n for n in partition.replicas if n in partition.isr and self._is_up(n)]

    def _elect(self, partition: Partition, leader: int, in_sync: Sequence[int]) -> None:
        partition.lead(leader, in_sync)
        self._on_election(partition)

    # Followers that fall behind

    def hold(self, partition: Partition, node_id: int) -> None:
        """Let a follower get no more records: it leaves the replicas in sync.

        Raises:
            BrokerNotAvailableError: The node leads, or has no replica.
        """
        if node_id not in partition.replicas or node_id == partition.leader_id:
            raise BrokerNotAvailableError(
                f"node {node_id} is no follower of {partition.topic}-{partition.index}"
            )
        partition.held[node_id] = partition.high_watermark
        partition.isr = [node for node in partition.isr if node != node_id]

    def release(self, partition: Partition, node_id: int) -> None:
        """Let a follower catch up again."""
        if partition.held.pop(node_id, None) is not None and self._is_up(node_id):
            partition.isr.append(node_id)
