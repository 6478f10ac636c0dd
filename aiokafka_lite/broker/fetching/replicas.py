"""Reading from replicas: what a node may serve of a partition, and who had better serve it.

A follower has no log of its own: it is a view of the partition's, up to the offset at which it was
held, if it was (`Broker.hold_replica`).

Reference: org.apache.kafka.common.replica.RackAwareReplicaSelector (KIP-392).
"""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka_lite.broker.topics import Partition, ServingNode


class ReplicaReader:
    """A node reading for one client; see `read.Reader` for the methods.

    Args:
        node: The node that was asked.
        nodes: All nodes by id.
        rack: Where the client is, "" when it does not say.
        may_read_followers: The client knows that followers serve too.
    """

    def __init__(
        self,
        node: ServingNode,
        nodes: Mapping[int, ServingNode],
        rack: str,
        may_read_followers: bool,
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._rack = rack
        self._may_read_followers = may_read_followers

    def check_readable(self, partition: Partition, client_epoch: int) -> None:
        if self._may_read_followers and self._node.id in partition.replicas:
            partition.check_epoch(client_epoch)
        else:
            partition.check_leader(self._node.id, client_epoch)

    def preferred_replica(self, partition: Partition) -> int | None:
        if not self._rack or partition.leader_id != self._node.id:
            return None
        if self._node.address.rack == self._rack:
            return None
        for node_id in partition.isr:
            node = self._nodes[node_id]
            if node.address.rack == self._rack and node.is_up:
                return node_id
        return None

    def end_offset(self, partition: Partition) -> int:
        held_at = partition.held.get(self._node.id)
        end = partition.high_watermark
        return end if held_at is None else min(held_at, end)
