"""Lookups of topics and offsets.

Only errors that occur while a cluster starts are retried: see `BlockingCluster.retrying`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Final

from aiokafka_lite._settings import nearest
from aiokafka_lite.cli.problems import CommandError
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offset_lookups import Lookups
from aiokafka_lite.client.offsets import EARLIEST, LATEST
from aiokafka_lite.client.view import TopicView
from aiokafka_lite.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka_lite.structs import TopicPartition

_WILDCARD: Final = re.compile(r"[*?[]")


def ask_for_topic(cluster: BlockingCluster, name: str) -> TopicView:
    """Return a topic and its partitions, or raise CommandError with the most similar name."""
    topic = cluster.look([name]).topics.get(name)
    error = UnknownTopicOrPartitionError if topic is None else topic.error
    if topic is not None and topic.partitions:
        return topic
    if error is None or issubclass(error, UnknownTopicOrPartitionError):
        others = cluster.look(None).topics
        raise CommandError(f"there is no topic {name}{nearest(name, others)}")
    raise error(f"topic {name} cannot be described: {why(error)}")


def is_selected(name: str, patterns: Sequence[str]) -> bool:
    """Return True without patterns."""
    return not patterns or any(name == each or fnmatchcase(name, each) for each in patterns)


def unknown_names(kind: str, patterns: Iterable[str], known: Collection[str]) -> list[str]:
    """Return a problem for each name that does not exist. Wildcards may match no names."""
    return [
        f"there is no {kind} {name}{nearest(name, known)}"
        for name in dict.fromkeys(patterns)
        if name not in known and not _WILDCARD.search(name)
    ]


def why(error: type[KafkaError]) -> str:
    return getattr(error, "description", error.__name__).rstrip(".")


def offsets_at(
    cluster: BlockingCluster,
    tps: Collection[TopicPartition],
    *times: int,
    isolation_level: str = "read_uncommitted",
) -> list[dict[TopicPartition, int]]:
    """Return for each time the offset of the first record from then on, in one round trip.

    A partition without a record that late has -1. Times are in ms since the epoch, or `EARLIEST`
    and `LATEST`.
    """
    lookups = Lookups(
        cluster,
        topics={tp.topic for tp in tps},
        isolation_level=isolation_level,
    )
    return [dict(found) for found in lookups.offsets(*(dict.fromkeys(tps, at) for at in times))]


def bounds(
    cluster: BlockingCluster, tps: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    begins, ends = offsets_at(cluster, tps, EARLIEST, LATEST)
    return begins, ends


def partitions_of(
    topic: TopicView, wanted: Iterable[int] | None, *, action: str
) -> list[TopicPartition]:
    """Warn about partitions without a leader."""
    numbers = sorted(topic.partitions) if wanted is None else sorted(set(wanted))
    for number in numbers:
        if number not in topic.partitions:
            raise CommandError(
                f"topic {topic.name} has no partition {number}: its partitions are 0 to "
                f"{len(topic.partitions) - 1}"
            )
    led = [number for number in numbers if topic.partitions[number].leader >= 0]
    if not led:
        raise CommandError(
            f"no partition of topic {topic.name} has a leader: wait until its brokers are available"
        )
    if missing := [str(number) for number in numbers if number not in led]:
        print(
            f"warning: partitions {', '.join(missing)} of {topic.name} have no leader now, so "
            f"they are not {action}",
            file=sys.stderr,
        )
    return [TopicPartition(topic.name, number) for number in led]


def time_text(timestamp_ms: int) -> str:
    """Return a time in ISO 8601, in UTC."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    except (OverflowError, OSError, ValueError):  # outside of the range of datetime
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
