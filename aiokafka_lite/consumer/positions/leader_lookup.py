"""The requests for positions that leaders answer.

    OffsetLookup      offsets by time (ListOffsets)
    EpochEndLookup    the ends of leader epochs (OffsetForLeaderEpoch, KIP-320)

leader_requests.py schedules them.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.view import GONE_AFTER_S, ClusterView
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.positions.leader_requests import (
    Answered,
    LeaderRequests,
    until_set,
)
from aiokafka_lite.errors import (
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")
ResponseT = TypeVar("ResponseT", bound=Response)


class LeaderLookup(ABC, Generic[QuestionT, AnswerT, ResponseT]):
    """Sends requests for partitions to their leader; has no state."""

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

    def _leader_epoch(self, tp: TopicPartition) -> int:
        leader = self._cluster.view.leader(tp)
        return -1 if leader is None else leader.leader_epoch

    async def ask(
        self, node_id: int, questions: Mapping[TopicPartition, QuestionT]
    ) -> Answered[AnswerT]:
        """Send one request to a node; return the results, and the other partitions' errors."""
        found: dict[TopicPartition, AnswerT] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        try:
            response = await self._cluster.request(node_id, self._request(questions))
        except KafkaError as error:
            failures.update(dict.fromkeys(questions, error))
        else:
            self._sort(questions, response, found, failures)
        if any(error.invalid_metadata for error in failures.values()):
            self._cluster.invalidate()
        return found, failures

    def _sort(
        self,
        asked: Mapping[TopicPartition, QuestionT],
        response: ResponseT,
        found: dict[TopicPartition, AnswerT],
        failures: dict[TopicPartition, KafkaError],
    ) -> None:
        for tp, answer in self._answers(response, asked):
            if tp not in asked:
                continue
            if isinstance(answer, KafkaError):
                failures[tp] = answer.at(tp)
            else:
                found[tp] = answer
        for tp in asked:
            if tp not in found and tp not in failures:
                failures[tp] = KafkaTimeoutError(f"the leader's response does not contain {tp}").at(
                    tp
                )


UNDEFINED: Final = -1


class EpochEnd(NamedTuple):
    """The largest epoch not above the requested one, and the offset after its last record."""

    leader_epoch: int
    end_offset: int

    @property
    def is_defined(self) -> bool:
        """Whether the leader's log contains an epoch so old."""
        return self.leader_epoch != UNDEFINED and self.end_offset != UNDEFINED


class EpochEndLookup(LeaderLookup[int, EpochEnd, OffsetForLeaderEpochResponse]):
    def _request(self, questions: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for tp, epoch in questions.items():
            topic = topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=tp.partition,
                    current_leader_epoch=self._leader_epoch(tp),
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


def _raise_what_does_not_pass(
    failures: Mapping[TopicPartition, KafkaError], missing: Mapping[TopicPartition, int]
) -> None:
    for tp, error in failures.items():
        if tp in missing and not (error.retriable or error.invalid_metadata):
            raise error


class OffsetSearch(LeaderRequests[TopicPartition, int, FoundOffset]):
    """The requests of one `OffsetLookup.find`."""

    name = "look offsets up at"

    def __init__(
        self, lookup: OffsetLookup, cluster: Cluster, scope: TaskScope, rng: random.Random,
        first_delay_s: float,
    ) -> None:  # fmt: skip
        super().__init__(cluster, scope, rng, first_delay_s)
        self._lookup = lookup
        self.found: dict[TopicPartition, FoundOffset] = {}
        self.failures: dict[TopicPartition, KafkaError] = {}
        self.wake = Event()

    async def send(
        self, node_id: int, questions: Mapping[TopicPartition, int]
    ) -> Answered[FoundOffset]:
        return await self._lookup.ask(node_id, questions)

    def answered(self, wish: TopicPartition, answer: FoundOffset, leader_epoch: int) -> None:
        self.found[wish] = answer

    def failed(self, wish: TopicPartition, error: KafkaError) -> None:
        self.failures[wish] = error

    def ended(self) -> None:
        self.wake.set()


class OffsetLookup(LeaderLookup[int, FoundOffset, ListOffsetsResponse]):
    """Looks up offsets by time; -2 means the first offset, -1 the last."""

    def __init__(
        self, config: ConsumerConfig, cluster: Cluster, scope: TaskScope, rng: random.Random
    ) -> None:
        super().__init__(config, cluster)
        self._scope = scope
        self._rng = rng

    async def until_listed(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until the metadata of existing topics have these partitions.

        A broker may lag, so a partition counts as missing after `GONE_AFTER_S`.

        Raises:
            UnknownTopicOrPartitionError: A topic has no such partition.
            KafkaError: The metadata could not be refreshed.
        """
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
        """Look up all offsets, with retries until the deadline.

        Each leader has its own task.

        Raises:
            KafkaTimeoutError: Not all were found by the deadline; lists the others with their
                reasons.
            KafkaError: A broker refused permanently.
        """
        search = OffsetSearch(
            self, self._cluster, self._scope, self._rng, self._config.retry_backoff_s
        )
        found, wake = search.found, search.wake

        def view_changed(_: ClusterView) -> None:
            wake.set()

        self._cluster.add_listener(view_changed)
        try:
            async with timeout_at(deadline):
                while missing := {tp: at for tp, at in timestamps.items() if tp not in found}:
                    _raise_what_does_not_pass(search.failures, missing)
                    self._scope.raise_if_failed()
                    self._cluster.raise_if_closed()
                    wake.clear()
                    retry_at = search.advance({tp: (tp, at) for tp, at in missing.items()})
                    await until_set(wake, retry_at)
        except asyncio.TimeoutError:
            raise self._not_found(missing, search.failures, search.pending_nodes) from None
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
        topics: dict[str, ListOffsetsTopic] = {}
        for tp, timestamp in questions.items():
            topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=self._leader_epoch(tp),
                    timestamp=timestamp,
                )
            )
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._config.isolation_level_code,
            topics=list(topics.values()),
            timeout_ms=self._config.request_timeout_ms,
        )

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
