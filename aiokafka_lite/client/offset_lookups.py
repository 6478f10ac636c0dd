"""Looks up offsets for blocking code, in one round trip.

All requests, for metadata and to the known leaders, are sent before the responses are received.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.cluster_requests import (
    metadata_request,
    raise_for_metadata,
    raise_for_rebootstrap,
)
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.offsets import ISOLATION_LEVELS, Offsets, offsets_request
from aiokafka_lite.client.view import ClusterView, PartitionView
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.errors import (
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    for_code,
)
from aiokafka_lite.protocol.messages.metadata import MetadataResponse
from aiokafka_lite.protocol.messages.offsets import ListOffsetsResponse
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R", bound=Response)

NO_OFFSET: Final = -1

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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._isolation_level = ISOLATION_LEVELS[isolation_level]
        self._clock = clock
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
        give_up_at = self._clock() + min(self._timeout_s, self._cluster.left_s)
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
            if self._clock() + delay_s >= give_up_at:
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
        lookups = [self._by_leader(query, failures) for query in queries]
        # All are opened before requests are sent, because their timeouts start then. Renewals of
        # sessions that began meanwhile have ended (`BlockingCluster`).
        nodes = sorted({node for lookup in lookups for node in lookup})
        connections = self._cluster.connections(nodes)
        metadata = None
        opened = [each for each in connections.values() if isinstance(each, Connection)]
        if with_metadata and opened:
            metadata = self._send(opened[0], metadata_request(self._topics, may_create=False))
        timeout_ms = round(self._timeout_s * 1000)
        sent = []
        for number, by_leader in enumerate(lookups):
            for node, asked in by_leader.items():
                request = offsets_request(asked, self._isolation_level, timeout_ms)
                sent.append((number, asked, self._send(connections[node], request)))
        if with_metadata:
            self._take_metadata(metadata)
        renewed = _renewed_topics(before, self.view) if with_metadata else frozenset[str]()
        for number, asked, exchange in sent:
            response = self._receive(exchange)
            if isinstance(response, KafkaError):
                failures.update(dict.fromkeys(asked, response))
            else:
                _take(response, queries[number], found[number], failures, renewed)
        return failures

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

    def _send(
        self, connection: Connection | KafkaError, request: Request[R]
    ) -> Exchange[R] | KafkaError:
        if isinstance(connection, KafkaError):
            return connection
        timeout_s = min(self._timeout_s, self._cluster.left_s)
        return _tried(partial(connection.send, timeout_s=timeout_s), request)

    def _receive(self, exchange: Exchange[R] | KafkaError) -> R | KafkaError:
        if isinstance(exchange, KafkaError):
            return exchange
        return _tried(self._cluster.receive, exchange)

    def _take_metadata(self, exchange: Exchange[MetadataResponse] | KafkaError | None) -> None:
        if isinstance(exchange, Exchange):
            try:
                response = self._cluster.receive(exchange)
                raise_for_rebootstrap(response)
                raise_for_metadata(response)
            except KafkaError as error:
                log.info("a metadata request failed and is retried: %s", error)
            else:
                self._cluster.apply_metadata(response, is_of_all=self._topics is None)
                return
        self.refresh()


def _tried(ask: Callable[[A], T], of: A) -> T | KafkaError:
    try:
        return ask(of)
    except KafkaError as error:
        return error


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
