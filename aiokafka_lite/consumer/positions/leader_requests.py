"""Requests to leaders: offsets by time, and the ends of leader epochs (KIP-320).

`LeaderRequests` schedules them, so that a slow leader delays only its own partitions, by the rules
in docs/design.md. Partitions that are wanted during a request are sent together afterwards.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff, delay_after
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.connection import LATE_S
from aiokafka_lite.client.offsets import offsets_request
from aiokafka_lite.client.view import GONE_AFTER_S, ClusterView
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.errors import (
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from aiokafka_lite.protocol.schema import Request, Response
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


def _ignore(*_: object) -> None: ...


@dataclass(frozen=True)
class RequestKind(Generic[WishT, QuestionT, AnswerT]):
    """One kind of requests: `send` asks a node; the others take a result and the leader's epoch, an
    error of a wish that is retried, and the end of a request.
    """

    name: str
    send: Callable[[int, Mapping[TopicPartition, QuestionT]], Awaitable[Answered[AnswerT]]]
    answered: Callable[[WishT, AnswerT, int], None]
    failed: Callable[[WishT, KafkaError], None] = _ignore
    ended: Callable[[], None] = _ignore


class LeaderRequests(Generic[WishT, QuestionT, AnswerT]):
    """Sends requests to leaders. A wish is a hashable object that identifies one wanted result."""

    def __init__(
        self,
        kind: RequestKind[WishT, QuestionT, AnswerT],
        cluster: Cluster,
        scope: TaskScope,
        rng: random.Random,
        first_delay_s: float,
    ) -> None:
        self._kind = kind
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

    def advance(self, wanted: Mapping[WishT, tuple[TopicPartition, QuestionT]]) -> float | None:
        """Send the requests that are possible now. Return when the next back-off ends, if any."""
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
                self._put(node_id, questions), name=f"{self._kind.name} node {node_id}"
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
        found, failures = await self._kind.send(
            node_id, {tp: question for tp, question, _ in asked.values()}
        )
        delays: dict[int, float] = {}
        for wish, (tp, _, leader) in asked.items():
            if self._leader(tp) != leader:
                continue
            if tp in found:
                self._failures.pop(wish, None)
                self._kind.answered(wish, found[tp], leader.epoch)
            else:
                self._fail(wish, failures[tp], leader, delays)

    def _watch(self, node_id: int) -> None:
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
        self._kind.ended()

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
        """Schedule a retry. Partitions that failed together are retried together."""
        before = self._failures.get(wish)
        count = 0 if before is None else before.in_a_row
        delay_s = delay_after(count, self._first_delay_s, LONGEST_BACKOFF_S, self._rng)
        retry_at = self._loop.time() + delays.setdefault(count, delay_s)
        self._failures[wish] = Failure(leader, count + 1, retry_at)
        self._kind.failed(wish, error)


ResponseT = TypeVar("ResponseT", bound=Response)


class LeaderLookup(ABC, Generic[QuestionT, AnswerT, ResponseT]):
    def __init__(self, config: ConsumerConfig, cluster: Cluster) -> None:
        self._config = config
        self._cluster = cluster

    @abstractmethod
    def _request(self, questions: Mapping[TopicPartition, QuestionT]) -> Request[ResponseT]: ...

    @abstractmethod
    def _answers(
        self, response: ResponseT, questions: Mapping[TopicPartition, QuestionT]
    ) -> Iterator[tuple[TopicPartition, AnswerT | KafkaError]]:
        """Yield the result of each partition, which may include others than requested."""

    def leader_epoch(self, tp: TopicPartition) -> int:
        leader = self._cluster.view.leader(tp)
        return -1 if leader is None else leader.leader_epoch

    async def ask(
        self, node_id: int, questions: Mapping[TopicPartition, QuestionT]
    ) -> Answered[AnswerT]:
        """Send one request to a node, and return the results, and the other partitions' errors."""
        found: dict[TopicPartition, AnswerT] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        try:
            response = await self._cluster.request(node_id, self._request(questions))
        except KafkaError as error:
            failures.update(dict.fromkeys(questions, error))
        else:
            for tp, answer in self._answers(response, questions):
                if tp not in questions:
                    continue
                if isinstance(answer, KafkaError):
                    failures[tp] = answer.at(tp)
                else:
                    found[tp] = answer
            for tp in [tp for tp in questions if tp not in found and tp not in failures]:
                text = f"the leader's response does not contain {tp}"
                failures[tp] = KafkaTimeoutError(text).at(tp)
        # Any error that a retry may end can be due to old metadata, as in Java. So can
        # UNKNOWN_LEADER_EPOCH: leader epochs begin again when a topic is recreated.
        if any(error.retriable or error.invalid_metadata for error in failures.values()):
            self._cluster.invalidate()
        return found, failures


UNDEFINED: Final = -1


class EpochEnd(NamedTuple):
    """The largest epoch not above the requested one, and the offset after its last record."""

    leader_epoch: int
    end_offset: int

    @property
    def is_defined(self) -> bool:
        return self.leader_epoch != UNDEFINED and self.end_offset != UNDEFINED


