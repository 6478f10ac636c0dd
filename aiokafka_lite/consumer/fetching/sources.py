"""Which cursors are read from which broker: one `Source` for each broker.

Assignment and metadata say which; replicas.py chooses between the leader and a follower nearby.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client import Cluster, ClusterView, Lane
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.fetching.answer import NodeCounts
from aiokafka_lite.consumer.fetching.leader_search import LeaderSearch
from aiokafka_lite.consumer.fetching.replicas import ReplicaChoice
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.fetch_template import FetchTemplate
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)


def task_name(node_id: int) -> str:
    """Return what the fetch task of a node is called."""
    return f"fetch from node {node_id}"


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
        self._sources: dict[int, Source] = {}
        self.search = LeaderSearch(cluster, self._sources)
        self._is_closed = False

    def start(self) -> None:
        """Begin to follow assignment and leaders; the tasks start when there is work."""
        self._state.observers.on_assignment_change(self._place_all)
        self.cluster.add_listener(self._view_changed)
        self.search.start()
        self._place_all()

    def close(self) -> None:
        """Stop reacting, and close sessions where that takes no wait; the scope ends the tasks."""
        self._is_closed = True
        self.search.close()
        for source in self._sources.values():
            source.close()

    def _view_changed(self, view: ClusterView) -> None:
        self._place_all()

    def _place_all(self) -> None:
        """Put every assigned partition under its node's task, and take the others away."""
        if self._is_closed or self._scope.failure is not None:
            return
        view = self.cluster.view
        is_unavailable = is_leaderless = False
        for tp, cursor in self._state.assignment.items():
            if not self._place(cursor, view):
                # A topic that metadata does not cover yet is being asked for already, and one
                # that is gone need not be found in a hurry.
                topic = view.topics.get(tp.topic)
                is_unavailable = is_unavailable or topic is not None
                is_leaderless = is_leaderless or (topic is not None and topic.error is None)
        if is_unavailable:
            self.cluster.invalidate()
        self.search.note_leaderless(is_so=is_leaderless)

    def _place(self, cursor: Cursor, view: ClusterView) -> bool:
        """Read a cursor from the node that is to be asked; False without a leader."""
        leader = view.leader(cursor.tp)
        if leader is None:
            cursor.read_from(None)
            return False
        node_id = self.replicas.source(cursor, leader, view)
        source = cursor.source
        if source is None or source.node_id != node_id:
            source = self._source(node_id)
        topic_id = view.topic_id(cursor.tp.topic)
        cursor.read_from(source, leader.leader_epoch, ZERO_UUID if topic_id is None else topic_id)
        return True

    def _source(self, node_id: int) -> Source:
        source = self._sources.get(node_id)
        if source is None:
            counts = self.counts.setdefault(node_id, NodeCounts())
            source = self._sources[node_id] = Source(self, node_id, counts)
            self.budget.source_count = len(self._sources)
            self.cluster.pool.ready(node_id, Lane.FETCH)  # while positions are being looked up
            self._scope.supervise(source.run, name=task_name(node_id))
        return source

    @property
    def is_closed(self) -> bool:
        """Whether nothing is to be fetched any more."""
        return self._is_closed

    def spawn(self, work: Coroutine[object, None, None], *, name: str) -> asyncio.Task[None]:
        """Begin a task that ends with the consumer, at the latest."""
        return self._scope.spawn(work, name=name)

    def source_ended(self, node_id: int) -> None:
        """Forget a source whose task ended, because nothing is left for it."""
        del self._sources[node_id]
        self.budget.source_count = len(self._sources)
        self._scope.recovered(task_name(node_id))

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

    def is_behind(self, cursor: Cursor) -> bool:
        """Whether a broker is known to have records of a partition that are not fetched."""
        return cursor.is_behind(is_read_committed=self.config.is_read_committed)

    def assigned(self, tp: TopicPartition) -> Cursor | None:
        """Return an assigned partition; None: it is not."""
        return self._state.assignment.get(tp)

    def of(self, cursor: Cursor) -> Source | None:
        """Return what reads a cursor; None without a leader."""
        return None if cursor.node_id is None else self._sources.get(cursor.node_id)

    def request_reset(self, cursor: Cursor, timestamp: int, *, reason: str) -> None:
        """Have a position looked up in place of one that the leader's log does not have."""
        self._state.request_reset(cursor, timestamp, reason=reason)

    # --- Closest replica ------------------------------------------------------------------
    def prefer(self, cursor: Cursor, node_id: int, now: float) -> bool:
        """Read a partition from the follower that its leader names; False if it is not known."""
        view = self.cluster.view
        if not self.replicas.prefer(cursor, node_id, view, now):
            self.cluster.invalidate()
            return False
        self._place(cursor, view)
        return True

    def give_back(self, cursor: Cursor, now: float) -> None:
        """Read a partition from its leader again, because the follower failed."""
        self.replicas.give_back(cursor, now)
        self._place(cursor, self.cluster.view)

    def end_leases(self, now: float) -> None:
        """Ask the leaders anew about the partitions whose choice has expired."""
        for cursor in self.replicas.end_leases(self._state.assignment.values(), now):
            self._place(cursor, self.cluster.view)

    # --- The gets' side -------------------------------------------------------------------
    def budget_released(self) -> None:
        """Wake the tasks that wait for bytes."""
        for source in self._sources.values():
            if source.is_short_of_bytes:
                source.wake()

    def choose_anew(self) -> None:
        """Tell all sources to look what they may ask for: gets wait for others than before."""
        for source in self._sources.values():
            source.choose_anew()
