"""Asking leaders about partitions: one request to a node, and its answer.

Who is asked, and when again, is said by leader_questions.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.errors import KafkaError, KafkaTimeoutError
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")
ResponseT = TypeVar("ResponseT", bound=Response)


class LeaderLookup(ABC, Generic[QuestionT, AnswerT, ResponseT]):
    """Puts questions about partitions to their leader; it remembers nothing of them."""

    def __init__(self, config: ConsumerConfig, cluster: Cluster) -> None:
        self._config = config
        self._cluster = cluster

    @abstractmethod
    def _request(self, questions: Mapping[TopicPartition, QuestionT]) -> Request[ResponseT]:
        """Return the request that puts these questions to the leader of all of them."""

    @abstractmethod
    def _answers(
        self, response: ResponseT, questions: Mapping[TopicPartition, QuestionT]
    ) -> Iterator[tuple[TopicPartition, AnswerT | KafkaError]]:
        """Yield what the response says of each partition, also of those not asked about."""

    def _leader_epoch(self, tp: TopicPartition) -> int:
        leader = self._cluster.view.leader(tp)
        return -1 if leader is None else leader.leader_epoch

    async def ask(
        self, node_id: int, questions: Mapping[TopicPartition, QuestionT]
    ) -> tuple[dict[TopicPartition, AnswerT], dict[TopicPartition, KafkaError]]:
        """Ask a node once; return what was found, and why the rest was not."""
        found: dict[TopicPartition, AnswerT] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        try:
            response = await self._cluster.request(
                node_id, self._request(questions), timeout_s=self._config.request_timeout_s
            )
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
                failures[tp] = KafkaTimeoutError(f"the leader of {tp} left it out").at(tp)
