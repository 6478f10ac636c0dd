"""An immutable snapshot of a cluster's metadata.

Brokers may lag, so these rules apply to the next view:

- A leader is replaced only at the same or a newer leader epoch (KIP-320) of the same topic id.
  Epochs restart if a cluster is restored or a topic is recreated without ids, so `OLDER_ANSWERS`
  consecutive responses with an older epoch are accepted.
- A topic is removed after responses have lacked it for `GONE_AFTER_S`. Until then it is unchanged.
- A topic id that was replaced is not accepted again.
- The number of partitions never decreases. Without topic ids, fewer partitions for a while mean
  that the topic was recreated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from aiokafka_lite.errors import (
    BrokerResponseError,
    NoError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

KT = TypeVar("KT")
VT = TypeVar("VT")

NO_LEADER: Final = -1
NO_EPOCH: Final = -1
GONE_AFTER_S: Final = 0.5
# Consecutive responses, over this time, that reset a leader epoch.
OLDER_ANSWERS: Final = 5
OLDER_FOR_S: Final = 3.0


class Node(NamedTuple):
    """A broker and its address. Bootstrap servers have negative ids."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


class PartitionView(NamedTuple):
    """A partition: its leader's node id (-1: none), leader epoch (-1: unknown) and replicas.

    `older_count` consecutive responses since `older_since` contained an older epoch. After one was
    accepted, epochs above `leader_epoch` up to `void_epoch` are void.
    """

    leader: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error: type[BrokerResponseError] | None = None
    older_count: int = 0
    older_since: float = 0.0
    void_epoch: int = NO_EPOCH


class TopicView(NamedTuple):
    """A topic of the metadata: its partitions, or the broker's error.

    It has both while a known topic is unavailable: then the partitions are the last known ones.
    `missing_since` is when a response first lacked the topic or one of its partitions.
    """

    name: str
    topic_id: bytes = ZERO_UUID
    partitions: Mapping[int, PartitionView] = MappingProxyType({})
    is_internal: bool = False
    error: type[BrokerResponseError] | None = None
    missing_since: float | None = None
    former_ids: frozenset[bytes] = frozenset()

    @property
    def is_complete(self) -> bool:
        """Whether another request could not return more than is known."""
        if self.missing_since is not None:
            return False
        if self.error is not None:
            return not self.error.retriable
        return all(partition.leader != NO_LEADER for partition in self.partitions.values())

    @property
    def was_contradicted(self) -> bool:
        """Whether the latest response contained an older leader epoch that is not accepted yet."""
        return any(partition.older_count for partition in self.partitions.values())


class ClusterView(NamedTuple):
    """Nodes and topics of a cluster: requested ones, including those with errors.

    `fetched_at` is the loop time of the latest response about all of them. `is_of_all`: no others
    exist.
    """

    nodes: Mapping[int, Node] = MappingProxyType({})
    topics: Mapping[str, TopicView] = MappingProxyType({})
    topic_names: Mapping[bytes, str] = MappingProxyType({})
    controller_id: int = -1
    cluster_id: str | None = None
    fetched_at: float = float("-inf")
    is_of_all: bool = False

    def partition(self, tp: TopicPartition) -> PartitionView | None:
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def lacks(self, tp: TopicPartition) -> bool:
        topic = self.topics.get(tp.topic)
        return topic is not None and bool(topic.partitions) and tp.partition not in topic.partitions

    def leader(self, tp: TopicPartition) -> PartitionView | None:
        partition = self.partition(tp)
        if partition is None or partition.leader not in self.nodes:
            return None
        return partition

    def topic_id(self, topic: str) -> bytes | None:
        view = self.topics.get(topic)
        return None if view is None or view.topic_id == ZERO_UUID else view.topic_id

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        view = self.topics.get(topic)
        return set(view.partitions) if view is not None and view.partitions else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        view = self.topics.get(topic)
        if view is None or not view.partitions:
            return None
        return {
            index for index, partition in view.partitions.items() if partition.leader in self.nodes
        }

    def replica_racks(self, topic: str) -> dict[int, frozenset[str]]:
        view = self.topics.get(topic)
        if view is None:
            return {}
        racks = {node.id: node.rack for node in self.nodes.values() if node.rack}
        known: dict[tuple[int, ...], frozenset[str]] = {}
        for partition in view.partitions.values():
            if (replicas := partition.replicas) not in known:
                known[replicas] = frozenset(racks[node] for node in replicas if node in racks)
        return {number: known[partition.replicas] for number, partition in view.partitions.items()}

    def incomplete_topics(self) -> list[str]:
        return [topic.name for topic in self.topics.values() if not topic.is_complete]

    @property
    def was_contradicted(self) -> bool:
        return any(topic.was_contradicted for topic in self.topics.values())

    # --- Making the next view --------------------------------------------------------------
    def updated(
        self, response: MetadataResponse, fetched_at: float, *, is_of_all: bool = False
    ) -> ClusterView:
        """Return the next view, after a response about all topics of interest.

        Topics that are not in the response are dropped, if `is_of_all` only after `GONE_AFTER_S`.
        """
        is_same = self.cluster_id in (None, response.cluster_id)
        known = self.topics if is_same else {}
        topics = {
            topic.name: _merged_topic(known.get(topic.name), topic, topic.name, fetched_at)
            for topic in response.topics
            if topic.name is not None
        }
        if is_of_all and self.is_of_all:
            for name in [each for each in self.topics if each not in topics]:
                topic = _missing(self.topics[name], fetched_at)
                if topic is not None:
                    topics[name] = topic
        return ClusterView(
            nodes=_nodes(response),
            topics=MappingProxyType(topics),
            topic_names=_names_by_id(topics.values()),
            controller_id=response.controller_id,
            cluster_id=response.cluster_id,
            fetched_at=fetched_at,
            is_of_all=is_of_all,
        )

    def with_topics(self, response: MetadataResponse, answered_at: float) -> ClusterView:
        topics, names = _copy(self.topics), _copy(self.topic_names)
        for answered in response.topics:
            if answered.name is None:
                continue
            known = topics.get(answered.name)
            topic = _merged_topic(known, answered, answered.name, answered_at)
            topics[topic.name] = topic
            if known is not None:
                names.pop(known.topic_id, None)
            names.update(_names_by_id([topic]))
        return self._replace(
            nodes=_nodes(response),
            topics=MappingProxyType(topics),
            topic_names=MappingProxyType(names),
            controller_id=response.controller_id,
            cluster_id=response.cluster_id,
        )

    def with_nodes(self, nodes: Iterable[Node]) -> ClusterView:
        """Return a view with these nodes added or moved. Without a rack, a node keeps its rack."""
        known = dict(self.nodes)
        for node in nodes:
            rack = known[node.id].rack if node.rack is None and node.id in known else node.rack
            known[node.id] = node._replace(rack=rack)
        return self._replace(nodes=MappingProxyType(known))

    def with_coordinator(self, node: Node) -> ClusterView:
        known = self.nodes.get(node.id)
        is_there = known is not None and known.address == node.address
        return self if is_there else self.with_nodes([node])

    def with_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node] = ()
    ) -> ClusterView:
        """Return a view with newer leaders (node id and epoch), or this one if none is newer."""
        changed: dict[str, dict[int, PartitionView]] = {}
        for tp, (leader, leader_epoch) in leaders.items():
            partition = self.partition(tp)
            if partition is None or leader_epoch <= partition.leader_epoch:
                continue
            if tp.topic not in changed:
                changed[tp.topic] = dict(self.topics[tp.topic].partitions)
            changed[tp.topic][tp.partition] = partition._replace(
                leader=leader, leader_epoch=leader_epoch, error=None, older_count=0
            )
        if not changed:
            return self
        topics = _copy(self.topics)
        for name, partitions in changed.items():
            topics[name] = topics[name]._replace(partitions=MappingProxyType(partitions))
        return self.with_nodes(nodes)._replace(topics=MappingProxyType(topics))


