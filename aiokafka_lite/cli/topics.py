"""`aiokafka-lite topics` and `describe TOPIC`: topics are listed, shown and changed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from aiokafka_lite._compat import timeout
from aiokafka_lite._settings import nearest
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import (
    AS_JSON,
    NAMES_ONLY,
    YES,
    Declaration,
    positive_int16,
    positive_int32,
)
from aiokafka_lite.cli.asking import (
    FORMS,
    TopicPosition,
    ask_for_topic,
    by_leader,
    find,
    is_selected,
    look_until,
    offsets_at,
    place,
    reason_of,
    unknown_names,
)
from aiokafka_lite.cli.connecting import Connecting, connecting
from aiokafka_lite.cli.output import (
    Row,
    check_confirmable,
    columns,
    confirm,
    count_text,
    counted,
    list_text,
    print_listing,
    print_object,
    print_rows,
    size_text,
)
from aiokafka_lite.cli.problems import CommandError, plain_text, raise_if_any
from aiokafka_lite.cli.reading import Record, Span, read_spans
from aiokafka_lite.cli.settings import CONFIG_OPTIONS, OWN, TOPICS, read_settings, show_or_change
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offsets import EARLIEST, LATEST
from aiokafka_lite.client.view import TopicView
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.messages.cluster import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from aiokafka_lite.protocol.wire import uuid_to_str
from aiokafka_lite.structs import TopicPartition

DEFAULT_SINCE: Final = "1m"

_TOPIC_COLUMNS: Final = columns(
    "topic, #partitions, #replicas, #under_replicated: under-replicated, #records, #bytes: size",
    records=count_text,
    bytes=size_text,
)
_PARTITION_COLUMNS: Final = columns(
    "#partition, #leader, replicas, in_sync, #begin, #end, #records, #bytes: size",
    replicas=list_text,
    in_sync=list_text,
    records=count_text,
    bytes=size_text,
)
_RECORDS_NOTE: Final = """\
The number of records is computed as the end offset minus the begin offset. Compacted topics and
topics with transactions have fewer records than this number. Sizes are the sizes of the leaders'
logs on disk."""
_TOPICS: Final = f"""
List the topics of a cluster. `topics create`, `topics delete` and `topics config` change topics
and have their own --help.

{_RECORDS_NOTE}

arguments:
[PATTERN ...]  only these topics (* matches any text, ? any character)
--internal  also show Kafka's internal topics
{NAMES_ONLY}
{AS_JSON}

examples:
  aiokafka-lite topics                      all topics except Kafka's internal topics
  aiokafka-lite topics 'orders-*' --json    matching topics, as JSON
  aiokafka-lite topics -q                   only the names
"""
_DESCRIBE: Final = f"""
Show a topic's partitions, leaders, replicas, offsets and settings. Also show the rates and the
largest record of the last minute, or since the position of --since.

{_RECORDS_NOTE}

arguments:
TOPIC ...  the topics to show
--since WHERE
  compute the rates and the largest record from all records since this position (default:
  {DEFAULT_SINCE}, but at most 64 MiB): {FORMS}
{AS_JSON}

examples:
  aiokafka-lite describe orders
  aiokafka-lite describe orders --json | jq .configs
  aiokafka-lite describe orders --since 1h        rates and largest record of an hour
  aiokafka-lite describe orders --since earliest  rates and largest record of the topic
"""


# --- topics --------------------------------------------------------------------------------
def run_topics(options: argparse.Namespace) -> int:
    with connecting(options).cluster() as cluster:
        known = cluster.look(None).topics
        topics = [
            topic
            for name, topic in sorted(known.items())
            if is_selected(name, options.patterns)
            and (options.patterns or options.internal or not topic.is_internal)
        ]
        rows: list[Row] = [{"topic": topic.name} for topic in topics]
        if not options.names:
            rows = _topic_rows(cluster, topics)
    problems = unknown_names("topic", options.patterns, known)
    print_listing("topics", rows, _TOPIC_COLUMNS, options, problems)
    return 0


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
        topics = [ask_for_topic(cluster, name) for name in options.topics]
        cluster.look(options.topics)
        partitions = _rows_by_topic(cluster, topics)
        configs = {topic.name: _configs(cluster, topic.name) for topic in topics}
        spans = {topic.name: find(cluster, _led([topic]), since).spans for topic in topics}
        until_s = time.time()
    for number, topic in enumerate(topics):
        rows = partitions[topic.name]
        is_all = options.since is not None
        sample = loops.run(_sample(where, spans[topic.name], since, until_s, is_all_wanted=is_all))
        topic_id = uuid_to_str(topic.topic_id) if any(topic.topic_id) else None
        if options.json:
            print_object(
                {
                    "topic": topic.name,
                    "topic_id": topic_id,
                    "is_internal": topic.is_internal,
                    "configs": configs[topic.name],
                    "partitions": rows,
                    "sample": None if sample is None else sample._asdict(),
                }
            )
            continue
        if number:
            print()
        print(f"{topic.name}  (id {topic_id or 'unknown'})")
        for setting, value in (configs[topic.name] or {}).items():
            print(f"  {setting}={value}")
        print_rows(rows, _PARTITION_COLUMNS)
        if sample is not None:
            print(sample.text())
    return 0


def _led(topics: Sequence[TopicView]) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, number)
        for topic in topics
        for number, partition in topic.partitions.items()
        if partition.leader >= 0
    ]


def _rows_by_topic(cluster: BlockingCluster, topics: Sequence[TopicView]) -> dict[str, list[Row]]:
    led = _led(topics)
    begins, ends = offsets_at(cluster, led, EARLIEST, LATEST)
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
    sizes: dict[TopicPartition, int] = {}
    for node, by_topic in by_leader(cluster, led).items():
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


def _configs(cluster: BlockingCluster, topic: str) -> dict[str, str | None] | None:
    """Return the topic's own settings, if they can be read."""
    try:
        (result,) = read_settings(cluster, TOPICS, [topic])
    except CommandError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None
    return {each.name: each.value for each in result.configs if each.config_source in OWN}


