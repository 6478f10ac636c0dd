"""Which partitions are read from which broker, and what is asked of each.

There is one `Source` per broker that assigned partitions are read from. Only what changed is
looked at: a partition is *touched* when it was moved, paused, resumed, given another leader, when
its answer came, or when its backoff ends. `explain` can name, for every partition, the request or
the backoff that it is in.

Which node a partition is read from, its leader or a follower nearby, is replicas.py's to say.
"""

from __future__ import annotations

import logging
import random
from typing import NamedTuple

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client import Cluster, ClusterView, Lane
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.fetching.answer import NodeCounts, Settling
from aiokafka_lite.consumer.fetching.leader_search import LeaderSearch
from aiokafka_lite.consumer.fetching.replicas import ReplicaChoice
from aiokafka_lite.consumer.fetching.session import FetchTarget
from aiokafka_lite.consumer.fetching.source import Place, Source
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.fetch_template import FetchTemplate
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)


def task_name(node_id: int) -> str:
    """Return what the fetch task of a node is called."""
    return f"fetch from node {node_id}"


class Origin(NamedTuple):
    """Where a partition is read from, and what a request names it by."""

    node: Source
    leader_epoch: int
    topic_id: bytes


class Sources:
    """Shares the assigned partitions out to one Source per node that they are read from."""

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        cluster: Cluster,
        buffer: Buffer,
        budget: ByteBudget,
        scope: TaskScope,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.buffer = buffer
        self.budget = budget
        self.rng = rng
        self.settling = Settling(config, state, buffer, rng)
        self.template = FetchTemplate(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            isolation_level=config.isolation_level_code,
        )
        self.replicas = ReplicaChoice(config)
        self.events = state.events
        self._state = state
        self._scope = scope
        # By node id; they outlive the node's task.
        self.counts: dict[int, NodeCounts] = {}
        self._nodes: dict[int, Source] = {}
        self._origins: dict[Cursor, Origin] = {}
        self.search = LeaderSearch(cluster, self._nodes)
        self._is_closed = False

    def start(self) -> None:
        """Begin to follow assignment and leaders; the tasks start when there is work."""
        self._state.observers.on_assignment_change(self._place_all)
        self._state.observers.on_partition_change(self.touch)
        self.cluster.add_listener(self._view_changed)
        self.search.start()
        self._place_all()

    def close(self) -> None:
        """Stop reacting, and close sessions where that takes no wait; the scope ends the tasks."""
        self._is_closed = True
        self.search.close()
        for node in self._nodes.values():
            node.close()

    def _view_changed(self, view: ClusterView) -> None:
        self._place_all()

    def _place_all(self) -> None:
        """Put every assigned partition under its node's task, and take the others away."""
        if self._is_closed or self._scope.failure is not None:
            return
        view = self.cluster.view
        is_unavailable = is_leaderless = False
        for partition in tuple(self._origins):
            if not partition.is_assigned:
                self._origins.pop(partition).node.remove(partition)
        for tp, partition in self._state.assignment.items():
            if not self._place(partition, view):
                # A topic that metadata does not cover yet is being asked for already, and one
                # that is gone need not be found in a hurry.
                topic = view.topics.get(tp.topic)
                is_unavailable = is_unavailable or topic is not None
                is_leaderless = is_leaderless or (topic is not None and topic.error is None)
        if is_unavailable:
            self.cluster.invalidate()
        self.search.note_leaderless(is_so=is_leaderless)

    def _place(self, partition: Cursor, view: ClusterView) -> bool:
        """Put a partition under the task of the node to read it from; False without a leader."""
        leader = view.leader(partition.tp)
        before = self._origins.pop(partition, None)
        if leader is None:
            if before is not None:
                before.node.remove(partition)
            return False
        node_id = self.replicas.source(partition, leader, view)
        node = (
            self._node(node_id) if before is None or before.node.node_id != node_id else before.node
        )
        topic_id = view.topic_id(partition.tp.topic)
        self._origins[partition] = Origin(
            node, leader.leader_epoch, ZERO_UUID if topic_id is None else topic_id
        )
        if before is not None and before.node is not node:
            before.node.remove(partition)
        if before is None or before.node is not node:
            node.add(partition)
        else:
            node.touch(partition)
        return True

    def _node(self, node_id: int) -> Source:
        node = self._nodes.get(node_id)
        if node is None:
            counts = self.counts.setdefault(node_id, NodeCounts())
            node = self._nodes[node_id] = Source(self, node_id, counts)
            self.cluster.pool.ready(node_id, Lane.FETCH)  # while positions are being looked up
            self._scope.supervise(node.run, name=task_name(node_id))
        return node

    @property
    def is_closed(self) -> bool:
        """Whether nothing is to be fetched any more."""
        return self._is_closed

    def node_ended(self, node: Source) -> None:
        """Forget a task that ended because nothing is left for it."""
        del self._nodes[node.node_id]
        self._scope.recovered(task_name(node.node_id))

    def node_failed(self, node_id: int, error: KafkaError) -> None:
        """Note that a node's fetches fail and are tried again; one line when that is news."""
        if self._scope.degrade(task_name(node_id), error):
            is_said = self.cluster.pool.connection_failed(node_id)
            level = logging.INFO if is_said else logging.WARNING
            log.log(level, "fetching from node %s failed, is retried: %s", node_id, error)

    def node_recovered(self, node_id: int) -> None:
        """Note that a node answers again."""
        self._scope.recovered(task_name(node_id))
        log.info("fetching from node %s goes on", node_id)

    def trouble(self, node_id: int) -> BaseException | None:
        """Return why fetching from a node is being tried again, None if it is not."""
        return self._scope.degraded.get(task_name(node_id))

    def touch(self, partition: Cursor) -> None:
        """Look at a partition again before the next request to its leader."""
        source = self._origins.get(partition)
        if source is not None:
            source.node.touch(partition)

    def is_behind(self, partition: Cursor) -> bool:
        """Whether a broker is known to have records of a partition that are not fetched."""
        return partition.is_behind(is_read_committed=self.config.is_read_committed)

    def assigned(self, tp: TopicPartition) -> Cursor | None:
        """Return an assigned partition; None: it is not."""
        return self._state.assignment.get(tp)

    def source(self, partition: Cursor) -> int | None:
        """Return the id of the node that a partition is read from; None without a leader."""
        source = self._origins.get(partition)
        return None if source is None else source.node.node_id

    def node_of(self, partition: Cursor) -> Source | None:
        """Return what reads a partition; None without a leader."""
        source = self._origins.get(partition)
        return None if source is None else source.node

    def node(self, node_id: int) -> Source | None:
        """Return what fetches from a node; None: nothing does."""
        return self._nodes.get(node_id)

    def place(self, partition: Cursor, now: float) -> Place:
        """Return where a partition is that is to be fetched (`Cursor.is_fetchable`)."""
        if not self.buffer.line.has_room(partition):
            return Place("buffered records or an error wait to be taken")
        if self.is_left_out(partition):
            return Place("memory is short, and gets wait for other partitions")
        source = self._origins.get(partition)
        if source is None:
            has_leader = self.cluster.view.leader(partition.tp) is not None
            return Place("there is a leader, but it is read from nowhere", not has_leader)
        return source.node.place(partition, now)

    def place_anew(self, partition: Cursor) -> None:
        """Fetch a partition as if nobody had heard of it before."""
        self._origins.pop(partition, None)
        for node in self._nodes.values():
            node.forget(partition)
        partition.end_back_off()
        if partition.is_assigned and not self._place(partition, self.cluster.view):
            self.cluster.invalidate()
        for node in self._nodes.values():
            node.wake()

    # --- Closest replica ------------------------------------------------------------------
    def prefer(self, partition: Cursor, node_id: int, now: float) -> bool:
        """Read a partition from the follower that its leader names; False if it is not known."""
        view = self.cluster.view
        if not self.replicas.prefer(partition, node_id, view, now):
            self.cluster.invalidate()
            return False
        self._place(partition, view)
        return True

    def give_back(self, partition: Cursor, now: float) -> None:
        """Read a partition from its leader again, because the follower failed."""
        self.replicas.give_back(partition, now)
        self._place(partition, self.cluster.view)

    def end_leases(self, now: float) -> None:
        """Ask the leaders anew about the partitions whose choice has expired."""
        for partition in self.replicas.end_leases(tuple(self._origins), now):
            self._place(partition, self.cluster.view)

    # --- The gets' side -------------------------------------------------------------------
    def taken(self, node_id: int) -> None:
        """Note that the application has come for a broker's buffered response."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.response_taken()

    def budget_released(self) -> None:
        """Wake the tasks that wait for bytes."""
        for node in self._nodes.values():
            if node.is_short_of_bytes:
                node.wake()

    def look_anew(self) -> None:
        """Tell all tasks to look at all partitions again: gets wait for others than before."""
        for node in self._nodes.values():
            node.touch_all()

    @property
    def share_bytes(self) -> int:
        """What one response may bring, so that no broker's long poll starves another's.

        Each broker has up to two at a time: one being worked on, one asked for.
        """
        return max(1, self.budget.room_bytes // (2 * max(1, len(self._nodes))))

    def is_left_out(self, partition: Cursor) -> bool:
        """Whether a partition is not fetched because memory is short, and gets wait for others."""
        sought = self.buffer.sought
        return bool(sought) and partition.tp not in sought

    def target(self, partition: Cursor, node: Source) -> FetchTarget | None:
        """Return what to ask a broker of a partition now; None: nothing."""
        source = self._origins.get(partition)
        if (
            source is None
            or source.node is not node
            or not partition.is_fetchable
            or not self.buffer.line.has_room(partition)
            or self.is_left_out(partition)
        ):
            return None
        return FetchTarget(
            partition,
            partition.tag,
            partition.fetched,
            source.leader_epoch,
            source.topic_id,
            self.config.max_partition_fetch_bytes,
        )
