"""`aiokafka-lite dlq`: dead letters are counted, shown, replayed and purged.

`DeadLetters` and Kafka's brokers (share groups, KIP-1191) describe the failure in headers of the
same names. Kafka's have no class of an exception, and by default neither key nor value.

A replay writes the records to their original partitions, without these headers, and with the
current time, because retention would delete an old record. With a group, the offsets of written
letters are committed, however the command ends.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import AS_JSON, YES, Declaration
from aiokafka_lite.cli.asking import (
    FORMS,
    Found,
    TopicPosition,
    ask_for_topic,
    by_leader,
    find,
    partitions_of,
    place,
    reason_of,
)
from aiokafka_lite.cli.connecting import Connecting, connecting
from aiokafka_lite.cli.formats import escaped, time_text
from aiokafka_lite.cli.output import (
    Row,
    check_confirmable,
    columns,
    confirm,
    count_text,
    counted,
    print_rows,
    progress,
)
from aiokafka_lite.cli.problems import CommandError, UsageError, plain_text, raise_if_any
from aiokafka_lite.cli.reading import Record, Span, read_spans, records_of
from aiokafka_lite.consumer.processing.headers import (
    DELIVERY_COUNT,
    EXCEPTION,
    MESSAGE,
    PARTITION,
    PREFIX,
    STATE,
    TIMESTAMP,
    TOPIC,
    VALUE_SIZE,
    WAITING,
    without_death,
)
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.producing.batch import Output
from aiokafka_lite.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from aiokafka_lite.structs import RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.producing import AIOKafkaProducer

ISOLATION_LEVEL: Final = "read_committed"
# Fields of `--where` in addition to the headers of a dead letter.
KEY: Final = "key"
ERROR: Final = "error"
FIELDS: Final = (
    KEY, "topic", "partition", "offset", "group", "delivery.count", "message", "exception", ERROR,
)  # fmt: skip
# `dlq list` counts further pairs of error and topic together.
MOST_KINDS: Final = 1_000
LONGEST_ERROR: Final = 120
# A paced replay writes so often.
PIECES_PER_S: Final = 10

_TOPIC: Final = "TOPIC  the topic of dead letters"
_PARTITION: Final = "-p, --partition N[,N-N…]  only these partitions of TOPIC, such as 0,4-7"
_WHICH: Final = f"""
which dead letters:
--where NAME=PATTERN ...
  only dead letters with a field NAME that matches PATTERN (* matches any text, ? any character).
  The fields are {", ".join(FIELDS)}. Repeatable: all patterns must match
--error PATTERN ...
  short for --where error=PATTERN: the exception, with or without its module, or a share group's
  message
--topic, --original-topic PATTERN ...  short for --where topic=PATTERN: the topic of the record
{_PARTITION}
--from, --since WHERE  start at this position: {FORMS}
"""
_LIST: Final = f"""
Count the dead letters of a topic by their error and the topic of the record, with the times of the
oldest and newest, the most attempts, and the place of the newest for `dlq show`.

arguments:
{_TOPIC}
{AS_JSON}
{_WHICH}
examples:
  aiokafka-lite dlq list dlq.orders --since 1h
  aiokafka-lite dlq list dlq.orders --error '*TimeoutError' --json
"""
_SHOW: Final = f"""
Show a dead letter: the failure, and the record's headers, key and value.

arguments:
{_TOPIC}
PARTITION:OFFSET  the place of the record

examples:
  aiokafka-lite dlq show dlq.orders 0:1234         partition 0, offset 1234, as dlq list prints it
"""
_REPLAY: Final = f"""
Write the dead letters of a topic to their original topics and partitions again. The headers that
describe the failure are removed. The dead letters also stay in TOPIC. The command reads TOPIC from
the beginning, or from --from, to its current end.

Without --group, each run replays all dead letters again. With --group, a run continues after the
previous one, and a crash may repeat some dead letters (at least once). With --transactional-id
too, read_committed consumers see each dead letter exactly once.

arguments:
{_TOPIC}
--rate N  write at most N dead letters a second
--transactional-id NAME
  with --group: write dead letters and commit their offsets in transactions with this id. Consumers
  with read_committed then see each dead letter once, even after a failed run