# --- The recent rate of a topic, and its largest record ---------------------------------------
# The default limit. With --since all records are read.
MOST_SAMPLED_BYTES: Final = 64 << 20


class Sample(NamedTuple):
    """The records of a topic since some time, of which some were read."""

    seconds: float | None
    records: int
    records_per_second: float | None
    bytes_per_second: float | None
    read: int
    largest_record: dict[str, int] | None

    def text(self) -> str:
        if self.seconds is None:
            return "no records"
        if self.largest_record is None:
            return f"in the last {self.seconds:,.0f} s: no records"
        part = f" of {self.read:,} read" if self.read < self.records else ""
        size, partition, offset = self.largest_record.values()
        return (
            f"in the last {self.seconds:,.0f} s: {counted(self.records, 'record')}, "
            f"{self.records_per_second:,} records/s, "
            f"{size_text(round(self.bytes_per_second or 0))}/s; largest record{part}: "
            f"{size_text(size)} (partition {partition}, offset {offset})"
        )


async def _sample(
    where: Connecting,
    spans: dict[TopicPartition, Span],
    since: TopicPosition,
    until_s: float,
    *,
    is_all_wanted: bool,
) -> Sample | None:
    """Read all records, or those that the request timeout and `MOST_SAMPLED_BYTES` allow.

    `until_s` is the time at which the ends of the spans were looked up. An error is a warning.
    """
    count = sum(span.end - span.start for span in spans.values())
    read = read_bytes = 0
    largest: dict[str, int] = {}
    first_ms = since.time_ms if since.is_time else None
    try:
        async with (
            timeout(None if is_all_wanted else where.config.request_timeout_s),
            aclosing(read_spans(where, spans, "read_uncommitted")) as found,
        ):
            async for records in found:
                for record in records:
                    size = _size(record)
                    read, read_bytes = read + 1, read_bytes + size
                    if size > largest.get("bytes", -1):
                        at = {"partition": record.partition, "offset": record.offset}
                        largest = {"bytes": size, **at}
                    written: int | None = record.timestamp  # missing in messages of magic 0
                    if written is not None and not since.is_time:
                        first_ms = written if first_ms is None else min(first_ms, written)
                if not is_all_wanted and read_bytes >= MOST_SAMPLED_BYTES:
                    break
            else:
                count = read
    except asyncio.TimeoutError:
        pass
    except KafkaError as error:
        print(
            "warning: cannot read the records to compute rates and the largest record: "
            f"{plain_text(error)}",
            file=sys.stderr,
        )
        return None
    seconds = None if first_ms is None else max(0.001, until_s - first_ms / 1000)
    size_bytes = read_bytes * count / max(1, read)
    return Sample(
        None if seconds is None else round(seconds, 3),
        count,
        None if seconds is None else round(count / seconds, 1),
        None if seconds is None else round(size_bytes / seconds, 1),
        read,
        largest or None,
    )


