"""Looks up offsets for blocking code, in one round trip.

All requests, for metadata and to the known leaders, are sent before the responses are received.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from aiokafka_lite._compat import timeout
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.offsets import ISOLATION_LEVELS, Offsets, offsets_request
from aiokafka_lite.client.view import ClusterView, PartitionView
from aiokafka_lite.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    for_code,
)
from aiokafka_lite.protocol.messages.offsets import ListOffsetsResponse
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

NO_OFFSET: Final = -1
# The part of the time for connecting: a silent node leaves time to look for another leader.
CONNECT_SHARE: Final = 0.5

NO_PARTITIONS: Final[Mapping[int, PartitionView]] = {}

OffsetQuery: TypeAlias = Mapping[TopicPartition, int]
"""A time in ms since the epoch, or a special timestamp (`client.offsets`), for each partition."""

# What one leader is asked for.
_Asked: TypeAlias = dict[TopicPartition, tuple[int, int]]


class Lookups:
    """Looks up offsets, and retries temporary errors for `request_timeout_s`."""

    def __init__(
        self,
        cluster: BlockingCluster,
        *,
        topics: Collection[str] | None,
        isolation_level: str = "read_uncommitted",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._topics = None if topics is None else frozenset(topics)
        self._isolation_level = ISOLATION_LEVELS[isolation_level]
        self._sleep = sleep
        self._timeout_s = cluster.config.request_timeout_s

    @property
    def view(self) -> ClusterView:
        return self._cluster.view

    def refresh(self) -> ClusterView:
        return self._cluster.refresh(self._topics)

    def offsets(self, *queries: OffsetQuery, with_metadata: bool = False) -> list[Offsets]:
        """Return the results of several queries, all sent at once.

        Partitions that do not exist are left out. A partition without a record that late has
        `NO_OFFSET`. With metadata, the view is refreshed in the same round trip.
        """
        found: list[Offsets] = [{} for _ in queries]
        missing = [dict(query) for query in queries]
        config = self._cluster.config
        backoff = Backoff(config.retry_backoff_s, config.retry_backoff_max_s, random.Random())
        give_up_at = time.monotonic() + min(self._timeout_s, self._cluster.left_s)
        while True:
            failures = self._ask(missing, found, with_metadata=with_metadata)
            missing = [
                {
                    tp: at
                    for tp, at in query.items()
                    if tp not in answered and self.view.partition(tp) is not None
                }
                for query, answered in zip(missing, found, strict=True)
            ]
            if not any(missing):
                return found
            _raise_permanent(failures)
            delay_s = backoff.next_delay_s()
            if time.monotonic() + delay_s >= give_up_at:
                raise _not_answered(missing, failures)
            self._sleep(delay_s)
            self.refresh()
            with_metadata = False

    # --- One round trip ----------------------------------------------------------------------
    def _ask(
        self, queries: Sequence[OffsetQuery], found: Sequence[Offsets], *, with_metadata: bool
    ) -> dict[TopicPartition, KafkaError]:
        """Return the errors of the partitions that are not in `found`."""
        failures: dict[TopicPartition, KafkaError] = {}
        before = self.view
        asked = [
            (number, node, partitions)
            for number, query in enumerate(queries)
            for node, partitions in self._by_leader(query, failures).items()
        ]
        answers = self._cluster.run(
            lambda cluster: self._answers(
                cluster, asked, with_metadata=with_metadata and bool(before.nodes)
            )
        )
        if with_metadata and self.view.fetched_at == before.fetched_at:
            self.refresh()
        renewed = _renewed_topics(before, self.view) if with_metadata else frozenset[str]()
        for (number, _, partitions), answer in zip(asked, answers, strict=True):
            if isinstance(answer, KafkaError):
                failures.update(dict.fromkeys(partitions, answer))
            else:
                _take(answer, queries[number], found[number], failures, renewed)
        return failures

    async def _answers(
        self, cluster: Cluster, asked: Iterable[tuple[int, int, _Asked]], *, with_metadata: bool
    ) -> list[ListOffsetsResponse | KafkaError]:
        tasks = [
            cluster.scope.spawn(
                self._answer(cluster, node, partitions), name=f"look offsets up at node {node}"
            )
            for _, node, partitions in asked
        ]
        try:
            if with_metadata:
                try:
                    await cluster.look(self._topics, [])
                except KafkaError as error:
                    log.info("a metadata request failed and is retried: %s", error)
            return [await task for task in tasks]
        finally:
            for task in tasks:
                cluster.scope.cancel(task)

    async def _answer(
        self, cluster: Cluster, node: int, partitions: _Asked
    ) -> ListOffsetsResponse | KafkaError:
        timeout_ms = round(self._timeout_s * 1000)
        request = offsets_request(partitions, self._isolation_level, timeout_ms)
        limit_s = self._cluster.timeout_s()
        try:
            async with timeout(CONNECT_SHARE * limit_s):
                await cluster.pool.connect(node)
            return await cluster.request(node, request, timeout_s=self._cluster.timeout_s())
        except asyncio.TimeoutError:
            return cluster.pool.why_not_ready(node, Lane.GENERAL) or KafkaConnectionError(
                f"the connection to {cluster.pool.describe(node)} is still being opened"
            )
        except KafkaError as error:
            return error

    def _by_leader(
        self, query: OffsetQuery, failures: dict[TopicPartition, KafkaError]
    ) -> dict[int, _Asked]:
        by_leader: dict[int, _Asked] = {}
        nodes, topics = self.view.nodes, self.view.topics
        name, partitions = "", NO_PARTITIONS
        for tp, timestamp in query.items():
            if tp.topic != name:
                name = tp.topic
                topic = topics.get(name)
                partitions = NO_PARTITIONS if topic is None else topic.partitions
            partition = partitions.get(tp.partition)
            if partition is None or partition.leader not in nodes:
                failures[tp] = LeaderNotAvailableError("the partition has no leader").at(tp)
                continue
            # The leader of a recreated topic refuses the epoch as well.
            asked = by_leader.setdefault(partition.leader, {})
            asked[tp] = partition.leader_epoch, timestamp
        return by_leader


def _renewed_topics(before: ClusterView, after: ClusterView) -> frozenset[str]:
    return frozenset(
        name
        for name, topic in after.topics.items()
        if (known := before.topics.get(name)) is not None and known.topic_id != topic.topic_id
    )


def _take(
    response: ListOffsetsResponse,
    query: OffsetQuery,
    found: Offsets,
    failures: dict[TopicPartition, KafkaError],
    renewed: Collection[str],
) -> None:
    for topic in response.topics:
        name, is_renewed = topic.name, topic.name in renewed
        for answer in topic.partitions:
            tp = TopicPartition(name, answer.partition_index)
            if answer.error_code:
                error_class = for_code(answer.error_code)
                failures[tp] = error_class(
                    f"the leader answered ListOffsets with {error_class.message}"
                )
            elif tp not in query:
                continue
            elif is_renewed:
                failures[tp] = LeaderNotAvailableError("the topic was recreated during the lookup")
            elif answer.offset < 0 and query[tp] < 0:  # impossible: a log has ends
                failures[tp] = LeaderNotAvailableError("the leader returned no offset")
            else:
                found[tp] = answer.offset


def _raise_permanent(failures: Mapping[TopicPartition, KafkaError]) -> None:
    for tp, error in failures.items():
        if not (error.retriable or error.invalid_metadata):
            reason = f"cannot look up offsets of topic {tp.topic}, partition {tp.partition}: "
            raise type(error)(reason + str(error.args[0])).at(tp) from error


def _not_answered(
    missing: Iterable[OffsetQuery], failures: Mapping[TopicPartition, KafkaError]
) -> KafkaTimeoutError:
    tps = sorted({tp for query in missing for tp in query})
    first = tps[0]
    reason = failures.get(first)
    error = KafkaTimeoutError(
        f"brokers did not return the offsets of {len(tps)} partitions in time (for example of "
        f"topic {first.topic}, partition {first.partition}: "
        f"{reason.args[0] if reason else 'no answer'})"
    )
    error.__cause__ = reason
    return error
