"""The handler of Fetch: reads partitions at once, or when min_bytes are available.

Kafka: kafka.server.ReplicaManager.readFromLog, DelayedFetch, RackAwareReplicaSelector (KIP-392)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from aiokafka_lite._compat import Buffer
from aiokafka_lite.broker.fetch_sessions import CachedPartition, FetchContext, FetchKey
from aiokafka_lite.broker.handlers.base import Delayed, RequestContext, handler, hint_at_leaders
from aiokafka_lite.broker.log.storage import UNDEFINED_EPOCH
from aiokafka_lite.broker.topics import NO_EPOCH, Partition, PartitionKey, ServingNode
from aiokafka_lite.errors import (
    BrokerResponseError,
    KafkaError,
    OffsetOutOfRangeError,
    UnknownError,
)
from aiokafka_lite.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps
from aiokafka_lite.records import end_offset

READ_COMMITTED: Final = 1
NO_OFFSET: Final = -1
Find = Callable[[CachedPartition], "Partition | type[BrokerResponseError]"]


class Findings(NamedTuple):
    """The result of one read."""

    results: list[tuple[CachedPartition, PartitionData]]  # one per target, in order
    size: int
    is_final: bool  # waiting has no use: a partition has an error, or its log diverged


@dataclass(slots=True, eq=False)
class FetchRead:
    """The reads of one request. Each read starts from the beginning.

    The first targets get most of `max_bytes`. `find` is called for every read, because topics may
    change during a long poll. Followers have no own log. They serve the partition's log up to the
    offset at which they were held (`Broker.hold_replica`).
    """

    targets: Sequence[CachedPartition]
    find: Find
    node: ServingNode
    nodes: Mapping[int, ServingNode]
    min_bytes: int
    max_bytes: int
    is_committed: bool
    rack: str = ""  # the client's, if known
    may_read_followers: bool = False
    # Existing partitions of the latest `read`, whose changes may complete the request.
    _served: list[CachedPartition] = field(default_factory=list, init=False)
    keys: list[PartitionKey] = field(default_factory=list, init=False)

    def read_in_steps(self) -> Steps[Findings]:
        results: list[tuple[CachedPartition, PartitionData]] = []
        self._served, self.keys = [], []
        left, size, is_final = self.max_bytes, 0, False
        for target in self.targets:
            partition = self.find(target)
            if isinstance(partition, Partition):
                self._served.append(target)
                self.keys.append(partition.key)
                # Any size is allowed for the first batch, so that the reader can pass it (KIP-74).
                data, ends_wait = self._read(target, partition, left, at_least_one=size == 0)
                if data.records:
                    read = len(data.records)
                    size, left = size + read, max(left - read, 0)
                is_final = is_final or ends_wait
            else:
                data = error_data(target, partition)
            results.append((target, data))
            if not len(results) % ELEMENTS_PER_STEP:
                yield
        return Findings(results, size, is_final)

    def is_worth_answering(self) -> Steps[bool]:
        """Return, without reading, whether min_bytes are available or a partition has an error."""
        available = 0
        for number, target in enumerate(self._served, 1):
            if not number % ELEMENTS_PER_STEP:
                yield
            partition = self.find(target)
            if not isinstance(partition, Partition):
                return True
            try:
                self._check_readable(partition, target.asked.current_leader_epoch)
                available += partition.log.bytes_from(
                    target.asked.fetch_offset,
                    target.asked.partition_max_bytes,
                    self._end_offset(target, partition, self._high_watermark(partition)),
                )
            except KafkaError:
                return True
            if available >= self.min_bytes:
                return True
        return False

    def _read(
        self, target: CachedPartition, partition: Partition, left: int, *, at_least_one: bool
    ) -> tuple[PartitionData, bool]:
        """Return what the response has of a partition, and whether that ends the wait."""
        log, asked = partition.log, target.asked
        try:
            self._check_readable(partition, asked.current_leader_epoch)
            diverging = self._diverging(target, partition)
            preferred = self._preferred_replica(partition)
            high_watermark = self._high_watermark(partition)
            ends_wait = diverging is not None or preferred is not None
            records = (
                b""
                if ends_wait
                else log.read(
                    asked.fetch_offset,
                    min(asked.partition_max_bytes, left),
                    at_least_one=at_least_one,
                    end_offset=self._end_offset(target, partition, high_watermark),
                )
            )
        except BrokerResponseError as error:
            data = error_data(target, type(error))
            data.aborted_transactions = None
            return data, True
        data = PartitionData(
            partition_index=target.key.partition,
            high_watermark=high_watermark,
            last_stable_offset=min(log.last_stable_offset, high_watermark),
            log_start_offset=log.log_start_offset,
            aborted_transactions=(
                _aborted_transactions(partition, asked.fetch_offset, records)
                if self.is_committed
                else None
            ),
            records=records,
        )
        if diverging is not None:
            data.diverging_epoch = diverging
        if preferred is not None:
            data.preferred_read_replica = preferred
        return data, ends_wait

    def _end_offset(
        self, target: CachedPartition, partition: Partition, high_watermark: int
    ) -> int:
        """Return the offset up to which the client may read."""
        if not self.is_committed:
            return high_watermark
        stable = partition.log.last_stable_offset
        if stable >= high_watermark:
            return high_watermark
        # A position after it is no error, because a transaction may have begun earlier.
        return max(stable, min(target.asked.fetch_offset, high_watermark))

    def _check_readable(self, partition: Partition, client_epoch: int) -> None:
        """Raise an error unless the node may serve a partition in the client's leader epoch."""
        if self.may_read_followers and self.node.id in partition.replicas:
            partition.check_epoch(client_epoch)
        else:
            partition.check_leader(self.node.id, client_epoch)

    def _preferred_replica(self, partition: Partition) -> int | None:
        if not self.rack or partition.leader_id != self.node.id:
            return None
        if self.node.address.rack == self.rack:
            return None
        for node_id in partition.isr:
            node = self.nodes[node_id]
            if node.address.rack == self.rack and node.is_up:
                return node_id
        return None

    def _high_watermark(self, partition: Partition) -> int:
        end = partition.log.high_watermark
        if not partition.held:
            return end
        return min(partition.held.get(self.node.id, end), end)

    @staticmethod
    def _diverging(target: CachedPartition, partition: Partition) -> EpochEndOffset | None:
        """Return where the logs of reader and leader diverge (KIP-595), if they do."""
        asked = target.asked
        if asked.last_fetched_epoch == NO_EPOCH:
            return None
        end = partition.log.end_of_epoch(asked.last_fetched_epoch)
        if end.epoch == UNDEFINED_EPOCH:
            raise OffsetOutOfRangeError(
                f"the request has last_fetched_epoch={asked.last_fetched_epoch}, but the leader's "
                "log does not show where this epoch ended"
            )
        if end.epoch < asked.last_fetched_epoch or end.end_offset < asked.fetch_offset:
            return EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
        return None


