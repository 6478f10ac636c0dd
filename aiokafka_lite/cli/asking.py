"""Lookups of topics, offsets, and positions in topics.

Only errors that occur while a cluster starts are retried: see `BlockingCluster.retrying`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, TypeVar

from aiokafka_lite._settings import nearest
from aiokafka_lite.cli.arguments import parse_duration_ms
from aiokafka_lite.cli.problems import CommandError
from aiokafka_lite.cli.reading import Span
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offset_lookups import Lookups
from aiokafka_lite.client.offsets import EARLIEST, LATEST
from aiokafka_lite.client.view import TopicView
from aiokafka_lite.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka_lite.structs import TopicPartition

T = TypeVar("T")

LOOK_AGAIN_AFTER_S: Final = 0.05
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


def reason_of(error_code: int, message: str | None = None) -> str:
    return message or why(for_code(error_code))


def by_leader(
    cluster: BlockingCluster, tps: Iterable[TopicPartition]
) -> dict[int, dict[str, list[int]]]:
    """Return the partitions of each topic by the node that leads them. Others are left out."""
    found: dict[int, dict[str, list[int]]] = {}
    for tp in tps:
        if (partition := cluster.view.leader(tp)) is not None:
            found.setdefault(partition.leader, {}).setdefault(tp.topic, []).append(tp.partition)
    return found


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


def look_until(look: Callable[[], T], is_so: Callable[[T], bool], timeout_s: float) -> T:
    """Look again and again until it is so, or the time is over. Return what was seen last."""
    give_up_at = time.monotonic() + timeout_s
    while not is_so(seen := look()) and time.monotonic() < give_up_at:
        time.sleep(LOOK_AGAIN_AFTER_S)
    return seen


# --- Positions: earliest, latest, an offset, a time, or an age --------------------------------
FORMS: Final = (
    "earliest, latest, an offset (1234), an age (30m, 2h, 1d), or a time (10:00 today, "
    "2026-07-17T10:00 local time, 2026-07-17T10:00Z in UTC, @1767225600000 in ms)"
)
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_EPOCH_MS: Final = re.compile(r"@[0-9]{1,18}")
_TIME_OF_DAY: Final = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?")


class TopicPosition(NamedTuple):
    """A position in each partition: an offset, or a time (ms, `EARLIEST` or `LATEST`).

    `text` is the user's own.
    """

    offset: int | None
    time_ms: int
    text: str

    @property
    def is_time(self) -> bool:
        return self.offset is None and self.time_ms >= 0


def place(text: str) -> TopicPosition:
    """Parse a position, or raise argparse.ArgumentTypeError."""
    word = text.strip()
    match word.lower():
        case "earliest" | "beginning":
            return TopicPosition(None, EARLIEST, word)
        case "latest" | "end":
            return TopicPosition(None, LATEST, word)
    if _OFFSET.fullmatch(word):
        return TopicPosition(int(word), 0, word)
    if _EPOCH_MS.fullmatch(word):
        return TopicPosition(None, int(word[1:]), word)
    for time_ms in (_moment_ms, _ago_ms):
        try:
            return TopicPosition(None, max(0, time_ms(word)), word)
        except (ValueError, OverflowError, OSError):
            continue
    raise argparse.ArgumentTypeError(f"{text!r} is not a position in a topic: write {FORMS}")


def _moment_ms(word: str) -> int:
    """Parse a time of day or a moment, by default in this machine's time zone."""
    if _TIME_OF_DAY.fullmatch(word):
        hour, _, rest = word.partition(":")
        word = f"{datetime.now().date().isoformat()}T{hour.zfill(2)}:{rest}"
    # Python 3.10 does not know the Z.
    moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", word))
    return int(moment.timestamp() * 1000)


def _ago_ms(word: str) -> int:
    return int(time.time() * 1000) - parse_duration_ms(word.removesuffix("ago"))


class Found(NamedTuple):
    """By default, `starts` are the begins, and `stops` the ends."""

    begins: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    starts: dict[TopicPartition, int]
    stops: dict[TopicPartition, int]

    @property
    def spans(self) -> dict[TopicPartition, Span]:
        return {tp: Span(start, self.stops[tp]) for tp, start in self.starts.items()}


def find(
    cluster: BlockingCluster,
    tps: Collection[TopicPartition],
    start: TopicPosition | None = None,
    stop: TopicPosition | None = None,
    *,
    isolation_level: str = "read_uncommitted",
) -> Found:
    """Look up two positions in each partition, in one round trip to each leader.

    A position outside of the log is moved to its beginning or end.
    """
    times = [each.time_ms for each in (start, stop) if each is not None and each.is_time]
    begins, ends, *found = offsets_at(
        cluster, tps, EARLIEST, LATEST, *times, isolation_level=isolation_level
    )
    known = begins.keys() & ends.keys()
    known = known.intersection(*(offsets.keys() for offsets in found))
    if gone := {tp.topic for tp in tps if tp not in known}:
        raise CommandError(f"topic {', '.join(sorted(gone))} was deleted during the command")
    by_time = iter(found)
    starts, stops = (
        known if at is None else _offsets(at, begins, ends, next(by_time) if at.is_time else {})
        for at, known in ((start, begins), (stop, ends))
    )
    return Found(begins, ends, starts, stops)


def _offsets(
    where: TopicPosition,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    by_time: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if where.time_ms == EARLIEST:
        return dict(begins)
    offsets: dict[TopicPartition, int] = {}
    for tp, end in ends.items():
        offset = end
        if where.offset is not None:
            offset = where.offset
        elif by_time.get(tp, -1) >= 0:
            offset = by_time[tp]
        offsets[tp] = min(max(offset, begins[tp]), end)
    return offsets
