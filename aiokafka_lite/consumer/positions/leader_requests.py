"""Schedules requests to leaders, so that a slow leader delays only its own partitions.

Each node has one request in flight at most, in its own task. Partitions that are wanted during that
time are sent together afterwards. Back-offs are per partition, and end when another node leads. A
response of a former leader is ignored. If a response is overdue, other brokers are asked whether
the node still leads, because a node that hangs closes no connection.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from functools import partial
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, delay_after
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.connection import LATE_S
from aiokafka_lite.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import TopicPartition

# After this long, other brokers are asked whether the node still leads.
OVERDUE_S: Final = 1.0

WishT = TypeVar("WishT", bound=Hashable)
QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")

# Results, and errors of the other partitions.
Answered = tuple[dict[TopicPartition, AnswerT], dict[TopicPartition, KafkaError]]


class Leader(NamedTuple):
    node_id: int
    epoch: int


class Failure(NamedTuple):
    # None: the partition had no leader.
    leader: Leader | None
    in_a_row: int
    retry_at: float


class LeaderRequests(ABC, Generic[WishT, QuestionT, AnswerT]):
    """Sends requests of one kind to the leaders of partitions; a subclass is a kind.

    A wish is a hashable object that identifies one wanted result.

    Attributes:
        name: The tasks' name, before the node.
    """

    name: ClassVar[str]

    def __init__(
        self, cluster: Cluster, scope: TaskScope, rng: random.Random, first_delay_s: float
    ) -> None:
        self._cluster = cluster
        self._scope = scope
        self._rng = rng
        # The first back-off after a failure.
        self._first_delay_s = first_delay_s
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Task[None]] = {}
        # By node: fire when its response is overdue.
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._overdue: frozenset[int] = frozenset()
        self._failures: dict[WishT, Failure] = {}

    # --- Of the kind ----------------------------------------------------------------------
    @abstractmethod
    async def send(
        self, node_id: int, questions: Mapping[TopicPartition, QuestionT]
    ) -> Answered[AnswerT]: ...

    @abstractmethod
    def answered(self, wish: WishT, answer: AnswerT, leader_epoch: int) -> None:
        """Take a result, with the leader epoch of its request."""

    def failed(self, wish: WishT, error: KafkaError) -> None:
        """Note an error; the wish is retried while it is wanted."""
        return

    def ended(self) -> None:
        """Note that `advance` may send more."""
        return

    # --- Requests -------------------------------------------------------------------------
    def advance(self, wanted: Mapping[WishT, tuple[TopicPartition, QuestionT]]) -> float | None:
        """Send the requests that are possible now; return the end of the next back-off, if any.

        Args:
            wanted: All wishes. Those left out are forgotten.
        """
        now = self._loop.time()
        self._failures = {w: failure for w, failure in self._failures.items() if w in wanted}
        asked: dict[int, dict[WishT, tuple[TopicPartition, QuestionT, Leader]]] = {}
        nobody: list[WishT] = []
        for wish, (tp, question) in wanted.items():
            leader = self._leader(tp)
            failure = self._failures.get(wish)
            if failure is not None and failure.retry_at > now and failure.leader == leader:
                continue
            if leader is None:
                nobody.append(wish)
            elif leader.node_id not in self._pending:
                asked.setdefault(leader.node_id, {})[wish] = (tp, question, leader)
        delays: dict[int, float] = {}
        for wish in nobody:
            self._miss_leader(wish, wanted[wish][0], delays)
        for node_id, questions in asked.items():
            task = self._pending[node_id] = self._scope.spawn(
                self._put(node_id, questions), name=f"{self.name} node {node_id}"
            )
            # The scope has handled a failure by then.
            task.add_done_callback(partial(self._ended, node_id))
            self._watch(node_id)
        waiting = (f.retry_at for f in self._failures.values() if f.retry_at > now)
        return min(waiting, default=None)

    def cancel(self) -> None:
        for task in self._pending.values():
            self._scope.cancel(task)

    @property
    def pending_nodes(self) -> frozenset[int]:
        return frozenset(self._pending)

    def _leader(self, tp: TopicPartition) -> Leader | None:
        leader = self._cluster.view.leader(tp)
        return None if leader is None else Leader(leader.leader, leader.leader_epoch)

    async def _put(
        self, node_id: int, asked: Mapping[WishT, tuple[TopicPartition, QuestionT, Leader]]
    ) -> None:
        found, failures = await self.send(
            node_id, {tp: question for tp, question, _ in asked.values()}
        )
        delays: dict[int, float] = {}
        for wish, (tp, _, leader) in asked.items():
            if self._leader(tp) != leader:
                continue
            if tp in found:
                self._failures.pop(wish, None)
                self.answered(wish, found[tp], leader.epoch)
            else:
                self._fail(wish, failures[tp], leader, delays)

    def _watch(self, node_id: int) -> None:
        """Refresh metadata while a node's response is overdue."""
        self._timers[node_id] = self._loop.call_later(OVERDUE_S, self._ask_others, node_id)

    def _ask_others(self, node_id: int) -> None:
        if self._loop.time() <= self._timers[node_id].when() + LATE_S:
            self._suspect(self._overdue | {node_id})
            self._cluster.invalidate()
        # Else the loop was blocked, and the response may be unread.
        self._watch(node_id)

    def _ended(self, node_id: int, _: object) -> None:
        del self._pending[node_id]
        self._timers.pop(node_id).cancel()
        if node_id in self._overdue:
            self._suspect(self._overdue - {node_id})
        self.ended()

    def _suspect(self, overdue: frozenset[int]) -> None:
        self._overdue = overdue
        self._cluster.pool.suspect(self, overdue)

    def _miss_leader(self, wish: WishT, tp: TopicPartition, delays: dict[int, float]) -> None:
        if tp.topic in self._cluster.view.topics:
            # Metadata of other topics have been requested already.
            self._cluster.invalidate()
        error = UnknownTopicOrPartitionError(f"no leader is known for partition {tp}").at(tp)
        self._fail(wish, error, None, delays)

    def _fail(
        self, wish: WishT, error: KafkaError, leader: Leader | None, delays: dict[int, float]
    ) -> None:
        """Schedule a retry; partitions that failed together are retried together."""
        before = self._failures.get(wish)
        count = 0 if before is None else before.in_a_row
        delay_s = delay_after(count, self._first_delay_s, LONGEST_BACKOFF_S, self._rng)
        retry_at = self._loop.time() + delays.setdefault(count, delay_s)
        self._failures[wish] = Failure(leader, count + 1, retry_at)
        self.failed(wish, error)


async def until_set(event: Event, deadline: float | None) -> None:
    try:
        async with timeout_at(deadline):
            await event.wait()
    except asyncio.TimeoutError:
        pass