def _aborted_transactions(
    partition: Partition, fetch_offset: int, records: Buffer
) -> list[AbortedTransaction]:
    transactions = partition.log.producers.transactions
    read_to = end_offset(memoryview(records)) if transactions.has_aborted else None
    if read_to is None:
        return []
    return [
        AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
        for aborted in transactions.aborted_within(fetch_offset, read_to)
    ]


def error_data(target: CachedPartition, error: type[BrokerResponseError]) -> PartitionData:
    return PartitionData(
        partition_index=target.key.partition,
        error_code=error.errno or UnknownError.errno,
        high_watermark=NO_OFFSET,
        records=b"",
    )


FIRST_THAT_READS_FOLLOWERS: Final = 11
FIRST_WITH_TOPIC_IDS: Final = 13
FIRST_WITH_LEADER_HINTS: Final = 16


@handler(FetchRequest)
def fetch(ctx: RequestContext, request: FetchRequest) -> Steps[FetchResponse | Delayed]:
    """Read partitions now, or when `min_bytes` are there, after `max_wait_ms` at most."""
    uses_topic_ids = ctx.api_version >= FIRST_WITH_TOPIC_IDS
    now = ctx.cluster.loop.time()
    targets = yield from _targets(request.topics, uses_topic_ids)
    forgotten: list[FetchKey] = []
    if request.forgotten_topics_data:
        forgotten = yield from _forgotten(request.forgotten_topics_data, uses_topic_ids)
    context = ctx.node.fetch_sessions.context(
        request.session_id,
        request.session_epoch,
        targets,
        forgotten,
        uses_topic_ids=uses_topic_ids,
        now=now,
    )
    max_bytes = min(request.max_bytes, ctx.cluster.config.fetch_max_bytes)
    read = FetchRead(
        context.targets,
        partial(_find, ctx),
        ctx.node,
        ctx.cluster.nodes,
        min(request.min_bytes, max_bytes),
        max_bytes,
        is_committed=request.isolation_level == READ_COMMITTED,
        rack=request.rack_id,
        may_read_followers=ctx.api_version >= FIRST_THAT_READS_FOLLOWERS,
    )
    findings = yield from read.read_in_steps()
    if (
        not read.keys
        or request.max_wait_ms <= 0
        or ctx.refuses is not None
        or findings.size >= read.min_bytes
        or findings.is_final
    ):
        return _response(ctx, context, findings)
    return Delayed(
        keys=read.keys,
        deadline=now + request.max_wait_ms / 1000,
        is_ready=read.is_worth_answering,
        response=lambda: _read_again(ctx, context, read),
    )