class EpochEndLookup(LeaderLookup[int, EpochEnd, OffsetForLeaderEpochResponse]):
    def _request(self, questions: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for tp, epoch in questions.items():
            topic = topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=tp.partition,
                    current_leader_epoch=self.leader_epoch(tp),
                    leader_epoch=epoch,
                )
            )
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))

    def _answers(
        self, response: OffsetForLeaderEpochResponse, questions: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, EpochEnd | KafkaError]]:
        for topic in response.topics:
            for answer in topic.partitions:
                tp = TopicPartition(topic.topic, answer.partition)
                if answer.error_code:
                    text = f"the leader cannot check whether the log of {tp} was truncated"
                    yield tp, for_code(answer.error_code)(text)
                else:
                    yield tp, EpochEnd(answer.leader_epoch, answer.end_offset)


class FoundOffset(NamedTuple):
    """The first offset at or after a time; offset and timestamp are -1 if there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


class OffsetLookup(LeaderLookup[int, FoundOffset, ListOffsetsResponse]):
    """Looks up offsets by time; -2 means the first offset, -1 the last."""

    def __init__(
        self, config: ConsumerConfig, cluster: Cluster, scope: TaskScope, rng: random.Random
    ) -> None:
        super().__init__(config, cluster)
        self._scope = scope
        self._rng = rng

    async def until_listed(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until the metadata of existing topics have these partitions, for `GONE_AFTER_S`."""
        wanted = tuple(partitions)
        clock = asyncio.get_running_loop().time
        until = clock() + GONE_AFTER_S
        backoff = Backoff(self._config.retry_backoff_s, GONE_AFTER_S, self._rng)
        while missing := [tp for tp in wanted if self._cluster.view.lacks(tp)]:
            if clock() >= until:
                tp = missing[0]
                count = len(self._cluster.view.topics[tp.topic].partitions)
                raise UnknownTopicOrPartitionError(
                    f"topic {tp.topic!r} has no partition {tp.partition}: the topic has {count} "
                    "partitions, numbered from 0"
                ).at(tp)
            await asyncio.sleep(backoff.next_delay_s())
            await self._cluster.refresh({tp.topic for tp in missing})

    async def find(
        self, timestamps: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, FoundOffset]:
        """Look up all offsets, with retries until the deadline. Its error lists the reasons."""
        found: dict[TopicPartition, FoundOffset] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        wake = Event()

        def answered(tp: TopicPartition, offset: FoundOffset, _: int) -> None:
            found[tp] = offset

        def view_changed(_: ClusterView) -> None:
            wake.set()

        search = LeaderRequests(
            RequestKind("look offsets up at", self.ask, answered, failures.__setitem__, wake.set),
            self._cluster,
            self._scope,
            self._rng,
            self._config.retry_backoff_s,
        )
        self._cluster.add_listener(view_changed)
        try:
            async with timeout_at(deadline):
                while missing := {tp: at for tp, at in timestamps.items() if tp not in found}:
                    for tp, error in failures.items():
                        if tp in missing and not (error.retriable or error.invalid_metadata):
                            raise error
                    self._scope.raise_if_failed()
                    self._cluster.raise_if_closed()
                    wake.clear()
                    retry_at = search.advance({tp: (tp, at) for tp, at in missing.items()})
                    await wake.wait(retry_at)
        except asyncio.TimeoutError:
            raise self._not_found(missing, failures, search.pending_nodes) from None
        finally:
            search.cancel()
            self._cluster.remove_listener(view_changed)
        return found

    def _not_found(
        self,
        missing: Mapping[TopicPartition, int],
        failures: Mapping[TopicPartition, KafkaError],
        silent: frozenset[int],
    ) -> KafkaTimeoutError:
        reasons = []
        for tp in sorted(missing):
            leader = self._cluster.view.leader(tp)
            if leader is not None and leader.leader in silent:
                why = f"the leader, node {leader.leader}, has not responded"
            else:
                why = str(failures.get(tp, "no request was sent to the leader before the deadline"))
            reasons.append(f"{tp.topic}/{tp.partition}: {why}")
        return KafkaTimeoutError(
            f"the leaders did not return the offsets of {len(missing)} partitions in time "
            f"({'; '.join(reasons)})"
        )

    def _request(self, questions: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
        asked = {tp: (self.leader_epoch(tp), at) for tp, at in questions.items()}
        config = self._config
        return offsets_request(asked, config.isolation_level_code, config.request_timeout_ms)

    def _answers(
        self, response: ListOffsetsResponse, questions: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[TopicPartition, FoundOffset | KafkaError]]:
        for topic in response.topics:
            for answer in topic.partitions:
                tp = TopicPartition(topic.name, answer.partition_index)
                if answer.error_code:
                    error = for_code(answer.error_code)
                    yield tp, error(f"offsets of partition {tp} cannot be looked up")
                elif answer.offset < 0 and tp in questions and questions[tp] < 0:
                    text = f"the leader of {tp} returned no offset for timestamp {questions[tp]}"
                    yield tp, KafkaTimeoutError(text)
                else:
                    yield tp, FoundOffset(answer.offset, answer.timestamp, answer.leader_epoch)
