"""Asking each partition's leader a question: one request to every leader, all at once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.errors import KafkaError, KafkaTimeoutError, UnknownTopicOrPartitionError
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")
ResponseT = TypeVar("ResponseT", bound=Response)


class LeaderLookup(ABC, Generic[QuestionT, AnswerT, ResponseT]):
    """Puts questions about partitions to their leaders; it remembers nothing of them."""

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

    async def try_once(
        self, questions: Mapping[TopicPartition, QuestionT]
    ) -> tuple[dict[TopicPartition, AnswerT], dict[TopicPartition, KafkaError]]:
        """Ask every leader once; return what was found, and why the rest was not."""
        view = self._cluster.view
        by_leader: dict[int, dict[TopicPartition, QuestionT]] = {}
        failures: dict[TopicPartition, KafkaError] = {}
        is_stale = False
        for tp, question in questions.items():
            leader = view.leader(tp)
            if leader is None:
                # A topic that metadata does not cover yet is being asked for already.
                is_stale = is_stale or tp.topic in view.topics
                failures[tp] = UnknownTopicOrPartitionError(
                    f"no leader is known for partition {tp}"
                ).at(tp)
            else:
                by_leader.setdefault(leader.leader, {})[tp] = question
        found: dict[TopicPartition, AnswerT] = {}
        refused: dict[TopicPartition, KafkaError] = {}
        responses = await asyncio.gather(
            *(
                self._cluster.request(
                    node_id, self._request(asked), timeout_s=self._config.request_timeout_s
                )
                for node_id, asked in by_leader.items()
            ),
            return_exceptions=True,
        )
        for asked, response in zip(by_leader.values(), responses, strict=True):
            if isinstance(response, KafkaError):
                refused.update(dict.fromkeys(asked, response))
            elif isinstance(response, BaseException):
                raise response
            else:
                self._sort(asked, response, found, refused)
        if is_stale or any(error.invalid_metadata for error in refused.values()):
            self._cluster.invalidate()
        failures.update(refused)
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
