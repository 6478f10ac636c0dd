"""Which replica leads when nodes stop and start, in any order."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker.cluster import Leadership
from aiokafka_lite.broker.log.storage import MemoryStore
from aiokafka_lite.broker.topics import NO_LEADER, Partition, PartitionKey
from aiokafka_lite.errors import BrokerNotAvailableError, InvalidReplicationFactorError
from tests.broker.logs import MEGABYTE, open_log


class Cluster:
    """Nodes 1 to 3, and partitions of theirs."""

    def __init__(self, *replicas: list[int], min_in_sync: int = 1) -> None:
        self.up = {1, 2, 3}
        self.elected: list[int] = []
        self.partitions = [self._partition(index, each) for index, each in enumerate(replicas)]
        self.leadership = Leadership(
            [1, 2, 3],
            self.up.__contains__,
            lambda _: min_in_sync,
            lambda partition: self.elected.append(partition.index),
        )

    @staticmethod
    def _partition(index: int, replicas: list[int]) -> Partition:
        log = open_log(MemoryStore(MEGABYTE))
        key = PartitionKey(bytes(16), index)
        isr = [*replicas]
        return Partition("t", key, log, replicas[0], 0, replicas, isr, lambda _: None)

    def stop(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.up.discard(node_id)
            self.leadership.node_down(self.partitions, node_id)

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.up.add(node_id)
            self.leadership.node_up(self.partitions, node_id)


def test_replicas_are_placed_in_the_order_of_the_nodes() -> None:
    place = Cluster().leadership.place
    assert place(2, 3, 1) == [[2, 3, 1], [3, 1, 2]]
    for replication in (0, 4):
        with pytest.raises(InvalidReplicationFactorError):
            place(1, replication, 0)


def test_replica_that_may_lack_acknowledged_records_does_not_lead() -> None:
    cluster = Cluster([1, 2, 3], min_in_sync=2)
    (partition,) = cluster.partitions
    cluster.stop(3, 2, 1)
    assert (partition.leader_id, partition.isr, partition.eligible) == (NO_LEADER, [], [2, 1])
    cluster.start(3)  # two replicas were in sync when it left them
    assert (partition.leader_id, partition.isr) == (NO_LEADER, [])
    cluster.start(2)
    assert (partition.leader_id, partition.isr, partition.eligible) == (2, [2], [1])
    cluster.stop(2)
    cluster.start(1)
    assert (partition.leader_id, partition.isr, partition.eligible) == (1, [1], [2])


def test_replica_that_has_left_is_not_eligible_any_more_when_enough_are_in_sync() -> None:
    cluster = Cluster([1, 2, 3], min_in_sync=2)
    (partition,) = cluster.partitions
    cluster.stop(3, 2)
    assert partition.eligible == [2]
    cluster.start(3)
    assert (partition.isr, partition.eligible) == ([1, 3], [])
    cluster.stop(1, 3)
    cluster.start(2)
    assert (partition.leader_id, partition.eligible) == (NO_LEADER, [1, 3])


def test_each_node_changes_only_its_own_partitions() -> None:
    cluster = Cluster([1], [2, 3], [3, 2])
    cluster.stop(2)
    assert [partition.leader_id for partition in cluster.partitions] == [1, 3, 3]
    assert cluster.elected == [1]
    cluster.start(2)
    assert [partition.leader_id for partition in cluster.partitions] == [1, 3, 3]
    assert [partition.isr for partition in cluster.partitions] == [[1], [3, 2], [3, 2]]


def test_held_replica_stays_out_until_it_is_released_or_leads() -> None:
    cluster = Cluster([1, 2, 3])
    (partition,) = cluster.partitions
    leadership = cluster.leadership
    leadership.release(partition, 2)
    assert partition.isr == [1, 2, 3]
    leadership.hold(partition, 2)
    cluster.stop(2)
    cluster.start(2)
    assert (partition.isr, [*partition.held]) == ([1, 3], [2])
    leadership.move(partition, 2)
    assert (partition.leader_id, partition.isr, partition.held) == (2, [1, 3, 2], {})
    leadership.hold(partition, 3)
    cluster.stop(3)
    leadership.release(partition, 3)
    assert partition.isr == [1, 2]
    with pytest.raises(BrokerNotAvailableError, match="node 9 is not a follower"):
        leadership.hold(partition, 9)


def test_leader_moves_with_its_replica_to_a_node_without_one() -> None:
    cluster = Cluster([1, 2])
    (partition,) = cluster.partitions
    assert cluster.leadership.move(partition, 3) == 3
    assert (partition.replicas, sorted(partition.isr)) == ([3, 2], [2, 3])
    cluster.stop(2, 3)
    cluster.leadership.move(partition, 1)
    assert (partition.leader_id, partition.replicas) == (1, [1, 2])


def test_leader_that_no_other_replica_can_follow_stays() -> None:
    cluster = Cluster([1])
    (partition,) = cluster.partitions
    with pytest.raises(BrokerNotAvailableError, match="no other replica that can become leader"):
        cluster.leadership.move(partition, None)
    cluster.leadership.elect_again(partition)
    assert (partition.leader_id, partition.leader_epoch) == (1, 1)


@pytest.mark.parametrize(
    ("replicas", "leader", "adopted", "led_by", "epoch"),
    [
        ([2, 3], 3, [2, 3], 3, 0),
        ([2, 3], NO_LEADER, [2, 3], 2, 1),
        ([4, 3], 3, [3], 3, 1),
        ([4, 5], 4, [1], 1, 1),
    ],
)
def test_partition_of_an_earlier_cluster_is_fitted_to_the_nodes(
    replicas: list[int], leader: int, adopted: list[int], led_by: int, epoch: int
) -> None:
    cluster = Cluster(replicas)
    (partition,) = cluster.partitions
    partition.leader_id, partition.isr = leader, [replicas[0]]
    cluster.leadership.adopt(partition)
    assert (partition.replicas, partition.isr) == (adopted, adopted)
    assert (partition.leader_id, partition.leader_epoch) == (led_by, epoch)
