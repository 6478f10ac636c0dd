"""Decides which leader is asked about which partition, and when: who hangs holds up nobody else.

    wanted --leader known, nothing pending there--> asked --> answered     applied at once
                                                      |
                                                      +--> failed          back-off, asked again

Each node has one question pending at most, in a task of its own; what comes up meanwhile waits
for its end and goes out together. A back-off is of one partition, grows with its failures in a
row, and ends at once when another node leads. An answer of a node that leads no more counts for
nothing: the new leader is asked. A node that hangs closes no connection: when its answer is
overdue, the others are asked again and again whether it still leads.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._event import Event
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, delay_after
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.connection import LATE_S
from aiokafka_lite.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import TopicPartition

# What a node may take to answer until it is asked of others whether it still leads.
OVERDUE_S: Final = 1.0

WishT = TypeVar("WishT", bound=Hashable)
QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")

# What a node said of partitions, and why it did not say it of others.
Answered = tuple[dict[TopicPartition, AnswerT], dict[TopicPartition, KafkaError]]


class Leader(NamedTuple):
    """Names who leads a partition, and since which election."""

    node_id: int
    epoch: int


class Failure(NamedTuple):
    """Says why a partition is not asked about for now."""

    # Who was asked; None: there was nobody to ask.
    leader: Leader | None
    in_a_row: int
    retry_at: float


class LeaderRequests(Generic[WishT, QuestionT, AnswerT]):
    """Puts questions of one kind to the leaders of the partitions that they are about.

    A wish is whatever names a question to those who want its answer.

    Args:
        name: What the tasks are called, with the node.
        first_delay_s: The first back-off after a failure.
        ask: Asks one node.
        on_answer: Told of each answer, with the leader epoch that it was asked under.
        on_failure: Told of each failure. It is tried again for as long as it is wanted.
        on_end: Told when there may be something to send.
    """

    def __init__(
        self,
        cluster: Cluster,
        scope: TaskScope,
        rng: random.Random,
        *,
        name: str,
        first_delay_s: float,
        ask: Callable[[int, Mapping[TopicPartition, QuestionT]], Awaitable[Answered[AnswerT]]],
        on_answer: Callable[[WishT, AnswerT, int], None],
        on_failure: Callable[[WishT, KafkaError], None],
        on_end: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._scope = scope
        self._rng = rng
        self._name = name
        self._first_delay_s = first_delay_s
        self._ask = ask
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, asyncio.Task[None]] = {}
        # By node: fires when what is pending there is overdue.
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._overdue: frozenset[int] = frozenset()
        self._failures: dict[WishT, Failure] = {}

    def advance(self, wanted: Mapping[WishT, tuple[TopicPartition, QuestionT]]) -> float | None:
        """Send what can be sent now; return when the next back-off ends, None: there is none.

        Args:
            wanted: All that is wanted; what is left out is forgotten.
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
                self._put(node_id, questions), name=f"{self._name} node {node_id}"
            )
            # The scope knows of a failure by then.
            task.add_done_callback(partial(self._ended, node_id))
            self._watch(node_id)
        waiting = (f.retry_at for f in self._failures.values() if f.retry_at > now)
        return min(waiting, default=None)

    def cancel(self) -> None:
        """Ask nothing more; late answers are dropped."""
        for task in self._pending.values():
            self._scope.cancel(task)

    @property
    def pending_nodes(self) -> frozenset[int]:
        """The nodes that have not answered yet."""
        return frozenset(self._pending)

    def _leader(self, tp: TopicPartition) -> Leader | None:
        leader = self._cluster.view.leader(tp)
        return None if leader is None else Leader(leader.leader, leader.leader_epoch)

    async def _put(
        self, node_id: int, asked: Mapping[WishT, tuple[TopicPartition, QuestionT, Leader]]
    ) -> None:
        """Ask a node, and pass on what it answers."""
        found, failures = await self._ask(
            node_id, {tp: question for tp, question, _ in asked.values()}
        )
        delays: dict[int, float] = {}
        for wish, (tp, _, leader) in asked.items():
            if self._leader(tp) != leader:
                continue
            if tp in found:
                self._failures.pop(wish, None)
                self._on_answer(wish, found[tp], leader.epoch)
            else:
                self._fail(wish, failures[tp], leader, delays)

    def _watch(self, node_id: int) -> None:
        """Ask others for metadata when a node's answer is overdue, for as long as it is."""
        self._timers[node_id] = self._loop.call_later(OVERDUE_S, self._ask_others, node_id)

    def _ask_others(self, node_id: int) -> None:
        if self._loop.time() <= self._timers[node_id].when() + LATE_S:
            self._suspect(self._overdue | {node_id})
            self._cluster.invalidate()
        # Else the loop was blocked: its answer may have come, and nobody has read it.
        self._watch(node_id)

    def _ended(self, node_id: int, _: object) -> None:
        del self._pending[node_id]
        self._timers.pop(node_id).cancel()
        if node_id in self._overdue:
            self._suspect(self._overdue - {node_id})
        self._on_end()

    def _suspect(self, overdue: frozenset[int]) -> None:
        self._overdue = overdue
        self._cluster.pool.suspect(self, overdue)

    def _miss_leader(self, wish: WishT, tp: TopicPartition, delays: dict[int, float]) -> None:
        if tp.topic in self._cluster.view.topics:
            # A topic that metadata does not cover yet is being asked for already.
            self._cluster.invalidate()
        error = UnknownTopicOrPartitionError(f"no leader is known for partition {tp}").at(tp)
        self._fail(wish, error, None, delays)

    def _fail(
        self, wish: WishT, error: KafkaError, leader: Leader | None, delays: dict[int, float]
    ) -> None:
        """Ask again later; what failed together is asked again together."""
        before = self._failures.get(wish)
        count = 0 if before is None else before.in_a_row
        delay_s = delay_after(count, self._first_delay_s, LONGEST_BACKOFF_S, self._rng)
        retry_at = self._loop.time() + delays.setdefault(count, delay_s)
        self._failures[wish] = Failure(leader, count + 1, retry_at)
        self._on_failure(wish, error)


async def until_set(event: Event, deadline: float | None) -> None:
    """Wait until an event is set, or until a loop time has come."""
    try:
        async with timeout_at(deadline):
            await event.wait()
    except asyncio.TimeoutError:
        pass
