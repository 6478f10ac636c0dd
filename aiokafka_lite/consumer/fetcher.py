"""Fetching: one task per broker that partitions are read from, one request ahead of the caller.

A task keeps at most one answered response that the application has not come for. When a get
does, the task sends the next request before the records of that response are decoded: from the
offsets behind them, which the batch headers tell. So the next response is on its way, or there,
while the application works.

    apply what was touched -> reserve bytes -> request -> settle each partition -> queue
            ^                                                                      |
            +------------- woken: response taken, partition touched, ... ----------+

Only what changed is looked at: a partition is *touched* when it was moved, paused, resumed, given
another leader, when its answer came, or when its backoff ends. `explain` can name, for every
partition, the request or the backoff that it is in.

Which node a partition is read from, its leader or a follower nearby, is replicas.py's to say.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client import Cluster, ClusterView, Lane, Node
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.budget import ByteBudget, Reservation
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.fetch_queue import FetchQueue
from aiokafka_lite.consumer.fetched import FetchedPartition, FetchedResponse
from aiokafka_lite.consumer.replicas import ReplicaChoice
from aiokafka_lite.consumer.session import FULL_EPOCH, FetchSession, FetchTarget
from aiokafka_lite.consumer.settling import Settling
from aiokafka_lite.consumer.state import PartitionState, SubscriptionState
from aiokafka_lite.errors import (
    BrokerResponseError,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    KafkaError,
    ReplicaNotAvailableError,
    for_code,
)
from aiokafka_lite.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from aiokafka_lite.protocol.schema import ZERO_UUID

log = logging.getLogger(__name__)

# What a broker may take beyond fetch_max_wait_ms before its connection counts as dead.
FETCH_STALL_S: Final = 10.0
LAST_BACKOFF_S: Final = 1.0
# Answers that blame the fetch session: it is opened anew, and nothing else has failed.
SESSION_ERRORS: Final = (
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    FetchSessionTopicIdError,
)


class Fetcher:
    """Shares the assigned partitions out to one NodeFetcher per node that they are read from."""

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        cluster: Cluster,
        queue: FetchQueue,
        budget: ByteBudget,
        scope: TaskScope,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.queue = queue
        self.budget = budget
        self.rng = rng
        self.settling = Settling(config, state, queue, rng)
        self.replicas = ReplicaChoice(config)
        self._state = state
        self._scope = scope
        self._nodes: dict[int, NodeFetcher] = {}
        self._node_of: dict[PartitionState, NodeFetcher] = {}
        self._is_closed = False

    def start(self) -> None:
        """Begin to follow assignment and leaders; the tasks start when there is work."""
        self._state.on_assignment_change(self._place_all)
        self._state.on_partition_change(self.touch)
        self.cluster.add_listener(self._view_changed)
        self._place_all()

    def close(self) -> None:
        """Stop reacting, and close sessions where that takes no wait; the scope ends the tasks."""
        self._is_closed = True
        for node in self._nodes.values():
            node.close_session()

    def _view_changed(self, view: ClusterView) -> None:
        self._place_all()

    def _place_all(self) -> None:
        """Put every assigned partition under its node's task, and take the others away."""
        if self._is_closed or self._scope.failure is not None:
            return
        view = self.cluster.view
        is_leaderless = False
        for partition in tuple(self._node_of):
            if not partition.is_assigned:
                self._node_of.pop(partition).remove(partition)
        for tp, partition in self._state.assignment.items():
            if not self._place(partition, view):
                # A topic that metadata does not cover yet is being asked for already.
                is_leaderless = is_leaderless or tp.topic in view.topics
        if is_leaderless:
            self.cluster.invalidate()

    def _place(self, partition: PartitionState, view: ClusterView) -> bool:
        """Put a partition under the task of the node to read it from; False without a leader."""
        leader = view.leader(partition.tp)
        node = self._node_of.get(partition)
        if leader is None:
            if node is not None:
                del self._node_of[partition]
                node.remove(partition)
            return False
        node_id = self.replicas.source(partition, leader, view)
        if node is None or node.node_id != node_id:
            if node is not None:
                node.remove(partition)
            node = self._node_of[partition] = self._node(node_id)
            node.add(partition)
        else:
            node.touch(partition)
        return True

    def _node(self, node_id: int) -> NodeFetcher:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = NodeFetcher(self, node_id)
            self._scope.spawn(node.run(), name=f"fetch from node {node_id}")
        return node

    def node_ended(self, node: NodeFetcher) -> None:
        """Forget a task that ended because nothing is left for it."""
        del self._nodes[node.node_id]

    def touch(self, partition: PartitionState) -> None:
        """Look at a partition again before the next request to its leader."""
        node = self._node_of.get(partition)
        if node is not None:
            node.touch(partition)

    def source(self, partition: PartitionState) -> int | None:
        """Return the id of the node that a partition is read from; None without a leader."""
        node = self._node_of.get(partition)
        return None if node is None else node.node_id

    # --- Closest replica ------------------------------------------------------------------
    def prefer(self, partition: PartitionState, node_id: int, now: float) -> bool:
        """Read a partition from the follower that its leader names; False if it is not known."""
        view = self.cluster.view
        if not self.replicas.prefer(partition, node_id, view, now):
            self.cluster.invalidate()
            return False
        self._place(partition, view)
        return True

    def give_back(self, partition: PartitionState, now: float) -> None:
        """Read a partition from its leader again, because the follower failed."""
        self.replicas.give_back(partition, now)
        self._place(partition, self.cluster.view)

    def end_leases(self, now: float) -> None:
        """Ask the leaders anew about the partitions whose choice has expired."""
        for partition in self.replicas.end_leases(self._node_of, now):
            self._place(partition, self.cluster.view)

    # --- The gets' side -------------------------------------------------------------------
    def taken(self, node_id: int) -> None:
        """Note that the application has come for a broker's buffered response."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.wake()

    def budget_released(self) -> None:
        """Have the tasks that wait for bytes try again."""
        for node in self._nodes.values():
            if node.is_short_of_bytes:
                node.wake()

    @property
    def share_bytes(self) -> int:
        """What one response may bring, so that no broker's long poll starves another's.

        Each broker has up to two at a time: one being worked on, one asked for.
        """
        return max(1, self.budget.limit_bytes // (2 * max(1, len(self._nodes))))

    def target(self, partition: PartitionState, node: NodeFetcher) -> FetchTarget | None:
        """Return what to ask a broker of a partition now; None: nothing."""
        if self._node_of.get(partition) is not node:
            return None
        if not partition.is_fetchable or not self.queue.can_fetch(partition):
            return None
        view = self.cluster.view
        leader = view.leader(partition.tp)
        topic = view.topics.get(partition.tp.topic)
        if leader is None:
            return None
        return FetchTarget(
            partition=partition,
            tag=partition.tag,
            offset=partition.fetched,
            leader_epoch=leader.leader_epoch,
            topic_id=ZERO_UUID if topic is None else topic.topic_id,
            max_bytes=self.config.max_partition_fetch_bytes,
        )


class NodeFetcher:
    """The fetch task of one broker: owns its session and its backoff.

    What it reads as a follower is marked in the partitions: their preferred replica.
    """

    def __init__(self, fetcher: Fetcher, node_id: int) -> None:
        self.node_id = node_id
        self.is_short_of_bytes = False
        self._fetcher = fetcher
        self._loop = asyncio.get_running_loop()
        self._session = FetchSession()
        self._partitions: set[PartitionState] = set()
        self._touched: dict[PartitionState, None] = {}
        # Partitions in a backoff of their own, looked at again when it ends.
        self._backing_off: dict[PartitionState, None] = {}
        self._wake = asyncio.Event()
        self._backoff = Backoff(fetcher.config.retry_backoff_s, LAST_BACKOFF_S, fetcher.rng)

    # --- What others post -----------------------------------------------------------------
    def add(self, partition: PartitionState) -> None:
        """Take a partition over."""
        self._partitions.add(partition)
        self.touch(partition)

    def remove(self, partition: PartitionState) -> None:
        """Give a partition up."""
        self._partitions.discard(partition)
        self.touch(partition)

    def touch(self, partition: PartitionState) -> None:
        """Look at a partition again before the next request."""
        self._touched[partition] = None
        self._wake.set()

    def wake(self) -> None:
        """Have the task look whether there is something to do."""
        self._wake.set()

    def close_session(self) -> None:
        """Have the broker forget the session, if that can be said at once; waits for nothing.

        A session that is left open goes when the broker needs its place (after two minutes).
        """
        request = self._session.closing()
        if request is not None:
            self._fetcher.cluster.pool.send_nowait(self.node_id, request)

    # --- The task -------------------------------------------------------------------------
    async def run(self) -> None:
        """Fetch until none of the assigned partitions is read from the broker."""
        queue = self._fetcher.queue
        while True:
            self._wake.clear()
            if queue.has_untaken(self.node_id):
                await self._wake.wait()
                continue
            retry_at = self._apply_touched()
            if not len(self._session):
                if not self._partitions:
                    self.close_session()
                    self._fetcher.node_ended(self)
                    return
                await self._sleep_until_woken(retry_at)
                continue
            delay_s = self._fetcher.cluster.pool.connection_delay(self.node_id, Lane.FETCH)
            if delay_s > 0:
                # Throttled (KIP-219), or about to connect again: what is asked for, and whether
                # there is room for the answer, is decided when it can be sent.
                await self._sleep_until_woken(self._loop.time() + delay_s)
                continue
            reservation = self._reserve()
            if reservation is None:
                await self._sleep_until_woken(retry_at)
                continue
            try:
                await self._fetch(reservation)
            except KafkaError as error:
                if not (error.retriable or isinstance(error, BrokerResponseError)):
                    raise  # it would fail for ever: the application has to know
                for partition in tuple(self._partitions):
                    if partition.preferred_replica is not None:
                        self._fetcher.give_back(partition, self._loop.time())
                await self._back_off(error)
            finally:
                if not reservation.is_kept:
                    reservation.release()

    async def _sleep_until_woken(self, deadline: float | None) -> None:
        try:
            async with timeout_at(deadline):
                await self._wake.wait()
        except asyncio.TimeoutError:
            pass

    def _apply_touched(self) -> float | None:
        """Bring the session's targets up to date; return when the next backoff ends."""
        now = self._loop.time()
        if now >= self._fetcher.replicas.lease_ends_at:
            self._fetcher.end_leases(now)
        for partition in tuple(self._backing_off):
            if partition.retry_at <= now:
                del self._backing_off[partition]
                self._touched[partition] = None
        for partition in self._touched:
            target = None
            if partition in self._partitions:
                target = self._fetcher.target(partition, self)
                if target is not None and partition.retry_at > now:
                    target = None
                    self._backing_off[partition] = None
            self._session.want(partition.tp, target)
        self._touched.clear()
        return min((partition.retry_at for partition in self._backing_off), default=None)

    def _reserve(self) -> Reservation | None:
        config = self._fetcher.config
        wanted_bytes = min(
            config.fetch_max_bytes,
            len(self._session) * config.max_partition_fetch_bytes,
            self._fetcher.share_bytes,
        )
        least_bytes = min(wanted_bytes, config.max_partition_fetch_bytes)
        reservation = self._fetcher.budget.reserve(wanted_bytes, least_bytes)
        self.is_short_of_bytes = reservation is None
        if reservation is None:
            # What paused partitions keep must not hold up the others.
            self._fetcher.queue.drop_paused()
        return reservation

    async def _fetch(self, reservation: Reservation) -> None:
        config = self._fetcher.config
        asked = self._session.request()
        request = FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=reservation.size_bytes,
            isolation_level=config.isolation_level_code,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            topics=asked.topics,
            forgotten_topics_data=asked.forgotten,
            rack_id=self._fetcher.replicas.rack_id(self._loop.time()),
        )
        is_answered = False
        try:
            response = await self._fetcher.cluster.request(
                self.node_id,
                request,
                lane=Lane.FETCH,
                timeout_s=config.fetch_max_wait_s + FETCH_STALL_S,
                max_version=asked.max_version,
            )
            is_answered = True
        finally:
            if not is_answered:  # the broker may have counted it: start over
                self._session.replace()
        if response.error_code:
            self._session_failed(for_code(response.error_code), asked.session_epoch)
            return
        self._backoff.reset()
        self._session.succeeded(response.session_id)
        self._settle(response, reservation)

    def _session_failed(self, error_class: type[KafkaError], epoch: int) -> None:
        if error_class is FetchSessionIdNotFound:
            self._session.forget()
        else:
            self._session.replace()
        if error_class is FetchSessionTopicIdError:
            self._fetcher.cluster.invalidate()
        if error_class not in SESSION_ERRORS or epoch == FULL_EPOCH:
            # No session can be blamed for the refusal of a full request: not again at once.
            raise error_class(f"node {self.node_id} refused a fetch")
        log.info("fetch session with node %s is opened anew: %s", self.node_id, error_class)

    async def _back_off(self, error: KafkaError) -> None:
        """Wait before this broker is asked again: exponentially longer, with jitter."""
        if self._backoff.failures == 0:  # one line per change of state
            log.warning("fetching from node %s failed, is retried: %s", self.node_id, error)
        if error.invalid_metadata:
            self._fetcher.cluster.invalidate()
        await asyncio.sleep(self._backoff.next_delay_s())

    # --- Answers --------------------------------------------------------------------------
    def _settle(self, response: FetchResponse, reservation: Reservation) -> None:
        """Settle each partition of an answer once, and buffer what it brought."""
        now = self._loop.time()
        settling = self._fetcher.settling
        fetched = FetchedResponse(self.node_id, reservation)
        parts: dict[PartitionState, FetchedPartition] = {}
        size_bytes = 0
        for topic in response.responses:
            for answer in topic.partitions:
                target = self._session.target(topic.topic, topic.topic_id, answer.partition_index)
                if target is None:
                    continue
                partition = target.partition
                if partition.tag != target.tag or partition.fetched != target.offset:
                    continue  # moved, taken away, or answered by another broker meanwhile
                if partition in parts:
                    continue  # a broker named it twice
                is_ours = partition in self._partitions
                if answer.error_code and not is_ours:
                    continue  # read from another broker by now
                part = settling.settle(target, answer, fetched, now)
                if part is not None:
                    parts[partition] = part
                    size_bytes += len(answer.records or b"")
                self._touched[partition] = None
                if is_ours and (answer.error_code or answer.preferred_read_replica >= 0):
                    self._choose_replica(partition, answer, now)
                if answer.current_leader.leader_id >= 0:
                    self._follow_hint(partition, answer.current_leader, response)
        if settling.is_metadata_stale:
            settling.is_metadata_stale = False
            self._fetcher.cluster.invalidate()
        if parts:
            reservation.keep(size_bytes)
            self._fetcher.queue.put(fetched, list(parts.values()))

    def _choose_replica(self, partition: PartitionState, answer: PartitionData, now: float) -> None:
        """Go to the follower that a leader names, or back to the leader from one that failed."""
        if answer.error_code:
            if partition.preferred_replica is not None:
                self._fetcher.give_back(partition, now)
        elif answer.preferred_read_replica != self.node_id and not self._fetcher.prefer(
            partition, answer.preferred_read_replica, now
        ):
            self._fetcher.settling.back_off(partition, ReplicaNotAvailableError, now)

    def _follow_hint(
        self, partition: PartitionState, leader: LeaderIdAndEpoch, response: FetchResponse
    ) -> None:
        """Go to the leader that an error answer names, without waiting for metadata (KIP-951)."""
        endpoints = [
            Node(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            for endpoint in response.node_endpoints
        ]
        is_newer = self._fetcher.cluster.apply_leader_hint(
            partition.tp, leader.leader_id, leader.leader_epoch, endpoints
        )
        if is_newer:
            partition.retry_at = 0.0
            self._fetcher.touch(partition)