def _copy(mapping: Mapping[KT, VT]) -> dict[KT, VT]:
    """Return a dict. `copy` of a MappingProxyType is 50 times as fast as `dict`."""
    return mapping.copy() if isinstance(mapping, MappingProxyType) else dict(mapping)


def _nodes(response: MetadataResponse) -> Mapping[int, Node]:
    return MappingProxyType(
        {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
    )


def _missing(known: TopicView | None, now: float) -> TopicView | None:
    if known is None or not known.partitions:
        return None
    since = now if known.missing_since is None else known.missing_since
    return None if now - since >= GONE_AFTER_S else known._replace(missing_since=since)


def _merged_topic(
    known: TopicView | None, topic: MetadataResponseTopic, name: str, now: float
) -> TopicView:
    """Omit details that would be older than the known ones."""
    error = _error_class(topic.error_code)
    known = known or TopicView(name)
    is_same, former_ids = known.topic_id == topic.topic_id, known.former_ids
    is_fewer = error is None and is_same and len(topic.partitions) < len(known.partitions)
    if topic.topic_id in former_ids or (is_fewer and topic.topic_id != ZERO_UUID):
        return known
    if error is UnknownTopicOrPartitionError or is_fewer:
        if (missing := _missing(known, now)) is not None:
            return missing
    elif known.partitions and error is not None and error.retriable:
        return known._replace(error=error, missing_since=None)
    if not is_same and ZERO_UUID not in (known.topic_id, topic.topic_id):
        former_ids |= {known.topic_id}
    before = known.partitions if is_same else {}
    return TopicView(
        name=name,
        topic_id=topic.topic_id,
        partitions=MappingProxyType(
            {
                partition.partition_index: _newer(
                    before.get(partition.partition_index), _partition_view(partition), now
                )
                for partition in sorted(topic.partitions, key=lambda p: p.partition_index)
            }
        ),
        is_internal=topic.is_internal,
        error=error,
        former_ids=former_ids,
    )


def _newer(known: PartitionView | None, answered: PartitionView, now: float) -> PartitionView:
    if known is None:
        return answered
    if NO_EPOCH < answered.leader_epoch < known.leader_epoch:
        count = known.older_count + 1
        since = known.older_since if known.older_count else now
        if count < OLDER_ANSWERS or now - since < OLDER_FOR_S:
            return known._replace(older_count=count, older_since=since)
        return answered._replace(void_epoch=known.leader_epoch)
    if answered.leader_epoch < known.void_epoch:
        return answered._replace(void_epoch=known.void_epoch)
    return answered


def _partition_view(partition: MetadataResponsePartition) -> PartitionView:
    return PartitionView(
        leader=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replicas=tuple(partition.replica_nodes),
        isr=tuple(partition.isr_nodes),
        error=_error_class(partition.error_code),
    )


def _error_class(error_code: int) -> type[BrokerResponseError] | None:
    return None if error_code == NoError.errno else for_code(error_code)


def _names_by_id(topics: Iterable[TopicView]) -> Mapping[bytes, str]:
    return MappingProxyType(
        {topic.topic_id: topic.name for topic in topics if topic.topic_id != ZERO_UUID}
    )


class TopicsOfCluster:
    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def topics(self) -> set[str]:
        return {name for name, topic in self._view.topics.items() if topic.partitions}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._view.partitions_for_topic(topic)

    def replica_racks(self, topic: str) -> Mapping[int, frozenset[str]]:
        return self._view.replica_racks(topic)