def _read_again(
    ctx: RequestContext, context: FetchContext, read: FetchRead
) -> Steps[FetchResponse]:
    findings = yield from read.read_in_steps()
    return _response(ctx, context, findings)


def _targets(topics: Sequence[FetchTopic], uses_topic_ids: bool) -> Steps[list[CachedPartition]]:
    """Return the partitions to read. The last one counts if a partition is repeated."""
    targets: dict[FetchKey, CachedPartition] = {}
    for number, topic in enumerate(topics, 1):
        if not number % ELEMENTS_PER_STEP:
            yield
        for in_topic, item in enumerate(topic.partitions, 1):
            key = FetchKey(topic.topic_id if uses_topic_ids else topic.topic, item.partition)
            targets[key] = CachedPartition(key, item)
            if not in_topic % ELEMENTS_PER_STEP:
                yield
    return list(targets.values())


def _forgotten(topics: Sequence[ForgottenTopic], uses_topic_ids: bool) -> Steps[list[FetchKey]]:
    keys: list[FetchKey] = []
    for number, topic in enumerate(topics, 1):
        if not number % ELEMENTS_PER_STEP:
            yield
        for partition in topic.partitions:
            keys.append(FetchKey(topic.topic_id if uses_topic_ids else topic.topic, partition))
            if not len(keys) % ELEMENTS_PER_STEP:
                yield
    return keys


def _find(ctx: RequestContext, target: CachedPartition) -> Partition | type[BrokerResponseError]:
    try:
        return ctx.partition(*target.key)
    except BrokerResponseError as error:
        return type(error)


def _response(ctx: RequestContext, context: FetchContext, findings: Findings) -> FetchResponse:
    session_id, partitions = context.to_send(findings.results)
    has_errors = findings.is_final or ctx.refuses is not None
    has_hints = has_errors and ctx.api_version >= FIRST_WITH_LEADER_HINTS
    return FetchResponse(
        error_code=context.error.errno,
        session_id=session_id,
        responses=_by_topic(partitions),
        node_endpoints=hint_at_leaders(ctx, partitions) if has_hints else [],
    )


def _by_topic(
    partitions: Sequence[tuple[FetchKey, PartitionData]],
) -> list[FetchableTopicResponse]:
    """Group adjacent partitions of one topic. The order of partitions does not change."""
    topics: list[FetchableTopicResponse] = []
    latest: str | bytes | None = None
    for key, data in partitions:
        if key.topic != latest:
            latest = key.topic
            topics.append(
                FetchableTopicResponse(topic_id=latest)
                if isinstance(latest, bytes)
                else FetchableTopicResponse(topic=latest)
            )
        topics[-1].partitions.append(data)
    return topics