--to TOPIC  write the dead letters to this topic, partitioned by key
--dry-run  only print the records that would be written, one per line
{_WHICH}-c, --limit, --count N  stop after N dead letters in all
--group GROUP
  start at the committed offsets of this group, and commit the offsets that are read. Later runs
  with this group skip the dead letters of earlier runs, including dead letters that did not match

examples:
  aiokafka-lite dlq replay dlq.orders --dry-run          show the dead letters and their targets
  aiokafka-lite dlq replay dlq.orders                    all dead letters, to their original topics
  aiokafka-lite dlq replay dlq.orders --error '*TimeoutError' --rate 50
  aiokafka-lite dlq replay dlq.orders --topic orders --from 1h --to orders.retry
  aiokafka-lite dlq replay dlq.orders --group replay     dead letters that are new to this group
  aiokafka-lite dlq replay dlq.orders --group replay --transactional-id replay
                                                     new dead letters, each exactly once
"""
_PURGE: Final = f"""
Delete the records of a topic of dead letters, from its beginning to --until, after a confirmation.
The command first reads the records, and fails if some of them are not dead letters.

arguments:
{_TOPIC}
--until WHERE  delete the records before this position: {FORMS}
|| --all  delete all records up to the current end
{_PARTITION}
--force  do not read the records first, and also delete records that are not dead letters
{YES}

examples:
  aiokafka-lite dlq purge dlq.orders --until 7d           all that are older than a week
  aiokafka-lite dlq purge dlq.orders -p 0 --until 1234    offsets below 1234 of partition 0
  aiokafka-lite dlq purge dlq.orders --all --yes          all, without asking
