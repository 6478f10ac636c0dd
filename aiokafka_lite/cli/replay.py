"""`aiokafka-lite replay TOPIC`: writes dead letters to their original topics again.

The headers that `DeadLetters` and Kafka's brokers add (KIP-1191) name the original partition, and
are removed. The record gets the current time, because retention would delete an old one.

With a group, the offsets of written letters are committed, however the command ends.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import (
    Subparsers,
    add_arguments,
    name_and_value,
    new_parser,
    partition_numbers,
    positive_int,
)
from aiokafka_lite.cli.asking import add_from, ask_for_topic, find, partitions_of
from aiokafka_lite.cli.connecting import Connecting, add_options, connecting
from aiokafka_lite.cli.output import counted
from aiokafka_lite.cli.problems import CommandError, UsageError, plain_text
from aiokafka_lite.cli.reading import Record, Span, records_of
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.processing import (
    PARTITION,
    PREFIX,
    TOPIC,
    without_death,
)
from aiokafka_lite.producing.batch import Output
from aiokafka_lite.structs import RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.producing import AIOKafkaProducer

ISOLATION_LEVEL: Final = "read_committed"
# A field of `--where` in addition to the headers of a dead letter.
KEY: Final = "key"

_DESCRIPTION: Final = """\
Write the dead letters of a topic to their original topics and partitions again. The headers that
describe the failure are removed. The dead letters also stay in TOPIC. The command reads TOPIC from
the beginning, or from --from, to its current end."""
_EXAMPLES: Final = """\
examples:
  aiokafka-lite replay dlq.orders --dry-run          show the dead letters and their targets
  aiokafka-lite replay dlq.orders                    all dead letters, to their original topics
  aiokafka-lite replay dlq.orders --where exception='*TimeoutError'
  aiokafka-lite replay dlq.orders --where topic=orders --from 1h --to orders.retry
  aiokafka-lite replay dlq.orders --group replay     dead letters that are new to this group
  aiokafka-lite replay dlq.orders --group replay --transactional-id replay
                                                     new dead letters, each exactly once
"""


_WHERE: Final = """
--where NAME=PATTERN ...
  only dead letters with a field NAME that matches PATTERN (* matches any text, ? any character).
  The fields are topic, partition, offset, group, exception, message, delivery.count and key.
  Repeatable: all patterns must match
"""
_WHICH: Final = """
-p, --partition N[,N-N…]  only these partitions of TOPIC, such as 0,4-7
-c, --count N  stop after N dead letters in all
--group GROUP
  start at the committed offsets of this group, and commit the offsets that are read. Later runs
  with this group skip the dead letters of earlier runs, including dead letters that did not match
"""
_FURTHER: Final = """
--transactional-id NAME
  with --group: write dead letters and commit their offsets in transactions with this id. Consumers
  with read_committed then see each dead letter once, even after a failed run