def _size(record: Record) -> int:
    headers = sum(len(name.encode()) + len(content or b"") for name, content in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


# --- Changes of topics ------------------------------------------------------------------------
BY_DEFAULT: Final = -1


_CREATE: Final = """
Create topics, and wait until their partitions have leaders.

arguments:
NAME ...  the topics to create
-p, --partitions N  the number of partitions of each topic (default: the cluster's num.partitions)
-r, --replication N
  the number of replicas of each partition (default: the cluster's default.replication.factor)
--config NAME=VALUE ...  a setting of the topics (repeatable)

examples:
  aiokafka-lite topics create orders                with the cluster's num.partitions
  aiokafka-lite topics create orders payments --partitions 12 --replication 3
  aiokafka-lite topics create users --config cleanup.policy=compact
"""
_DELETE: Final = f"""
Delete topics with all their records, after a confirmation.

arguments:
TOPIC ...  the topics to delete
{YES}

examples:
  aiokafka-lite topics delete orders.old
  aiokafka-lite topics delete orders.old payments.old --yes     without asking
"""
_CONFIG: Final = f"""
Show the settings of topics, or change settings. Without --every, only settings that differ from
the defaults are shown. The changes of one topic succeed or fail together.

arguments:
TOPIC ...  the topics
{CONFIG_OPTIONS}

examples:
  aiokafka-lite topics config orders                        non-default settings
  aiokafka-lite topics config orders --every --json         all settings, as JSON
  aiokafka-lite topics config orders --set retention.ms=86400000
  aiokafka-lite topics config orders --unset retention.ms   use the cluster's value
"""


# --- create --------------------------------------------------------------------------------
def run_create(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.names))
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=options.partitions or BY_DEFAULT,
            replication_factor=options.replication or BY_DEFAULT,
            configs=[
                CreatableTopicConfig(name=setting, value=value) for setting, value in options.config
            ],
        )
        for name in names
    ]
    with connecting(options).cluster() as cluster:
        cluster.look([])
        timeout_ms = _timeout_ms(cluster)
        request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)
        response = cluster.request(_controller(cluster), request)
        problems: list[str] = []
        for result in response.topics:
            if result.error_code:
                reason = reason_of(result.error_code, result.error_message)
                problems.append(f"{result.name} was not created: {reason}")
                continue
            topic = _until_led(cluster, result.name, timeout_ms / 1000)
            replicas = max(len(each.replicas) for each in topic.partitions.values())
            print(
                f"created {topic.name}: {counted(len(topic.partitions), 'partition')}, "
                f"{counted(replicas, 'replica')}"
            )
    raise_if_any(problems)
    return 0


def _until_led(cluster: BlockingCluster, name: str, timeout_s: float) -> TopicView:
    def look() -> TopicView | None:
        return cluster.look([name]).topics.get(name)

    def is_led(topic: TopicView | None) -> bool:
        partitions = {} if topic is None else topic.partitions
        return bool(partitions) and all(each.leader >= 0 for each in partitions.values())

    topic = look_until(look, is_led, timeout_s)
    if topic is None or not is_led(topic):
        raise CommandError(
            f"{name} was created, but some partitions still have no leader after {timeout_s:g} s"
        )
    return topic


def _controller(cluster: BlockingCluster) -> int:
    """Return the node for changes: without ZooKeeper any node forwards them."""
    view = cluster.view
    return view.controller_id if view.controller_id in view.nodes else min(view.nodes)


def _timeout_ms(cluster: BlockingCluster) -> int:
    return int(cluster.config.request_timeout_s * 1000)


# --- delete --------------------------------------------------------------------------------
def run_delete(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.topics))
    check_confirmable(options)
    with connecting(options).cluster() as cluster:
        known = cluster.look(None).topics
        problems = [
            f"there is no topic {name}{nearest(name, known)}" for name in names if name not in known
        ]
        there = [known[name] for name in names if name in known]
        if there:
            if not options.yes:
                _show_sizes(cluster, there)
            confirm(options, counted(len(there), "topic"))
            cluster.limit(cluster.config.request_timeout_s)  # people take their time
            problems += _delete(cluster, there)
    raise_if_any(problems)
    return 0


def _show_sizes(cluster: BlockingCluster, topics: Sequence[TopicView]) -> None:
    for topic in topics:
        tps = [TopicPartition(topic.name, number) for number in topic.partitions]
        try:
            begins, ends = offsets_at(cluster, tps, EARLIEST, LATEST)
            held = counted(sum(ends[tp] - begins[tp] for tp in tps), "record")
        except (KafkaError, KeyError):
            held = "records"
        print(f"{topic.name}: {counted(len(tps), 'partition')}, {held}", file=sys.stderr)


def _delete(cluster: BlockingCluster, topics: Sequence[TopicView]) -> list[str]:
    states = [DeleteTopicState(name=topic.name) for topic in topics]
    request = DeleteTopicsRequest(topics=states, timeout_ms=_timeout_ms(cluster))
    problems: list[str] = []
    for result in cluster.request(_controller(cluster), request).responses:
        if result.error_code:
            reason = reason_of(result.error_code, result.error_message)
            problems.append(f"{result.name} was not deleted: {reason}")
        else:
            print(f"deleted {result.name}")
    return problems


# --- config --------------------------------------------------------------------------------
def run_config(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.topics))
    with connecting(options).cluster() as cluster:
        for name in names:
            ask_for_topic(cluster, name)
        show_or_change(cluster, TOPICS, names, options)
    return 0


COMMANDS: Final = {
    "topics": Declaration(run_topics, _TOPICS),
    "topics create": Declaration(
        run_create, _CREATE, {"partitions": positive_int32, "replication": positive_int16}
    ),
    "topics delete": Declaration(run_delete, _DELETE),
    "topics config": Declaration(run_config, _CONFIG),
    "describe": Declaration(run_describe, _DESCRIBE, {"since": place}),
}
