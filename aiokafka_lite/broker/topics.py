"""Topics and partitions of the cluster."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from aiokafka_lite._compat import Buffer
from aiokafka_lite.broker.log.partition_log import AppendResult, PartitionLog, TopicConfig
from aiokafka_lite.errors import (
    FencedLeaderEpochError,
    InvalidTopicError,
    NotLeaderForPartitionError,
    UnknownLeaderEpochError,
)
from aiokafka_lite.records import BatchHeader, iter_batches

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
# The logs of the nodes' coordinators.
COORDINATOR_TOPICS: Final = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
# The topics that only brokers write, with Kafka's configurations.
INTERNAL_TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    GROUP_METADATA_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    },
    TRANSACTION_STATE_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
    SHARE_STATE_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    },
}

MAX_TOPIC_NAME_LENGTH: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")

NO_EPOCH: Final = -1
NO_LEADER: Final = -1
# Kafka answers it for a partition that is not there, and its tools print it.
NOT_HOSTED: Final = "This server does not host this topic-partition."


class Node(NamedTuple):
    """A node of the cluster, and the address in metadata responses."""

    id: int
    host: str
    port: int
    rack: str | None = None


class ServingNode(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def is_up(self) -> bool: ...
    @property
    def address(self) -> Node: ...


class PartitionKey(NamedTuple):
    """The partition whose changes a long poll waits for."""

    topic_id: bytes
    partition: int


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError if a name breaks a rule of Kafka, which the error names."""
    reason = ""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = (
            f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
        )
    elif not _LEGAL_NAME.fullmatch(name):
        reason = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    if reason:
        raise InvalidTopicError(f"Topic name is invalid: {reason}")


@dataclass
class Partition:
    """A partition: its leader, its replicas and its log.

    Attributes:
        isr: The replicas in sync, unordered. A leader is one of them.
        eligible: Replicas not in sync that may become the leader anyway, because too few replicas
            were in sync for acknowledgements since they left (KIP-966).
        held: The log end offsets of the followers that `hold_replica` stopped, by node id.
        on_change: Called with the partition's key after every append, deletion and election.
    """

    topic: str
    key: PartitionKey
    log: PartitionLog
    leader_id: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    on_change: Callable[[PartitionKey], None]
    eligible: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)

    @property
    def index(self) -> int:
        """The partition's number."""
        return self.key.partition

    @property
    def high_watermark(self) -> int:
        """The end of the records that all replicas in sync have, as an offset."""
        return self.log.high_watermark

    @property
    def log_start_offset(self) -> int:
        """The first offset in the log."""
        return self.log.log_start_offset

    def check_leader(self, node_id: int, client_epoch: int = NO_EPOCH) -> None:
        """Check that a node is the leader, in the epoch that the client knows (KIP-320).

        Raises:
            NotLeaderForPartitionError: It is not.
            FencedLeaderEpochError, UnknownLeaderEpochError: As `check_epoch`.
        """
        if self.leader_id != node_id:
            raise NotLeaderForPartitionError(f"{self.topic}-{self.index}: {self.leader_id} leads")
        self.check_epoch(client_epoch)

    def check_epoch(self, client_epoch: int) -> None:
        """Check that a client's leader epoch is the current one, or NO_EPOCH.

        Raises:
            FencedLeaderEpochError: It is older.
            UnknownLeaderEpochError: It is newer.
        """
        if client_epoch == NO_EPOCH or client_epoch == self.leader_epoch:
            return
        seen = (
            f"the leader epoch of {self.topic}-{self.index} is {self.leader_epoch}, "
            f"but the request has leader epoch {client_epoch}"
        )
        if client_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(seen)
        raise UnknownLeaderEpochError(seen)

    def lead(self, leader_id: int) -> None:
        """Set the leader, or NO_LEADER, in a new epoch that starts at the end of the log."""
        self.leader_id = leader_id
        self.leader_epoch += 1
        self.log.begin_epoch(self.leader_epoch)
        self.on_change(self.key)

    def append_batch(
        self, header: BatchHeader, batch: Buffer, *, append_time_ms: int | None = None
    ) -> AppendResult:
        """Append a validated batch, and complete the long polls that wait for it."""
        result = self.log.append(
            header, batch, leader_epoch=self.leader_epoch, append_time_ms=append_time_ms
        )
        if not result.is_duplicate:
            self.on_change(self.key)
        return result

    def append(self, batch: Buffer) -> AppendResult:
        """Append a batch that this broker has built."""
        ((header, _),) = iter_batches(memoryview(batch), check_crcs=False)
        return self.append_batch(header, batch)

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Return whole batches that start at an offset. See `PartitionLog.read`."""
        return self.log.read(offset, max_bytes)

    def delete_before(self, offset: int) -> int:
        """Delete the records before an offset. See `PartitionLog.delete_before`."""
        low_watermark = self.log.delete_before(offset)
        self.on_change(self.key)
        return low_watermark

    def expire_segments(self, count: int) -> None:
        """Delete the oldest segments. See `PartitionLog.expire_segments`."""
        self.log.expire_segments(count)
        self.on_change(self.key)


@dataclass
class Topic:
    """A topic. Its id differs from the ids of earlier topics of this name.

    Attributes:
        saved_by: The number of the catalog's save that writes all of its partitions.
    """

    name: str
    topic_id: bytes
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)
    saved_by: int = 0

    @property
    def is_internal(self) -> bool:
        """Whether the topic is one of the broker's own, such as `__consumer_offsets`."""
        return self.name in INTERNAL_TOPICS

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.partitions)

    def partition(self, index: int) -> Partition | None:
        """Return a partition, or None."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


@functools.lru_cache(1_000)
def java_hash(text: str) -> int:
    """Return Java's String.hashCode(): over UTF-16 units, signed 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (value * 31 + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partition_count: int) -> int:
    """Return the partition of a group or transactional id. Kafka's Utils.abs maps -2**31 to 0."""
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % partition_count


class NewTopic(NamedTuple):
    """The validated attributes of a new topic."""

    name: str
    replicas: Sequence[Sequence[int]]
    config: TopicConfig