--to TOPIC  write the dead letters to this topic, partitioned by key
--dry-run  only print the records that would be written, one per line
"""


def add_replay(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "replay", run, _DESCRIPTION, _EXAMPLES)
    add_arguments(parser, "TOPIC  the topic of dead letters")
    which = parser.add_argument_group("which dead letters")
    add_arguments(which, _WHERE, where=name_and_value)
    add_from(which)
    add_arguments(which, _WHICH, partition=partition_numbers, count=positive_int)
    add_arguments(parser, _FURTHER)
    add_options(parser)


class _Letter(NamedTuple):
    """A dead letter, and the record to write: without a partition, that of its key."""

    dead: Record
    output: Output


def run(options: argparse.Namespace) -> int:
    if options.group is not None and options.start is not None:
        raise UsageError("--from and --group both set the start: leave one out")
    if options.group is not None and options.dry_run:
        raise UsageError(
            "--group commits offsets, but --dry-run must not commit any: leave one out"
        )
    if options.transactional_id is not None and options.group is None:
        raise UsageError(
            "--transactional-id needs --group, because the transactions commit the offsets of "
            "this group"
        )
    where = connecting(options)
    wanted = _patterns(options.where)
    loops.run(_Replay(options, where, *_plan(options, where), wanted).run())
    return 0


def _patterns(given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    known = (KEY, "topic", "partition", "offset", "group", "delivery.count", "message", "exception")
    for name, _ in given:
        if name not in known:
            raise UsageError(f"dead letters have no field {name}: use one of {', '.join(known)}")
    return list(given)


def _plan(
    options: argparse.Namespace, where: Connecting
) -> tuple[dict[TopicPartition, Span], dict[str, int]]:
    """Return the spans of dead letters, and the known numbers of partitions of target topics."""
    with where.cluster() as cluster:
        topic = ask_for_topic(cluster, options.topic)
        tps = partitions_of(topic, options.partition, action="read")
        found = find(cluster, tps, options.start, isolation_level=ISOLATION_LEVEL)
        counts = {}
        if options.to is not None:
            counts[options.to] = len(ask_for_topic(cluster, options.to).partitions)
    return {tp: Span(found.starts[tp], found.ends[tp]) for tp in tps}, counts


@dataclass(eq=False)
class _Replay:
    options: argparse.Namespace
    where: Connecting
    spans: dict[TopicPartition, Span]
    counts: dict[str, int]
    wanted: Sequence[tuple[str, str]]
    _written: Counter[str] = field(default_factory=Counter, init=False)
    _chosen_count: int = field(default=0, init=False)
    _unmatched: int = field(default=0, init=False)
    _without_topic: int = field(default=0, init=False)
    # The error of the next letter, which cannot be written.
    _problem: CommandError | None = field(default=None, init=False)
    # `run` creates them.
    _consumer: AIOKafkaConsumer = field(init=False)
    _producer: AIOKafkaProducer = field(init=False)

    async def run(self) -> None:
        options = self.options
        try:
            async with AsyncExitStack() as stack:
                self._consumer = await stack.enter_async_context(
                    self.where.consumer(isolation_level=ISOLATION_LEVEL, group_id=options.group)
                )
                write = self._print
                if not options.dry_run:
                    self._producer = await stack.enter_async_context(
                        self.where.producer(options.transactional_id)
                    )
                    is_plain = options.transactional_id is None
                    write = self._write if is_plain else self._write_in_transactions
                if options.group is not None:
                    await self._begin_where_committed()
                patience_s = self.where.patience_s
                reading = records_of(self._consumer, self.spans, patience_s=patience_s)
                found = await stack.enter_async_context(aclosing(reading))
                async for records in found:
                    if not records:
                        continue
                    chosen, read_to = await self._choose(records)
                    await write(
                        TopicPartition(records[0].topic, records[0].partition), chosen, read_to
                    )
                    if self._problem is not None:
                        raise self._problem
                    if read_to <= records[-1].offset:
                        break
        finally:
            self._report()

    async def _begin_where_committed(self) -> None:
        for tp, span in tuple(self.spans.items()):
            committed = await self._consumer.committed(tp)
            if committed is not None:
                self.spans[tp] = Span(max(span.start, committed), span.end)

    async def _choose(self, records: Sequence[Record]) -> tuple[list[_Letter], int]:
        """Return the letters to write again, and the offset up to which it looked."""
        left = self.options.count
        chosen: list[_Letter] = []
        for record in records:
            if left is not None and self._chosen_count >= left:
                return chosen, record.offset
            death = _death(record)
            if TOPIC not in death and self.options.to is None:
                self._without_topic += 1
            elif not self._is_wanted(record, death):
                self._unmatched += 1
            else:
                try:
                    output = await self._output(record, death)
                except (CommandError, KafkaError) as error:
                    self._problem = CommandError(
                        f"dead letter {record.partition}:{record.offset} was not written: "
                        f"{plain_text(error)}"
                    )
                    return chosen, record.offset
                chosen.append(_Letter(record, output))
                self._chosen_count += 1
        return chosen, records[-1].offset + 1

    async def _print(self, tp: TopicPartition, letters: Sequence[_Letter], read_to: int) -> None:
        for letter in letters:
            self._written[letter.output.topic] += 1
            print(_line(letter))

    async def _write(self, tp: TopicPartition, letters: Sequence[_Letter], read_to: int) -> None:
        """Commit up to the first letter that is not acknowledged, however it ends."""
        futures: list[asyncio.Future[RecordMetadata]] = []
        failure: BaseException | None = None
        try:
            for letter in letters:
                futures.append(await self._producer.send(**letter.output._asdict()))  # noqa: PERF401
            if futures:
                await asyncio.wait(futures)
        except (KafkaError, asyncio.CancelledError) as error:
            failure = error
        if futures:
            await asyncio.wait(futures)  # sent letters may still be written
        acknowledged = [each.exception() is None for each in futures]
        for letter, is_written in zip(letters, acknowledged, strict=False):
            self._written[letter.output.topic] += is_written
        is_all = all(acknowledged) and len(acknowledged) == len(letters)
        if not is_all:
            read_to = letters[[*acknowledged, False].index(False)].dead.offset
        if self.options.group is not None:
            await self._consumer.commit({tp: read_to})
        if isinstance(failure, asyncio.CancelledError):
            raise failure
        if not is_all:
            why = failure or next(e for each in futures if (e := each.exception()) is not None)
            raise CommandError(f"some dead letters were not written: {plain_text(why)}") from why

    async def _write_in_transactions(
        self, tp: TopicPartition, letters: Sequence[_Letter], read_to: int
    ) -> None:
        """One transaction, or one for each letter."""
        if await self._try_to_write({tp: read_to}, letters) is None:
            return
        # The letters before the rejected one can be written.
        for letter in letters:
            offsets = {tp: letter.dead.offset + 1}
            error = await self._try_to_write(offsets, [letter])
            if error is not None:
                raise CommandError(
                    f"some dead letters were not written: {plain_text(error)}"
                ) from error
        await self._try_to_write({tp: read_to}, [])

    async def _try_to_write(
        self, offsets: Mapping[TopicPartition, int], letters: Sequence[_Letter]
    ) -> KafkaError | None:
        futures: list[asyncio.Future[RecordMetadata]] = []
        try:
            async with self._producer.transaction() as transaction:
                for letter in letters:
                    futures.append(await transaction.send(**letter.output._asdict()))  # noqa: PERF401
                transaction.commit_offsets(offsets, self._consumer.group_metadata())
        except KafkaError as error:
            if self._producer.fatal_error is not None:
                raise CommandError(
                    f"some dead letters were not written: {plain_text(error)}"
                ) from error
            return error
        finally:
            for future in futures:
                if future.done() and not future.cancelled():
                    future.exception()  # marks it as retrieved
        self._written.update(letter.output.topic for letter in letters)
        return None

    def _is_wanted(self, record: Record, death: Mapping[str, str]) -> bool:
        for name, pattern in self.wanted:
            if name == KEY:
                text = None if record.key is None else record.key.decode(errors="replace")
            else:
                text = death.get(PREFIX + name)
            if text is None:
                return False
            # The class of an exception may be named without its module.
            texts = (text, text.rpartition(".")[2]) if name == "exception" else (text,)
            if not any(fnmatch.fnmatchcase(each, pattern) for each in texts):
                return False
        return True

    async def _output(self, record: Record, death: Mapping[str, str]) -> Output:
        topic, partition = self.options.to, None
        if topic is None:
            topic = death[TOPIC]
            if topic not in self.counts:
                self.counts[topic] = await asyncio.to_thread(self._count_partitions, topic)
            number = death.get(PARTITION, "")
            if number.isdecimal() and int(number) < self.counts[topic]:
                partition = int(number)
        headers = without_death(record.headers)
        return Output(topic, record.key, record.value, partition, headers=headers)

    def _count_partitions(self, topic: str) -> int:
        with self.where.cluster() as cluster:
            return len(ask_for_topic(cluster, topic).partitions)

    def _report(self) -> None:
        written = sum(self._written.values())
        places = ", ".join(f"{count} to {topic}" for topic, count in sorted(self._written.items()))
        verb = "would be replayed" if self.options.dry_run else "replayed"
        parts = [f"{counted(written, 'dead letter')} {verb}" + (f": {places}" if places else "")]
        if self._unmatched:
            parts.append(f"{self._unmatched} did not match")
        if self._without_topic:
            parts.append(
                f"{self._without_topic} skipped, because no header contains their original topic "
                "(--to TOPIC replays them too)"
            )
        print("; ".join(parts), file=sys.stderr)


def _death(record: Record) -> dict[str, str]:
    return {
        name: value.decode(errors="replace")
        for name, value in record.headers
        if name.startswith(PREFIX) and value is not None
    }


def _line(letter: _Letter) -> str:
    record, output = letter
    death = _death(record)
    why = death.get(PREFIX + "exception", "")
    message = " ".join(death.get(PREFIX + "message", "").split())
    to = output.topic if output.partition is None else f"{output.topic}/{output.partition}"
    return f"{record.partition}:{record.offset}\t-> {to}\t{why}\t{message[:120]}"
