"""Holds what is known of a cluster at one moment; a view never changes once it is made.

A newer answer to Metadata makes a new view out of the one before. Any broker may answer, and some
lag. So a partition's leader is only replaced by one of the same or a newer leader epoch, as long as
the topic is the same (same topic id). Epochs begin again where a cluster is restored, or a topic is
recreated without topic ids: `OLDER_ANSWERS` answers in a row that name an older epoch are believed.
A topic that was known is gone only when answers have said so for a while; until then it stays as it
was. An id that was replaced by another does not come back. Partitions of a topic never become
fewer. If the cluster has no topic ids, fewer partitions for a while mean that the topic was
recreated.

References: KIP-320 (leader epochs), KIP-516 (topic ids), KIP-951 (leader hints in answers).
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
# How long answers have to say that a topic is gone before that is taken to be so.
GONE_AFTER_S: Final = 0.5
# How many answers in a row, over how long, make a leader epoch go back.
OLDER_ANSWERS: Final = 5
OLDER_FOR_S: Final = 3.0


class Node(NamedTuple):
    """A broker and where it listens; negative ids stand for bootstrap addresses."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Its host and port."""
        return self.host, self.port


class PartitionView(NamedTuple):
    """A partition: its leader's node id (-1: none), leader epoch (-1: unknown) and replicas.

    `older_count` answers in a row, since `older_since`, have named an older epoch. No epoch above
    `leader_epoch`, up to `void_epoch`, counts any more: answers have insisted on an older one.
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
    """A topic that was asked for: its partitions, or the error the broker answered.

    It has both while a topic that was known is not available: then the partitions are the last
    that were known. `missing_since` is when an answer first said that it, or a partition of it,
    does not exist, None as long as none does, or once it is gone. `former_ids` are those of topics
    of this name that were deleted.
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
        """Whether asking again could bring nothing more than is known."""
        if self.missing_since is not None:
            return False
        if self.error is not None:
            return not self.error.retriable
        return all(partition.leader != NO_LEADER for partition in self.partitions.values())

    @property
    def was_contradicted(self) -> bool:
        """Whether the latest answer named an older leader epoch, which is not believed yet."""
        return any(partition.older_count for partition in self.partitions.values())


