"""`aiokafka-lite topics` and `describe TOPIC`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from aiokafka_lite._compat import timeout
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import Subparsers, new_parser
from aiokafka_lite.cli.asking import (
    ask_for_topic,
    bounds,
    is_selected,
    unknown_names,
    why,
)
from aiokafka_lite.cli.cat.reading import Record, Span, records_of
from aiokafka_lite.cli.connecting import Connecting, add_options, connecting
from aiokafka_lite.cli.output import (
    Column,
    Row,
    add_json_option,
    count_text,
    counted,
    list_text,
    print_object,
    print_rows,
    size_text,
)
from aiokafka_lite.cli.positions import FORMS, TopicPosition, find, place
from aiokafka_lite.cli.problems import plain_text, raise_if_any
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.view import TopicView
from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.cluster import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from aiokafka_lite.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from aiokafka_lite.protocol.wire import uuid_to_str
from aiokafka_lite.structs import TopicPartition

DEFAULT_SINCE: Final = "1m"
TOPIC_RESOURCE: Final = 2
# The source of a setting of the topic itself (KIP-226).
OF_TOPIC: Final = 1

_TOPIC_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("partitions", "partitions", is_number=True),
    Column("replicas", "replicas", is_number=True),
    Column("under_replicated", "under-replicated", is_number=True),
    Column("records", "records", is_number=True, show=count_text),
    Column("bytes", "size", is_number=True, show=size_text),
)
_PARTITION_COLUMNS: Final = (
    Column("partition", "partition", is_number=True),
    Column("leader", "leader", is_number=True),
    Column("replicas", "replicas", show=list_text),
    Column("in_sync", "in sync", show=list_text),
    Column("begin", "begin", is_number=True),
    Column("end", "end", is_number=True),
    Column("records", "records", is_number=True, show=count_text),
    Column("bytes", "size", is_number=True, show=size_text),
)
_RECORDS_NOTE: Final = """\
The number of records is computed as the end offset minus the begin offset. Compacted topics and
topics with transactions have fewer records than this number. Sizes are the sizes of the leaders'
logs on disk."""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(
        subparsers,
        "topics",
        "List the topics of a cluster. `topics create`, `topics delete` and `topics config` "
        f"change topics\nand have their own --help.\n\n{_RECORDS_NOTE}",
        "examples:\n"
        "  aiokafka-lite topics                      all topics except Kafka's internal topics\n"
        "  aiokafka-lite topics 'orders-*' --json    matching topics, as JSON\n"
        "  aiokafka-lite topics -q                   only the names\n",
    )
    parser.add_argument(
        "patterns",
        nargs="*",
        metavar="NAME",
        help=("only these topics (* matches any text, ? any character)"),
    )
    parser.add_argument(
        "--internal", action="store_true", help=("also show Kafka's internal topics")
    )
    parser.add_argument("-q", "--names", action="store_true", help="print names alone")
    add_json_option(parser)
    add_options(parser)
    parser.set_defaults(run=run_topics)


def add_describe_parser(subparsers: Subparsers) -> None:
    parser = new_parser(
        subparsers,
        "describe",
        "Show a topic's partitions, leaders, replicas, offsets and settings. Also show the rates "
        "and the\nlargest record of the last minute, or since the position of "
        f"--since.\n\n{_RECORDS_NOTE}",
        "examples:\n"
        "  aiokafka-lite describe orders\n"
        "  aiokafka-lite describe orders --json | jq .configs\n"
        "  aiokafka-lite describe orders --since 1h        rates and largest record of an hour\n"
        "  aiokafka-lite describe orders --since earliest  rates and largest record of the topic\n",
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="the topics to show")
    parser.add_argument(
        "--since",
        type=place,
        metavar="WHERE",
        help="compute the rates and the largest record from all records since this position "
        f"(default: {DEFAULT_SINCE}, but at most 64 MiB): {FORMS}",
    )
    add_json_option(parser)
    add_options(parser)
    parser.set_defaults(run=run_describe)


# --- topics --------------------------------------------------------------------------------
def run_topics(options: argparse.Namespace) -> int:
    with connecting(options).cluster() as cluster:
        known = cluster.look(None).topics
        topics = [
            topic
            for _, topic in sorted(known.items())
            if _is_wanted(topic, options.patterns, with_internal=options.internal)
        ]
        rows = [] if options.names else _topic_rows(cluster, topics)
    problems = unknown_names("topic", options.patterns, known)
    if options.names:
        for topic in topics:
            print(topic.name)
    else:
        print_rows(rows, _TOPIC_COLUMNS, as_json=options.json)
        if not rows and not problems:
            print("no topics", file=sys.stderr)
    raise_if_any(problems)
    return 0


def _is_wanted(topic: TopicView, patterns: Sequence[str], *, with_internal: bool) -> bool:
    if patterns:
        return is_selected(topic.name, patterns)
    return with_internal or not topic.is_internal


def _topic_rows(cluster: BlockingCluster, topics: Sequence[TopicView]) -> list[Row]:
    rows: list[Row] = []
    partitions = _rows_by_topic(cluster, topics)
    for topic in topics:
        of_topic = partitions[topic.name]
        views = topic.partitions.values()
        rows.append(
            {
                "topic": topic.name,
                "partitions": len(views),
                "replicas": max((len(each.replicas) for each in views), default=0),
                "under_replicated": sum(len(each.isr) < len(each.replicas) for each in views),
                "records": _total(of_topic, "records"),
                "bytes": _total(of_topic, "bytes"),
            }
        )
    return rows


def _total(rows: Sequence[Row], name: str) -> int | None:
    numbers = [row[name] for row in rows]
    known = [each for each in numbers if isinstance(each, int)]
    return sum(known) if len(known) == len(numbers) else None


# --- describe ------------------------------------------------------------------------------
def run_describe(options: argparse.Namespace) -> int:
    since = place(DEFAULT_SINCE) if options.since is None else options.since
    where = connecting(options)
    with where.cluster() as cluster:
        known = cluster.look(options.topics).topics
        topics = [
            known[name]
            if name in known and known[name].partitions
            else ask_for_topic(cluster, name)
            for name in options.topics
        ]
        partitions = _rows_by_topic(cluster, topics)
        configs = {topic.name: _configs(cluster, topic.name) for topic in topics}
        spans = {topic.name: _spans_since(cluster, topic, since) for topic in topics}
        until_s = time.time()
    samples = {
        topic.name: _sample(
            where,
            spans[topic.name],
            since,
            until_s=until_s,
            is_all_wanted=options.since is not None,
        )
        for topic in topics
    }
    for number, topic in enumerate(topics):
        rows, found = partitions[topic.name], samples[topic.name]
        topic_id = uuid_to_str(topic.topic_id) if any(topic.topic_id) else None
        if options.json:
            print_object(
                {
                    "topic": topic.name,
                    "topic_id": topic_id,
                    "is_internal": topic.is_internal,
                    "configs": configs[topic.name],
                    "partitions": rows,
                    "sample": None if found is None else found.row(),
                }
            )
            continue
        if number:
            print()
        print(f"{topic.name}  (id {topic_id or 'unknown'})")
        for setting, value in (configs[topic.name] or {}).items():
            print(f"  {setting}={value}")
        print_rows(rows, _PARTITION_COLUMNS)
        if found is not None:
            print(found.text())
    return 0


def _spans_since(
    cluster: BlockingCluster, topic: TopicView, since: TopicPosition
) -> dict[TopicPartition, Span]:
    found = find(cluster, _led([topic]), since)
    return {tp: Span(found.starts[tp], end) for tp, end in found.ends.items()}


def _sample(
    where: Connecting,
    spans: dict[TopicPartition, Span],
    since: TopicPosition,
    *,
    until_s: float,
    is_all_wanted: bool,
) -> Sample | None:
    """Return the records since some time, if they can be read."""
    found = Sample(since.time_ms if since.is_time else None, until_s)
    try:
        loops.run(found.read(where, spans, is_all_wanted=is_all_wanted))
    except KafkaError as error:
        print(
            "warning: cannot read the records to compute rates and the largest record: "
            f"{plain_text(error)}",
            file=sys.stderr,
        )
        return None
    return found


def _led(topics: Sequence[TopicView]) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, number)
        for topic in topics
        for number, partition in topic.partitions.items()
        if partition.leader >= 0
    ]


def _rows_by_topic(cluster: BlockingCluster, topics: Sequence[TopicView]) -> dict[str, list[Row]]:
    led = _led(topics)
    begins, ends = bounds(cluster, led) if led else ({}, {})
    sizes = _sizes(cluster, led)
    rows: dict[str, list[Row]] = {}
    for topic in topics:
        rows[topic.name] = []
        for number, partition in topic.partitions.items():
            tp = TopicPartition(topic.name, number)
            begin, end = begins.get(tp), ends.get(tp)
            rows[topic.name].append(
                {
                    "partition": number,
                    "leader": partition.leader if partition.leader >= 0 else None,
                    "replicas": list(partition.replicas),
                    "in_sync": list(partition.isr),
                    "begin": begin,
                    "end": end,
                    "records": None if begin is None or end is None else end - begin,
                    "bytes": sizes.get(tp),
                }
            )
    return rows


def _sizes(cluster: BlockingCluster, led: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Omit brokers that do not support it."""
    by_leader: dict[int, dict[str, list[int]]] = {}
    for tp in led:
        if (partition := cluster.view.leader(tp)) is not None:
            topics = by_leader.setdefault(partition.leader, {})
            topics.setdefault(tp.topic, []).append(tp.partition)
    sizes: dict[TopicPartition, int] = {}
    for node, by_topic in by_leader.items():
        asked = [DescribableLogDirTopic(topic=t, partitions=p) for t, p in by_topic.items()]
        try:
            response = cluster.request(node, DescribeLogDirsRequest(topics=asked))
        except KafkaError:
            continue  # unsupported or unavailable: the sizes are left out
        for folder in response.results:
            for topic in folder.topics:
                for found in topic.partitions:
                    if not found.is_future_key:
                        tp = TopicPartition(topic.name, found.partition_index)
                        sizes[tp] = sizes.get(tp, 0) + found.partition_size
    return sizes


