"""Options of the source, as text, become values; what cannot be used is refused.

Names, defaults and rules are those of Spark's own Kafka source (`KafkaSourceProvider.scala`), so
that changing the format is all that a job needs. Parsing happens in every process that Spark
starts, so it imports little and takes well under a millisecond.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from aiokafka_lite._settings import Settings
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.errors import OptionError
from aiokafka_lite.spark.offsets import from_spark
from aiokafka_lite.spark.positions import (
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    Position,
    Subscribe,
    SubscribePattern,
    Subscription,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.sasl import Mechanism

IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
TimestampStrategy: TypeAlias = Literal["error", "latest"]

DEFAULT_MIN_RECORDS_PER_TASK: Final = 1000


class SourceOptions(Settings):
    """What a query was asked to read, and how; `parse_options` makes it.

    Attributes:
        is_streaming: Whether it is a streaming query: some options are for these only.
        subscription: Which partitions are read.
        starting: Where a query begins that has no checkpoint yet.
        ending: Where a batch query ends; `Latest()` for streaming ones.
        timestamp_strategy: What becomes of a partition without a record as late as a starting
            timestamp: an error, or its latest offset.
        fail_on_data_loss: Whether records that are gone fail the query.
        include_headers: Whether there is a column `headers`.
        min_partitions: How many tasks are wanted at least; None: one per partition.
        max_records_per_partition: How many offsets a task covers at most.
        max_offsets_per_trigger: How many offsets a micro-batch covers at most.
        min_offsets_per_trigger: How many have to be there for a micro-batch to be made ...
        max_trigger_delay_s: ... unless the last one is this long ago.
        fetch_retries: How often offsets are asked for before a query fails.
        fetch_retry_interval_s: How long to wait between two of these.
        poll_timeout_s: How long a task waits for records that have to be there.
        group_id_prefix: Without effect: nothing joins a group.
        group_id: The same.
        isolation_level: Whether records of open and aborted transactions are read.
        client: How to reach the cluster.
        mechanism: How to authenticate there; None: not.
        client_rack: Where executors are; records come from the replica there (KIP-392).
        max_wait_ms: How long a broker may wait until `min_bytes` are there.
        min_bytes: What a broker waits for before it answers.
        max_bytes: What one answer holds at most, unless its first batch is larger.
        partition_max_bytes: What one partition adds to an answer, with the same exception.
        check_crcs: Compare each batch with its checksum.
        receive_buffer_bytes: The socket's (SO_RCVBUF); -1 is the system's default.
        send_buffer_bytes: The socket's (SO_SNDBUF); -1 is the system's default.
        min_records_per_task: Ranges smaller than this share a task.
        commit_group: The group to which the offsets of processed micro-batches are committed.
        warnings: What the user should be told, once, by whoever plans the query: options that
            have no effect, or not a good one.
    """

    secrets = frozenset({"mechanism"})

    is_streaming: bool
    subscription: Subscription
    starting: Position
    ending: Position = Latest()
    timestamp_strategy: TimestampStrategy = "error"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    fetch_retries: int = 3
    fetch_retry_interval_s: float = 1.0
    poll_timeout_s: float = 120.0
    group_id_prefix: str | None = None
    group_id: str | None = None
    isolation_level: IsolationLevel = "read_uncommitted"
    client: ClientConfig
    mechanism: Mechanism | None = None
    client_rack: str | None = None
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 64 << 20
    partition_max_bytes: int = 8 << 20
    check_crcs: bool = True
    receive_buffer_bytes: int = 1 << 20
    send_buffer_bytes: int = 128 << 10
    min_records_per_task: int = DEFAULT_MIN_RECORDS_PER_TASK
    commit_group: str | None = None
    warnings: tuple[str, ...] = ()


def parse_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Parse what a user gave to `.option(...)`; names are in any case.

    Raises:
        OptionError: An option is unknown, malformed, missing, or not possible with the others;
            the message names it, and its value unless that may be secret.
    """
    given = {name.lower(): value for name, value in options.items()}
    if "kafka.bootstrap.servers" not in given:
        raise OptionError("option kafka.bootstrap.servers is missing: name a broker, 'host:9092'")
    return SourceOptions(
        is_streaming=is_streaming,
        subscription=_subscription(given),
        starting=_position(given, "starting", Latest() if is_streaming else Earliest()),
        ending=_position(given, "ending", Latest()),
        include_headers=given.get("includeheaders", "false").lower() == "true",
        client=ClientConfig(
            bootstrap_servers=given["kafka.bootstrap.servers"], allow_auto_create_topics=False
        ),
    )


def _subscription(given: Mapping[str, str]) -> Subscription:
    if "assign" in given:
        named: dict[str, list[int]] = json.loads(given["assign"])
        return Assign(
            tuple(TopicPartition(topic, each) for topic in named for each in named[topic])
        )
    if "subscribepattern" in given:
        return SubscribePattern(given["subscribepattern"].strip())
    if "subscribe" not in given:
        raise OptionError("one of the options subscribe, subscribePattern and assign is needed")
    return Subscribe(tuple(filter(None, map(str.strip, given["subscribe"].split(",")))))


def _position(given: Mapping[str, str], edge: str, default: Position) -> Position:
    if (timestamp := given.get(f"{edge}timestamp")) is not None:
        return AtTimestamp(int(timestamp))
    if (timestamps := given.get(f"{edge}offsetsbytimestamp")) is not None:
        return AtTimestamps(from_spark(json.loads(timestamps)))
    text = given.get(f"{edge}offsets")
    if text is None:
        return default
    if text.strip().lower() in ("earliest", "latest"):
        return Earliest() if text.strip().lower() == "earliest" else Latest()
    return AtOffsets(from_spark(json.loads(text)))