"""


# --- Dead letters --------------------------------------------------------------------------
def _death(record: Record) -> dict[str, str]:
    return {
        name: value.decode(errors="replace")
        for name, value in record.headers
        if name.startswith(PREFIX) and value is not None
    }


def _is_delayed(death: Mapping[str, str]) -> bool:
    """Whether it is a record of a delay topic, which a consumer handles again when it is due."""
    return death.get(STATE, "").encode() == WAITING[1]


def _error_of(death: Mapping[str, str]) -> str | None:
    return death.get(EXCEPTION) or death.get(MESSAGE)


def _lacks_record(record: Record, death: Mapping[str, str]) -> bool:
    """Whether it is a stub, or a share group's without the record's key and value."""
    is_empty = record.key is None and record.value is None
    return VALUE_SIZE in death or (is_empty and EXCEPTION not in death)


def _patterns(options: argparse.Namespace) -> list[tuple[str, str]]:
    for name, _ in options.where:
        if name not in FIELDS:
            raise UsageError(f"dead letters have no field {name}: use one of {', '.join(FIELDS)}")
    topics = [("topic", each) for each in options.original_topic]
    return [*options.where, *((ERROR, each) for each in options.error), *topics]


def _matches(record: Record, death: Mapping[str, str], wanted: Sequence[tuple[str, str]]) -> bool:
    for name, pattern in wanted:
        if name == KEY:
            text = None if record.key is None else record.key.decode(errors="replace")
        elif name == ERROR:
            text = _error_of(death)
        else:
            text = death.get(PREFIX + name)
        if text is None:
            return False
        # The class of an exception may be named without its module.
        is_class = text == death.get(EXCEPTION)
        texts = (text, text.rpartition(".")[2]) if is_class else (text,)
        if not any(fnmatch.fnmatchcase(each, pattern) for each in texts):
            return False
    return True


def _find(
    options: argparse.Namespace,
    where: Connecting,
    *,
    start: TopicPosition | None = None,
    stop: TopicPosition | None = None,
) -> Found:
    with where.cluster() as cluster:
        topic = ask_for_topic(cluster, options.topic)
        tps = partitions_of(topic, options.partition, action="read")
        return find(cluster, tps, start, stop, isolation_level=ISOLATION_LEVEL)


# --- list ----------------------------------------------------------------------------------
_COLUMNS: Final = columns(
    "error, topic, #letters, #attempts, oldest, newest, newest_at: newest at",
    letters=count_text,
    oldest=lambda at: time_text(cast("int", at)),
    newest=lambda at: time_text(cast("int", at)),
)


@dataclass
class _Kind:
    """Dead letters with one error and original topic. Times are of their writing, in ms."""

    letters: int = 0
    attempts: int | None = None
    oldest: int | None = None
    newest: int | None = None
    newest_at: str | None = None

    def take(self, record: Record, death: Mapping[str, str]) -> None:
        self.letters += 1
        if (attempts := death.get(DELIVERY_COUNT, "")).isdecimal():
            self.attempts = max(int(attempts), self.attempts or 0)
        at: int | None = record.timestamp  # that of a message of magic 0 is missing
        if at is not None:
            self.oldest = at if self.oldest is None else min(at, self.oldest)
        if self.newest_at is None or (at is not None and at >= (self.newest or 0)):
            self.newest, self.newest_at = at, f"{record.partition}:{record.offset}"


class _Kinds:
    """Counts dead letters by error and topic, in limited memory."""

    def __init__(self, wanted: Sequence[tuple[str, str]] = ()) -> None:
        self._wanted = wanted
        self._kinds: dict[tuple[str | None, str | None], _Kind] = {}
        self.letters = self.unmatched = 0
        # Records that are not dead letters, how many of them are delayed, and the first of them.
        self.others = self.delayed = 0
        self.first_other = ""

    def take(self, record: Record) -> None:
        death = _death(record)
        is_delayed = _is_delayed(death)
        if not death or is_delayed:
            self.others += 1
            self.delayed += is_delayed
            self.first_other = self.first_other or f"{record.partition}:{record.offset}"
            return
        if not _matches(record, death, self._wanted):
            self.unmatched += 1
            return
        self.letters += 1
        error = _error_of(death)
        key = (None if error is None else " ".join(error.split())[:LONGEST_ERROR], death.get(TOPIC))
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            key = ("(other errors)", None)
        self._kinds.setdefault(key, _Kind()).take(record, death)

    def rows(self) -> list[Row]:
        kinds = sorted(self._kinds.items(), key=lambda each: -each[1].letters)
        return [{"error": error, "topic": topic, **vars(kind)} for (error, topic), kind in kinds]


async def _read(
    where: Connecting, spans: Mapping[TopicPartition, Span], take: Callable[[Record], object]
) -> None:
    async with aclosing(read_spans(where, spans, ISOLATION_LEVEL)) as found:
        with progress("reading dead letters", _offset_count(spans)) as advance:
            async for records in found:
                for record in records:
                    take(record)
                advance(len(records))


def _offset_count(spans: Mapping[TopicPartition, Span]) -> int:
    return sum(max(0, span.end - span.start) for span in spans.values())


def run_list(options: argparse.Namespace) -> int:
    kinds, where = _Kinds(_patterns(options)), connecting(options)
    loops.run(_read(where, _find(options, where, start=options.since).spans, kinds.take))
    print_rows(kinds.rows(), _COLUMNS, as_json=options.json)
    if kinds.others and not kinds.letters + kinds.unmatched:
        raise CommandError(
            f"topic {options.topic} has no dead letters: "
            + (
                f"{kinds.delayed:,} of its {kinds.others:,} records are delayed records"
                if kinds.delayed
                else f"none of its {kinds.others:,} records has a header {PREFIX}…"
            )
            + f" (run `aiokafka-lite cat {options.topic} -a` to see them)"
        )
    parts = [counted(kinds.letters, "dead letter")]
    if kinds.unmatched:
        parts.append(f"{kinds.unmatched:,} did not match")
    if kinds.others:
        what = "delayed or " if kinds.delayed else ""
        parts.append(
            f"{kinds.others:,} {what}without headers of a dead letter, the first at "
            f"{kinds.first_other}"
        )
    print("; ".join(parts), file=sys.stderr)
    return 0


# --- show ----------------------------------------------------------------------------------
def _partition_and_offset(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition(":")
    if not re.fullmatch(r"[0-9]{1,9}:[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a place: write PARTITION:OFFSET")
    return int(partition), int(offset)


def run_show(options: argparse.Namespace) -> int:
    where, (partition, offset) = connecting(options), options.offset
    options.partition = (partition,)
    found, tp = _find(options, where), TopicPartition(options.topic, partition)
    begin, end = found.begins[tp], found.stops[tp]
    records: list[Record] = []
    if begin <= offset < end:
        loops.run(_read(where, {tp: Span(offset, offset + 1)}, records.append))
    if not records:
        has = (
            f"offsets {begin} to {end - 1}, some perhaps without records" if end > begin else "none"
        )
        raise CommandError(f"there is no record {partition}:{offset} in {tp.topic}: it has {has}")
    print("\n".join(_lines(records[0])))
    death = _death(records[0])
    if _is_delayed(death):
        print("this is a delayed record, and not a dead letter", file=sys.stderr)
    elif not death:
        print(f"this record has no header {PREFIX}…: it is not a dead letter", file=sys.stderr)
    return 0


def _lines(record: Record) -> Iterator[str]:
    """Yield the fields of a letter, by their names in `--where`."""
    death = _death(record)
    for name, text in death.items():
        is_time = name == TIMESTAMP and text.isdecimal()
        yield _line(name.removeprefix(PREFIX), time_text(int(text)) if is_time else text)
    at: int | None = record.timestamp  # that of a message of magic 0 is missing
    yield _line("written", "at an unknown time" if at is None else time_text(at))
    for name, content in without_death(record.headers):
        yield _line("header", f"{name}={_readable(content)}")
    yield _line("key", _readable(record.key))
    lacks = "not in the dead letter: see the record, if its topic still has it"
    yield _line("value", lacks if _lacks_record(record, death) else _readable(record.value))


def _line(name: str, text: str) -> str:
    return f"{escaped(name):<14} " + escaped(text).replace("\n", "\n" + " " * 15)


def _readable(content: bytes | None) -> str:
    """Return a text, in which bytes that are not UTF-8 are escaped."""
    return "null" if content is None else content.decode("utf-8", "backslashreplace")


# --- replay --------------------------------------------------------------------------------
class _Letter(NamedTuple):
    """A dead letter, and the record to write: without a partition, that of its key."""

    dead: Record
    output: Output


def run_replay(options: argparse.Namespace) -> int:
    if options.group is not None and options.since is not None:
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
    wanted, where = _patterns(options), connecting(options)
    spans = _find(options, where, start=options.since).spans
    if options.to is not None:
        with where.cluster() as cluster:
            ask_for_topic(cluster, options.to)
    loops.run(_Replay(options, where, spans, wanted).run())
    return 0


# Why records are not written again. The report has the number of each.
UNMATCHED: Final = "did not match"
DELAYED: Final = "skipped, because they are delayed records"
WITHOUT_TOPIC: Final = (
    "skipped, because no header contains their original topic (--to TOPIC replays them too)"
)
WITHOUT_RECORD: Final = "skipped, because they do not contain the record's value"


@dataclass(eq=False)
class _Replay:
    options: argparse.Namespace
    where: Connecting
    spans: dict[TopicPartition, Span]
    wanted: Sequence[tuple[str, str]]
    # How many partitions original topics have.
    _counts: dict[str, int] = field(default_factory=dict, init=False)
    _written: Counter[str] = field(default_factory=Counter, init=False)
    _skipped: Counter[str] = field(default_factory=Counter, init=False)
    _chosen_count: int = field(default=0, init=False)
    # The loop time from which the next letter may be written.
    _next_at: float = field(default=0.0, init=False)
    # `run` creates them.
    _consumer: AIOKafkaConsumer = field(init=False)
    _producer: AIOKafkaProducer = field(init=False)

    async def run(self) -> None:
        options, where = self.options, self.where
        try:
            async with AsyncExitStack() as stack:
                self._consumer = await stack.enter_async_context(
                    where.consumer(isolation_level=ISOLATION_LEVEL, group_id=options.group)
                )
                if not options.dry_run:
                    self._producer = await stack.enter_async_context(
                        where.producer(options.transactional_id)
                    )
                if options.group is not None:
                    await self._begin_where_committed()
                reading = records_of(self._consumer, self.spans, patience_s=where.patience_s)
                found = await stack.enter_async_context(aclosing(reading))
                is_shown, total = not options.dry_run, _offset_count(self.spans)
                advance = stack.enter_context(progress("replaying dead letters", total, is_shown))
                async for records in found:
                    if records and not await self._replay(records, advance):
                        break
        finally:
            self._report()

    async def _begin_where_committed(self) -> None:
        """Move the starts to the group's offsets, and commit them.

        A broker rejects commits for a group that has members, or without permission: this must
        happen before the first letter is written.
        """
        for tp, span in tuple(self.spans.items()):
            committed = await self._consumer.committed(tp)
            self.spans[tp] = Span(max(span.start, committed or 0), span.end)
        starts = {tp: span.start for tp, span in self.spans.items() if span.start < span.end}
        if starts:
            self._consumer.assign(list(starts))
            await self._consumer.commit(starts)

    async def _replay(self, records: Sequence[Record], advance: Callable[[int], None]) -> bool:
        """Write letters of a partition again. Return False at the limit of `--count`."""
        rate = self.options.rate
        most = len(records) if rate is None else max(1, rate // PIECES_PER_S)
        tp, read_to = TopicPartition(records[0].topic, records[0].partition), records[0].offset
        piece: list[_Letter] = []
        problem: CommandError | None = None
        for record in records:
            if self._chosen_count == self.options.count:
                break
            try:
                reason = await self._choose(record, piece)
            except (CommandError, KafkaError) as error:
                problem = CommandError(
                    f"dead letter {record.partition}:{record.offset} was not written: "
                    f"{plain_text(error)}"
                )
                break
            read_to = record.offset + 1
            advance(1)
            if reason is not None:
                self._skipped[reason] += 1
                continue
            self._chosen_count += 1
            if len(piece) == most:
                await self._write(tp, piece, read_to)
                piece = []
        await self._write(tp, piece, read_to)
        if problem is not None:
            raise problem
        return read_to > records[-1].offset

    async def _choose(self, record: Record, piece: list[_Letter]) -> str | None:
        """Add a letter to those that are written next, or return why not."""
        death = _death(record)
        if _is_delayed(death):
            return DELAYED
        if TOPIC not in death and self.options.to is None:
            return WITHOUT_TOPIC
        if not _matches(record, death, self.wanted):
            return UNMATCHED
        if _lacks_record(record, death):
            return WITHOUT_RECORD
        piece.append(_Letter(record, await self._output(record, death)))
        return None

    async def _write(self, tp: TopicPartition, letters: Sequence[_Letter], read_to: int) -> None:
        """Write letters when their turn comes, and commit the offset up to which they count."""
        options, now_s = self.options, asyncio.get_running_loop().time
        if options.dry_run:
            for letter in letters:
                self._written[letter.output.topic] += 1
                print(_summary(letter))
            return
        if options.rate is not None:
            await asyncio.sleep(self._next_at - now_s())
            self._next_at = max(self._next_at, now_s()) + len(letters) / options.rate
        if options.transactional_id is not None:
            await self._write_in_transactions(tp, letters, read_to)
        else:
            await self._write_plainly(tp, letters, read_to)

    async def _write_plainly(
        self, tp: TopicPartition, letters: Sequence[_Letter], read_to: int
    ) -> None:
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
        failures = [each.exception() for each in futures]
        if len(futures) < len(letters):
            failures.append(failure)
        rejected: tuple[_Letter, BaseException] | None = None
        for letter, reason in zip(letters, failures, strict=False):
            if reason is None:
                self._written[letter.output.topic] += 1
            else:
                rejected = rejected or (letter, reason)
        if self.options.group is not None:
            done_to = read_to if rejected is None else rejected[0].dead.offset
            await self._consumer.commit({tp: done_to})
        if isinstance(failure, asyncio.CancelledError):
            raise failure
        if rejected is not None:
            raise _not_written(rejected[1], letters)

    async def _write_in_transactions(
        self, tp: TopicPartition, letters: Sequence[_Letter], read_to: int
    ) -> None:
        """Write all in one transaction. If it fails, those before the rejected one in others."""
        futures: list[asyncio.Future[RecordMetadata]] = []
        try:
            async with self._producer.transaction() as transaction:
                for letter in letters:
                    futures.append(await transaction.send(**letter.output._asdict()))  # noqa: PERF401
                transaction.commit_offsets({tp: read_to}, self._consumer.group_metadata())
        except KafkaError as error:
            if self._producer.fatal_error is not None or len(letters) < 2:
                raise _not_written(error, letters) from error
            half = len(letters) // 2
            await self._write_in_transactions(tp, letters[:half], letters[half].dead.offset)
            await self._write_in_transactions(tp, letters[half:], read_to)
        else:
            self._written.update(letter.output.topic for letter in letters)
        finally:
            for future in futures:
                if future.done() and not future.cancelled():
                    future.exception()  # marks it as retrieved

    async def _output(self, record: Record, death: Mapping[str, str]) -> Output:
        topic, partition = self.options.to, None
        if topic is None:
            topic = death[TOPIC]
            if topic not in self._counts:
                self._counts[topic] = await asyncio.to_thread(self._count_partitions, topic)
            number = death.get(PARTITION, "")
            if number.isdecimal() and int(number) < self._counts[topic]:
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
        parts = [f"{counted(written, 'dead letter')} {verb}" + (f": {places}" if written else "")]
        parts += [f"{count} {reason}" for reason, count in self._skipped.items()]
        print("; ".join(parts), file=sys.stderr)


def _not_written(error: BaseException, letters: Sequence[_Letter]) -> CommandError:
    what = "some dead letters were not written" if letters else "offsets were not committed"
    return CommandError(f"{what}: {plain_text(error)}")


def _summary(letter: _Letter) -> str:
    record, output = letter
    death = _death(record)
    message = " ".join(death.get(MESSAGE, "").split())
    to = output.topic if output.partition is None else f"{output.topic}/{output.partition}"
    place = f"{record.partition}:{record.offset}"
    return f"{place}\t-> {to}\t{death.get(EXCEPTION, '')}\t{message[:LONGEST_ERROR]}"


# --- purge ---------------------------------------------------------------------------------
def run_purge(options: argparse.Namespace) -> int:
    check_confirmable(options)
    where = connecting(options)
    found = _find(options, where, stop=options.until)
    spans = {tp: span for tp, span in found.spans.items() if span.end > span.start}
    held = f"at most {counted(_offset_count(spans), 'record')}"
    if not options.force:
        kinds = _Kinds()
        loops.run(_read(where, spans, kinds.take))
        if kinds.others:
            are = "is not a dead letter" if kinds.others == 1 else "are not dead letters"
            but = f" ({kinds.delayed:,} wait for a retry)" if kinds.delayed else ""
            raise CommandError(
                f"{counted(kinds.others, 'record')} of {options.topic} {are}{but}, the first at "
                f"{kinds.first_other}, so no records were deleted: add --force to delete such "
                "records, too"
            )
        held = counted(kinds.letters, "dead letter")
    if not spans:
        print(f"{options.topic} has no dead letters to delete", file=sys.stderr)
        return 0
    print(f"{options.topic}: {held} in {counted(len(spans), 'partition')}", file=sys.stderr)
    confirm(options, held)
    _delete(where, options.topic, spans)
    print(f"deleted {held}")
    return 0


def _delete(where: Connecting, topic: str, spans: Mapping[TopicPartition, Span]) -> None:
    with where.cluster() as cluster:
        ask_for_topic(cluster, topic)  # it may have been deleted meanwhile
        problems = [
            f"partition {tp.partition} of {topic} was not purged: it has no leader"
            for tp in spans
            if cluster.view.leader(tp) is None
        ]
        timeout_ms = int(where.config.request_timeout_s * 1000)
        for node, by_topic in by_leader(cluster, spans).items():
            partitions = [
                DeleteRecordsPartition(
                    partition_index=number, offset=spans[TopicPartition(topic, number)].end
                )
                for number in by_topic[topic]
            ]
            asked = [DeleteRecordsTopic(name=topic, partitions=partitions)]
            request = DeleteRecordsRequest(topics=asked, timeout_ms=timeout_ms)
            (answer,) = cluster.request(node, request).topics
            problems += [
                f"partition {each.partition_index} of {topic} was not purged: "
                f"{reason_of(each.error_code)}"
                for each in answer.partitions
                if each.error_code
            ]
    raise_if_any(problems)


_REPLAY_COMMAND: Final = Declaration(run_replay, _REPLAY, {"since": place})
COMMANDS: Final = {
    "dlq list": Declaration(run_list, _LIST, {"since": place}),
    "dlq show": Declaration(run_show, _SHOW, {"offset": _partition_and_offset}),
    "dlq replay": _REPLAY_COMMAND,
    "dlq purge": Declaration(run_purge, _PURGE, {"until": place}),
    "replay": _REPLAY_COMMAND,
}