class ClusterView(NamedTuple):
    """Nodes and topics of a cluster.

    Attributes:
        nodes: By node id.
        topics: By name; holds the topics that were asked for, those with errors too.
        topic_names: Topic id to name, for topics that have an id.
        controller_id: Node id, -1 when unknown.
        cluster_id: None when unknown.
        fetched_at: Loop time of the latest answer about all these topics; -inf for the view before
            the first.
        is_of_all: Whether all topics were asked for, so that those left out do not exist.
    """

    nodes: Mapping[int, Node] = MappingProxyType({})
    topics: Mapping[str, TopicView] = MappingProxyType({})
    topic_names: Mapping[bytes, str] = MappingProxyType({})
    controller_id: int = -1
    cluster_id: str | None = None
    fetched_at: float = float("-inf")
    is_of_all: bool = False

    def partition(self, tp: TopicPartition) -> PartitionView | None:
        """Return what is known of a partition, None when it is unknown."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def lacks(self, tp: TopicPartition) -> bool:
        """Whether the topic of a partition is known, and has no such partition."""
        topic = self.topics.get(tp.topic)
        return topic is not None and bool(topic.partitions) and tp.partition not in topic.partitions

    def leader(self, tp: TopicPartition) -> PartitionView | None:
        """Return the partition when it has a leader that is among the nodes, else None."""
        partition = self.partition(tp)
        if partition is None or partition.leader not in self.nodes:
            return None
        return partition

    def topic_id(self, topic: str) -> bytes | None:
        """Return a topic's id, None when it is unknown or the cluster has no ids."""
        view = self.topics.get(topic)
        return None if view is None or view.topic_id == ZERO_UUID else view.topic_id

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic, None when it is unknown."""
        view = self.topics.get(topic)
        return set(view.partitions) if view is not None and view.partitions else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic that have a leader, None when it is unknown."""
        view = self.topics.get(topic)
        if view is None or not view.partitions:
            return None
        return {
            index for index, partition in view.partitions.items() if partition.leader in self.nodes
        }

    def replica_racks(self, topic: str) -> dict[int, frozenset[str]]:
        """Return in which racks each partition of a topic has replicas, on nodes that are known."""
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
        """Return the topics for which asking again may help: unknown yet, or without leader."""
        return [topic.name for topic in self.topics.values() if not topic.is_complete]

    @property
    def was_contradicted(self) -> bool:
        """Whether the latest answer named an older leader epoch, which is not believed yet."""
        return any(topic.was_contradicted for topic in self.topics.values())

    # --- Making the next view --------------------------------------------------------------
    def updated(
        self, response: MetadataResponse, fetched_at: float, *, is_of_all: bool = False
    ) -> ClusterView:
        """Return the view that an answer to Metadata makes of this one.

        Topics that the answer leaves out are dropped, because it was asked for all that matter. If
        it was asked for all there are (`is_of_all`), they are dropped once they have been missing
        for `GONE_AFTER_S`.
        """
        is_same = self.cluster_id in (None, response.cluster_id)
        known = self.topics if is_same else {}
        topics = {
            topic.name: _merged_topic(known.get(topic.name), topic, topic.name, fetched_at)
            for topic in response.topics
            if topic.name is not None
        }
        if is_of_all and self.is_of_all:
            for name in self.topics.keys() - topics.keys():
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
        """Return the view that an answer about some topics makes of this one: the others stay.

        Args:
            response: Of the same cluster.
            answered_at: Loop time of the answer.
        """
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
        """Return a view with these nodes added, or moved to where they now listen.

        Answers about coordinators name no racks: a node keeps the one that it had.
        """
        known = dict(self.nodes)
        for node in nodes:
            rack = known[node.id].rack if node.rack is None and node.id in known else node.rack
            known[node.id] = node._replace(rack=rack)
        return self._replace(nodes=MappingProxyType(known))

    def with_coordinator(self, node: Node) -> ClusterView:
        """Return a view in which a coordinator listens at this address; this one if it does."""
        known = self.nodes.get(node.id)
        is_there = known is not None and known.address == node.address
        return self if is_there else self.with_nodes([node])

    def with_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node] = ()
    ) -> ClusterView:
        """Return a view with the newer leaders of partitions; this one if none is newer.

        Args:
            leaders: Node id and leader epoch of each partition's leader.
            nodes: The nodes that these are, as far as they may be new.
        """
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
    """Return a dict of a mapping; of a MappingProxyType `dict` makes one 50 times as slowly."""
    return mapping.copy() if isinstance(mapping, MappingProxyType) else dict(mapping)


def _nodes(response: MetadataResponse) -> Mapping[int, Node]:
    return MappingProxyType(
        {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
    )


def _missing(known: TopicView | None, now: float) -> TopicView | None:
    """Return the view of a topic that lacks something it had; None when that is gone."""
    if known is None or not known.partitions:
        return None
    since = now if known.missing_since is None else known.missing_since
    return None if now - since >= GONE_AFTER_S else known._replace(missing_since=since)


def _merged_topic(
    known: TopicView | None, topic: MetadataResponseTopic, name: str, now: float
) -> TopicView:
    """Return the topic as answered, but for what an older answer would bring back.

    One that is not available just now keeps the partitions it had.
    """
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
    """The topics of a view of the cluster."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def topics(self) -> set[str]:
        """Return the topics that have partitions, of those that somebody wanted to know of."""
        return {name for name, topic in self._view.topics.items() if topic.partitions}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic; None when it is not in the metadata."""
        return self._view.partitions_for_topic(topic)

    def replica_racks(self, topic: str) -> Mapping[int, frozenset[str]]:
        """Return the racks of each partition's replicas, as far as they are known."""
        return self._view.replica_racks(topic)