def described_configs(
    cluster: BlockingCluster, topics: Iterable[str], *, include_synonyms: bool = False
) -> list[DescribeConfigsResult]:
    resources = [
        DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
        )
        for topic in topics
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=include_synonyms)
    return cluster.request_any(request).results


def _configs(cluster: BlockingCluster, topic: str) -> dict[str, str | None] | None:
    """Return the topic's own settings, if they can be read."""
    for result in described_configs(cluster, [topic]):
        if result.error_code:
            print(
                f"warning: settings of {topic} cannot be read: {why(for_code(result.error_code))}",
                file=sys.stderr,
            )
            return None
        return {each.name: each.value for each in result.configs if each.config_source == OF_TOPIC}
    return None


# --- The recent rate of a topic, and its largest record ---------------------------------------
# The default limit. With --since all records are read.
MOST_SAMPLED_BYTES: Final = 64 << 20


class Largest(NamedTuple):
    bytes: int
    partition: int
    offset: int


class Sample:
    """The records of a topic since some time (None: the first record), of which some are read.

    `until_s` is the time at which the ends of the spans were looked up.
    """

    def __init__(self, since_ms: int | None, until_s: float) -> None:
        self._since_ms = since_ms
        self._until_s = until_s
        self._first_ms: int | None = None
        self._read_bytes = 0
        self._read_count = 0
        self._record_count = 0
        self._largest: Largest | None = None

    async def read(
        self, where: Connecting, spans: Mapping[TopicPartition, Span], *, is_all_wanted: bool
    ) -> None:
        """Read all records, or those that the request timeout and `MOST_SAMPLED_BYTES` allow."""
        self._record_count = sum(span.end - span.start for span in spans.values())
        if not self._record_count:
            return
        try:
            async with (
                timeout(None if is_all_wanted else where.config.request_timeout_s),
                where.consumer(isolation_level="read_uncommitted") as consumer,
                aclosing(records_of(consumer, spans, patience_s=where.patience_s)) as found,
            ):
                async for records in found:
                    for record in records:
                        self.take(record)
                    if not is_all_wanted and self._read_bytes >= MOST_SAMPLED_BYTES:
                        return
            self._record_count = self._read_count
        except asyncio.TimeoutError:
            pass

    def take(self, record: Record) -> None:
        size = len(record.key or b"") + len(record.value or b"")
        for name, content in record.headers:
            size += len(name.encode()) + len(content or b"")
        self._read_count += 1
        self._read_bytes += size
        if self._largest is None or size > self._largest.bytes:
            self._largest = Largest(size, record.partition, record.offset)
        at: int | None = record.timestamp  # that of a message of magic 0 is missing
        if at is not None and (self._first_ms is None or at < self._first_ms):
            self._first_ms = at

    @property
    def _seconds(self) -> float | None:
        since_ms = self._first_ms if self._since_ms is None else self._since_ms
        return None if since_ms is None else max(0.001, self._until_s - since_ms / 1000)

    def row(self) -> Row:
        seconds, largest = self._seconds, self._largest
        return {
            "seconds": None if seconds is None else round(seconds, 3),
            "records": self._record_count,
            "records_per_second": self._per_second(self._record_count),
            "bytes_per_second": self._per_second(self._bytes),
            "read": self._read_count,
            "largest_record": None if largest is None else largest._asdict(),
        }

    def text(self) -> str:
        seconds = self._seconds
        if seconds is None:
            return "no records"
        if self._largest is None:
            return f"in the last {seconds:,.0f} s: no records"
        rate, byte_rate = self._per_second(self._record_count), self._per_second(self._bytes)
        part = f" of {self._read_count:,} read" if self._read_count < self._record_count else ""
        records = counted(self._record_count, "record")
        return (
            f"in the last {seconds:,.0f} s: {records}, {rate:,} records/s, "
            f"{size_text(round(byte_rate or 0))}/s; largest record{part}: "
            f"{size_text(self._largest.bytes)} "
            f"(partition {self._largest.partition}, offset {self._largest.offset})"
        )

    @property
    def _bytes(self) -> float:
        return self._read_bytes * self._record_count / self._read_count if self._read_count else 0

    def _per_second(self, number: float) -> float | None:
        seconds = self._seconds
        return None if not seconds else round(number / seconds, 1)
