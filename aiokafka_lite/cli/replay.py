"""`aiokafka-lite replay TOPIC`: puts dead letters back where they came from.

What `DeadLetters` and Kafka's brokers add to a dead letter (KIP-1191) says where it was. That is
taken off again: what is written is the record as it was, timestamp included.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import name_and_value, new_parser, partition_numbers, positive_int
from aiokafka_lite.cli.asking import ask_for_topic, partitions_of
from aiokafka_lite.cli.cat.reading import Record, Span, records_of
from aiokafka_lite.cli.connecting import Connecting, add_options, connecting
from aiokafka_lite.cli.output import counted
from aiokafka_lite.cli.positions import FORMS, find, place
from aiokafka_lite.cli.problems import CommandError, UsageError
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.processing.dead_letters import (
    PARTITION,
    PREFIX,
    TOPIC,
    without_death,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.cli.commands import Subparsers
    from aiokafka_lite.producing import AIOKafkaProducer

ISOLATION_LEVEL: Final = "read_committed"
# What `--where` may ask for beside the headers of a dead letter.
KEY: Final = "key"

_DESCRIPTION: Final = """\
Write the dead letters of a topic again: each to the topic and partition that it came from, as it
was, without what was added when it died. They stay in the topic of dead letters, too. Reads from
its beginning, or from --from, to where it ends now."""
_EXAMPLES: Final = """\
examples:
  aiokafka-lite replay dlq.orders --dry-run          what there is, and where it would go
  aiokafka-lite replay dlq.orders                    everything, back to where it was
  aiokafka-lite replay dlq.orders --where exception='*TimeoutError'
  aiokafka-lite replay dlq.orders --where topic=orders --from 1h --to orders.retry
  aiokafka-lite replay dlq.orders --group replay     what no replay of this group has had
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command `replay`."""
    parser = new_parser(subparsers, "replay", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("topic", metavar="TOPIC", help="the topic of dead letters")
    which = parser.add_argument_group("which dead letters")
    which.add_argument(
        "--where",
        type=name_and_value,
        action="append",
        default=[],
        metavar="NAME=PATTERN",
        help="only those of which this matches, * and ? standing for anything: topic, partition, "
        "offset, group, exception, message, delivery.count, or key; may be given several times",
    )
    which.add_argument(
        "--from", dest="start", type=place, metavar="WHERE", help=f"begin there: {FORMS}"
    )
    which.add_argument(
        "-p", "--partition", type=partition_numbers, metavar="N[,N-N…]",
        help="only of these partitions of TOPIC, as in 0,4-7",
    )  # fmt: skip
    which.add_argument(
        "-c", "--count", type=positive_int, metavar="N", help="end after so many in all"
    )
    which.add_argument(
        "--group",
        metavar="GROUP",
        help="begin where the group has committed, and commit what was read: so nothing is "
        "replayed twice, what did not match included",
    )
    parser.add_argument("--to", metavar="TOPIC", help="write them all to this topic, by their keys")
    parser.add_argument(
        "--dry-run", action="store_true", help="only print what would be written, a line each"
    )
    add_options(parser)
    parser.set_defaults(run=run)


class Target(NamedTuple):
    """Where a dead letter goes; by its key, where no partition is named."""

    topic: str
    partition: int | None


class _Plan(NamedTuple):
    """What there is to read, and what is known of where it goes.

    Attributes:
        spans: From which offset of the dead letters' topic to which.
        counts: How many partitions each topic has that was asked for.
    """

    spans: dict[TopicPartition, Span]
    counts: dict[str, int]


def run(options: argparse.Namespace) -> int:
    """Run `replay`; returns 0."""
    if options.group is not None and options.start is not None:
        raise UsageError("--from and --group both say where to begin: leave one out")
    if options.group is not None and options.dry_run:
        raise UsageError("a dry run commits nothing: leave out --group")
    where = connecting(options)
    wanted = _patterns(options.where)
    loops.run(_Replay(options, where, _plan(options, where), wanted).run())
    return 0


def _patterns(given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    known = (KEY, "topic", "partition", "offset", "group", "delivery.count", "message", "exception")
    for name, _ in given:
        if name not in known:
            raise UsageError(f"--where {name}=…: a dead letter has {', '.join(known)}")
    return list(given)


def _plan(options: argparse.Namespace, where: Connecting) -> _Plan:
    with where.cluster() as cluster:
        topic = ask_for_topic(cluster, options.topic)
        tps = partitions_of(topic, options.partition, action="read")
        places = [options.start] if options.start is not None else []
        begins, ends, found = find(cluster, tps, *places, isolation_level=ISOLATION_LEVEL)
        counts = {}
        if options.to is not None:
            counts[options.to] = len(ask_for_topic(cluster, options.to).partitions)
    starts = found[0] if found else begins
    return _Plan({tp: Span(starts[tp], ends[tp]) for tp in tps}, counts)


class _Replay:
    """One run of the command."""

    def __init__(
        self,
        options: argparse.Namespace,
        where: Connecting,
        plan: _Plan,
        wanted: Sequence[tuple[str, str]],
    ) -> None:
        self._options = options
        self._where = where
        self._spans = plan.spans
        self._counts = plan.counts
        self._wanted = wanted
        self._written: Counter[str] = Counter()
        self._passed = 0
        self._strange = 0
        self._read_to = 0

    async def run(self) -> None:
        """Read, and write again; say at the end what was done, also if it ends early."""
        options = self._options
        try:
            async with AsyncExitStack() as stack:
                consumer = await stack.enter_async_context(
                    self._where.consumer(isolation_level=ISOLATION_LEVEL, group_id=options.group)
                )
                producer = None
                if not options.dry_run:
                    producer = await stack.enter_async_context(self._where.producer())
                if options.group is not None:
                    await self._begin_where_committed(consumer)
                found = await stack.enter_async_context(aclosing(records_of(consumer, self._spans)))
                async for records in found:
                    is_last = await self._take(records, producer)
                    if options.group is not None and records:
                        tp = TopicPartition(records[0].topic, records[0].partition)
                        await consumer.commit({tp: self._read_to})
                    if is_last:
                        break
        finally:
            self._tell()

    async def _begin_where_committed(self, consumer: AIOKafkaConsumer) -> None:
        for tp, span in tuple(self._spans.items()):
            committed = await consumer.committed(tp)
            if committed is not None:
                self._spans[tp] = Span(max(span.start, committed), span.end)

    async def _take(self, records: Sequence[Record], producer: AIOKafkaProducer | None) -> bool:
        """Write some records of one partition again; return whether that is enough."""
        left = self._options.count
        sent = []
        is_enough = False
        for record in records:
            if left is not None and sum(self._written.values()) >= left:
                is_enough = True
                break
            self._read_to = record.offset + 1
            death = _death(record)
            if TOPIC not in death and self._options.to is None:
                self._strange += 1
                continue
            if not self._is_wanted(record, death):
                self._passed += 1
                continue
            target = await self._target(death)
            self._written[target.topic] += 1
            if producer is None:
                print(_line(record, death, target))
                continue
            sent.append(
                await producer.send(
                    target.topic,
                    record.value,
                    key=record.key,
                    partition=target.partition,
                    timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
                    headers=without_death(record.headers),
                )
            )
        for future in sent:
            try:
                await future
            except KafkaError as error:
                raise CommandError(f"not all could be written: {error}") from error
        return is_enough

    def _is_wanted(self, record: Record, death: Mapping[str, str]) -> bool:
        for name, pattern in self._wanted:
            if name == KEY:
                text = None if record.key is None else record.key.decode(errors="replace")
            else:
                text = death.get(PREFIX + name)
            if text is None or not fnmatch.fnmatchcase(text, pattern):
                return False
        return True

    async def _target(self, death: Mapping[str, str]) -> Target:
        if self._options.to is not None:
            return Target(self._options.to, None)
        topic = death[TOPIC]
        if topic not in self._counts:
            self._counts[topic] = await asyncio.to_thread(self._count_partitions, topic)
        number = death.get(PARTITION, "")
        is_there = number.isdecimal() and int(number) < self._counts[topic]
        return Target(topic, int(number) if is_there else None)

    def _count_partitions(self, topic: str) -> int:
        with self._where.cluster() as cluster:
            return len(ask_for_topic(cluster, topic).partitions)

    def _tell(self) -> None:
        written = sum(self._written.values())
        places = ", ".join(f"{count} to {topic}" for topic, count in sorted(self._written.items()))
        verb = "would be replayed" if self._options.dry_run else "replayed"
        parts = [f"{counted(written, 'dead letter')} {verb}" + (f": {places}" if places else "")]
        if self._passed:
            parts.append(f"{self._passed} did not match")
        if self._strange:
            parts.append(
                f"{self._strange} do not say where they came from (--to TOPIC replays them as well)"
            )
        print("; ".join(parts), file=sys.stderr)


def _death(record: Record) -> dict[str, str]:
    """Return what was added to a record when it died, by the whole names of the headers."""
    return {
        name: value.decode(errors="replace")
        for name, value in record.headers
        if name.startswith(PREFIX) and value is not None
    }


def _line(record: Record, death: Mapping[str, str], target: Target) -> str:
    why = death.get(PREFIX + "exception", "")
    message = " ".join(death.get(PREFIX + "message", "").split())
    to = target.topic if target.partition is None else f"{target.topic}/{target.partition}"
    return f"{record.partition}:{record.offset}\t-> {to}\t{why}\t{message[:120]}"
