"""Assigns cursors to brokers, and to the sources of each broker.

A broker with many partitions has several sources, each with a session and a connection. `Sharing`
computes their number each second. A cursor stays with its source if possible. New ones fill the
first source with room, so that sources empty over time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, repeat
from typing import Final

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer.assignment.cursor import Cursor, Place
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.fetching.counts import NodeCounts
from aiokafka_lite.consumer.fetching.leader_search import LeaderSearch
from aiokafka_lite.consumer.fetching.replicas import ReplicaChoice
from aiokafka_lite.consumer.fetching.session import SessionRequest
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.events import Throttled
from aiokafka_lite.protocol.fetch_template import FetchTemplate, PreparedFetch
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)


# One per source of a broker. More would cost the broker more connections and sessions.
FETCH_LANES: Final = (
    Lane.FETCH,
    *(Lane(f"fetch {number}", waits_for_throttled=True) for number in range(2, 33)),
)
LOOK_S: Final = 1.0

# A broker's time for one partition of a session, per answer with records of the session.
WALK_S: Final = 3e-6
# Both sides' time for the answer and the next request of an idle session.
IDLE_ANSWER_S: Final = 110e-6
# Of one session: more only if all have as many. Smaller ones are not worth it.
MOST_PARTITIONS: Final = 1_000
FEWEST_PARTITIONS: Final = 100
# Partitions of a topic are neighbours, and often have records together.
TOGETHER: Final = 50
# How far back the rate remembers: one record in a while is not often.
MEMORY_S: Final = 5.0
# The number of sessions grows at least by this factor.
GROWTH: Final = 1.5
# Fewer are taken when half as many have been enough for so long.
CALM_S: Final = 30.0


class Sharing:
    """Decides how many sessions read the partitions of one broker.

    For each answer with records a broker walks all partitions of the session, some 3 us each.
    Smaller sessions reduce that, but each idle session is answered every `fetch_max_wait_ms`. With
    P partitions, s sessions, r answers with records a second, and a long poll of w seconds, both
    sides' processors take

        for the walks           r * P / s * WALK_S          a second
        for the idle sessions   s / w * IDLE_ANSWER_S       a second

    which is least for s = sqrt(r * P * w * WALK_S / IDLE_ANSWER_S).

    Moving partitions costs as well. So a broker begins with few sessions, gets more as soon as half
    as many again are worth it, and fewer once half of them have been enough for a while.
    """

    def __init__(self, most: int, max_wait_s: float) -> None:
        self.count = 1
        self._most = most
        self._max_wait_s = max_wait_s
        # Answers with records until the latest look, and its loop time.
        self._answers = 0
        self._looked_at: float | None = None
        # Such answers a second, lately.
        self._rate = 0.0
        # Loop time since when half as many would have been enough.
        self._calm_since: float | None = None

    def share(self, partitions: int) -> int:
        count = max(self.count, self._least(partitions))
        share = math.ceil(partitions / count / TOGETHER) * TOGETHER
        return max(FEWEST_PARTITIONS, share)

    def look(self, now: float, answers: int, partitions: int) -> bool:
        """Decide again by the total of answers with records. Return whether `count` has changed."""
        before, looked_at = self.count, self._looked_at
        came, self._answers, self._looked_at = answers - self._answers, answers, now
        if looked_at is None or now <= looked_at:
            return False
        passed_s = now - looked_at
        self._rate += (came / passed_s - self._rate) * -math.expm1(-passed_s / MEMORY_S)
        best = self._best(partitions)
        if best >= before * GROWTH or before < self._least(partitions):
            self.count, self._calm_since = best, None
        elif best * 2 > before:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= CALM_S:
            self.count, self._calm_since = best, None
        return self.count != before

    def _least(self, partitions: int) -> int:
        return min(self._most, max(1, math.ceil(partitions / MOST_PARTITIONS)))

    def _best(self, partitions: int) -> int:
        most = min(self._most, max(1, math.ceil(partitions / FEWEST_PARTITIONS)))
        cheapest = math.sqrt(self._rate * partitions * self._max_wait_s * WALK_S / IDLE_ANSWER_S)
        return max(self._least(partitions), min(most, math.ceil(cheapest)))


def task_name(node_id: int, lane: Lane = Lane.FETCH) -> str:
    return f"{lane.name} from node {node_id}"


def _partition_count(sources: list[Source]) -> int:
    return sum(source.partition_count for source in sources)


class Sources:
    def __init__(self, core: Core, cluster: Cluster, scope: TaskScope) -> None:
        self.config, self.buffer, self.rng = core.config, core.buffer, core.rng
        self.cluster = cluster
        self.budget = core.buffer.budget
        self._template = FetchTemplate(
            min_bytes=core.config.fetch_min_bytes,
            isolation_level=core.config.isolation_level_code,
        )
        self.replicas = ReplicaChoice(core.config)
        self.events = core.events
        self.state, self._observers = core.state, core.observers
        self.scope = scope
        # By node id. They outlive the node's tasks.
        self.counts: dict[int, NodeCounts] = {}
        # By node id, those with the lanes in use.
        self._sources: dict[int, list[Source]] = {}
        self._sharing: dict[int, Sharing] = {}
        # Looks at the spread of partitions, if a broker has many.
        self._look: asyncio.TimerHandle | None = None
        self.search = LeaderSearch(cluster, self._all)
        self.is_closed = False

    def start(self) -> None:
        """Begin to follow assignment and leaders. Tasks start when there is work."""
        self._observers.assignment_changed.add(self._place_all)
        self.cluster.add_listener(lambda _: self._place_all(), on_moves=self._leaders_moved)
        self.search.start()
        self._place_all()

    def close(self) -> None:
        self.is_closed = True
        if self._look is not None:
            self._look.cancel()
        self.search.close()
        for source in self._all():
            source.close()

    def _all(self) -> Iterator[Source]:
        return chain.from_iterable(self._sources.values())

    def _leaders_moved(self, view: ClusterView, moved: Collection[TopicPartition]) -> None:
        if self.is_closed or self.scope.failure is not None:
            return
        for tp in moved:
            if (cursor := self.state.assignment.get(tp)) is not None:
                self._place(cursor, view)
        self._look_soon()

    def _place_all(self) -> None:
        if self.is_closed or self.scope.failure is not None:
            return
        view = self.cluster.view
        is_unavailable = is_leaderless = False
        for tp, cursor in self.state.assignment.items():
            if not self._place(cursor, view):
                # A topic that metadata does not cover yet is being asked for already, and one
                # that is deleted need not be found in a hurry.
                topic = view.topics.get(tp.topic)
                is_unavailable = is_unavailable or topic is not None
                is_leaderless = is_leaderless or (topic is not None and topic.error is None)
        if is_unavailable:
            self.cluster.invalidate()
        self.search.note_leaderless(is_so=is_leaderless)
        self._look_soon()

    def _place(self, cursor: Cursor, view: ClusterView) -> bool:
        leader = view.leader(cursor.tp)
        if leader is None:
            cursor.read_from(None)
            return False
        node_id = self.replicas.source(cursor, leader, view)
        source = cursor.source
        if source is None or source.node_id != node_id:
            source = self._source_with_room(node_id)
        topic_id = view.topic_id(cursor.tp.topic)
        cursor.read_from(source, leader.leader_epoch, ZERO_UUID if topic_id is None else topic_id)
        return True

    def _source_with_room(self, node_id: int) -> Source:
        of_node = self._sources.get(node_id, [])
        share = self._sharing_of(node_id).share(_partition_count(of_node) + 1)
        for source in of_node:
            if source.partition_count < share:
                return source
        if not of_node or self._may_have_another(of_node):
            return self._open(node_id)
        return min(of_node, key=lambda source: source.partition_count)

    def _may_have_another(self, of_node: list[Source]) -> bool:
        return len(of_node) < len(FETCH_LANES) and self.budget.suffices_for_another(
            self.config.max_partition_fetch_bytes
        )

    def _open(self, node_id: int) -> Source:
        of_node = self._sources.setdefault(node_id, [])
        lane = next(each for each in FETCH_LANES if all(s.lane is not each for s in of_node))
        counts = self.counts.setdefault(node_id, NodeCounts())
        source = Source(self, node_id, lane, counts)
        of_node.append(source)
        self.budget.source_count += 1
        self.scope.supervise(source.run, name=task_name(node_id, lane))
        return source

    # --- Sharing out anew -----------------------------------------------------------------
    def _sharing_of(self, node_id: int) -> Sharing:
        sharing = self._sharing.get(node_id)
        if sharing is None:
            wait_s = self.config.fetch_max_wait_s
            sharing = self._sharing[node_id] = Sharing(len(FETCH_LANES), wait_s)
        return sharing

    def _look_soon(self) -> None:
        if self._look is None and any(
            _partition_count(of_node) > FEWEST_PARTITIONS for of_node in self._sources.values()
        ):
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_at_all)

    def _look_at_all(self) -> None:
        self._look = None
        if self.scope.failure is not None:
            return
        now = asyncio.get_running_loop().time()
        for node_id, of_node in tuple(self._sources.items()):
            answers = self.counts[node_id].record_answer_count
            if self._sharing[node_id].look(now, answers, _partition_count(of_node)):
                self._share_out(node_id)
        self._look_soon()

    def _share_out(self, node_id: int) -> None:
        of_node, sharing = self._sources[node_id], self._sharing[node_id]
        share = sharing.share(_partition_count(of_node))
        kept = dict.fromkeys(of_node[: sharing.count], 0)
        surplus: list[Cursor] = []
        for cursor in self.state.assignment.values():  # neighbours stay together
            source = cursor.source
            if not isinstance(source, Source) or source.node_id != node_id:
                continue
            if source in kept and kept[source] < share:
                kept[source] += 1
            else:
                surplus.append(cursor)
        # Where there is no room for them all, those that are left stay where they are.
        for cursor, source in zip(surplus, self._rooms(node_id, kept, share), strict=False):
            cursor.read_from(source, cursor.current_epoch, cursor.topic_id)

    def _rooms(self, node_id: int, kept: Mapping[Source, int], share: int) -> Iterator[Source]:
        """Yield a source for each partition that it has room for, then newly opened ones."""
        for source, count in kept.items():
            yield from repeat(source, share - count)
        while self._may_have_another(self._sources[node_id]):
            yield from repeat(self._open(node_id), share)

    def request(
        self, asked: SessionRequest, now: float, max_bytes: int, max_wait_ms: int
    ) -> PreparedFetch:
        return PreparedFetch(
            self._template,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            max_bytes=max_bytes,
            topics=asked.topics,
            forgotten=asked.forgotten,
            rack_id=self.replicas.rack_id(now),
            max_wait_ms=max_wait_ms,
        )

    def source_ended(self, source: Source) -> None:
        self._sources[source.node_id].remove(source)
        self.budget.source_count -= 1
        self._note_recovery(source.node_id)

    def node_failed(self, node_id: int, error: KafkaError) -> None:
        if self.scope.degrade(task_name(node_id), error):
            is_said = self.cluster.pool.last_error(node_id) is not None
            level = logging.INFO if is_said else logging.WARNING
            log.log(level, "fetching from node %s failed and is retried: %s", node_id, error)

    def node_recovered(self, node_id: int) -> None:
        if self._note_recovery(node_id):
            log.info("fetching from node %s works again", node_id)

    def _note_recovery(self, node_id: int) -> bool:
        if any(source.is_failing for source in self._sources.get(node_id, ())):
            return False
        self.scope.recovered(task_name(node_id))
        return True

    def node_throttles(self, node_id: int, throttle_s: float) -> None:
        if not any(source.is_throttled for source in self._sources.get(node_id, ())):
            self.events.publish(Throttled(node_id, throttle_s))

    def trouble(self, node_id: int) -> BaseException | None:
        return self.scope.degraded.get(task_name(node_id))

    def is_behind(self, cursor: Cursor) -> bool:
        return cursor.is_behind(is_read_committed=self.config.is_read_committed)

    def of(self, cursor: Cursor) -> Source | None:
        source = cursor.source
        return source if isinstance(source, Source) else None

    def is_asking_for(self, cursor: Cursor) -> bool:
        """Whether a fetch is in flight that is answered when the log of a cursor grows."""
        source = self.of(cursor)
        is_in_flight = source is not None and source.in_flight_since is not None
        return is_in_flight and cursor.place is Place.IN_FLIGHT

    # --- Closest replica ------------------------------------------------------------------
    def prefer(self, cursor: Cursor, node_id: int, now: float) -> bool:
        view = self.cluster.view
        if not self.replicas.prefer(cursor, node_id, view, now):
            self.cluster.invalidate()
            return False
        self._place(cursor, view)
        return True

    def give_back(self, cursor: Cursor, now: float) -> None:
        self.replicas.give_back(cursor, now)
        self._place(cursor, self.cluster.view)

    def end_leases(self, now: float) -> None:
        for cursor in self.replicas.end_leases(self.state.assignment.values(), now):
            self._place(cursor, self.cluster.view)

    # --- The gets' side -------------------------------------------------------------------
    def budget_released(self) -> None:
        for source in self._all():
            if source.is_short_of_bytes:
                source.wake()

    def choose_anew(self) -> None:
        for source in self._all():
            source.choose_anew()
