"""`broker --load FILE.jsonl`: loads topics from a file, one JSON object per line.

    {"topic": "orders", "key": "42", "value": {"amount": 3}, "headers": {"trace": "a1"}}
    {"topic": "orders", "value": {"base64": "AP8="}, "partition": 0, "timestamp": 1767225600000}

The whole file is checked before any record is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.broker.direct import RecordRefusedError, TopicWriter
from aiokafka_lite.broker.slices import LoopSlices
from aiokafka_lite.cli.json_records import UTF8_MARK, parse_line
from aiokafka_lite.cli.output import progress
from aiokafka_lite.cli.problems import CommandError, LineProblem, plain_text
from aiokafka_lite.errors import KafkaError


class BadLineError(CommandError):
    def __init__(self, path: Path, line_number: int, reason: str) -> None:
        self.line_number = line_number
        super().__init__(f"{path}, line {line_number}: {reason} (no records were loaded)")


class Loaded(NamedTuple):
    counts: dict[str, int]
    left_alone: list[str]


async def load_file(broker: Broker, path: Path) -> Loaded:
    """Load topics from a file. Missing topics are created with the broker's defaults.

    A topic that already has records stays unchanged, so that a broker with a data directory can be
    started again with the same command. After an error created topics are deleted.
    """
    loading = _Loading(broker, path)
    try:
        await loading.read()
        loading.finish()
    except BaseException:
        loading.drop_new_topics()
        raise
    # There is no await here, so that Ctrl-C cannot interrupt the writing.
    return loading.write()


class _Loading:
    def __init__(self, broker: Broker, path: Path) -> None:
        self._broker = broker
        self._path = path
        self._writers: dict[str, TopicWriter] = {}
        # By topic: the line number of each record of its writer.
        self._line_numbers: dict[str, list[int]] = {}
        self._new_topics: list[str] = []
        self._left_alone: dict[str, None] = {}

    async def read(self) -> None:
        slices = LoopSlices()
        for line_number, line in _lines(self._path):
            if line.strip():
                self._add(line_number, line)
            if slices.is_over:  # clients and Ctrl-C have their turn
                await slices.rest()

    def _add(self, line_number: int, text: bytes) -> None:
        try:
            record = parse_line(text)
            topic = record.topic
            writer = self._writer(topic)
        except (LineProblem, KafkaError) as error:
            raise BadLineError(self._path, line_number, plain_text(error)) from error
        if writer is None:
            return
        self._line_numbers[topic].append(line_number)
        try:
            writer.add(
                NewRecord(
                    record.value, record.key, record.headers, record.partition, record.timestamp_ms
                )
            )
        except RecordRefusedError as refused:
            raise self._refused(topic, refused) from refused

    def _writer(self, topic: str) -> TopicWriter | None:
        """None: the topic already has records."""
        if topic in self._left_alone:
            return None
        if topic not in self._writers:
            broker = self._broker
            if not broker.has_topic(topic):
                broker.create_topic(topic)
                self._new_topics.append(topic)
            writer = broker.writer(topic)
            if any(each.log.log_end_offset for each in broker.topics[topic].partitions):
                self._left_alone[topic] = None
                return None
            self._writers[topic], self._line_numbers[topic] = writer, []
        return self._writers[topic]

    def _refused(self, topic: str, refused: RecordRefusedError) -> BadLineError:
        return BadLineError(
            self._path, self._line_numbers[topic][refused.number], plain_text(refused.reason)
        )

    def finish(self) -> None:
        for topic, writer in self._writers.items():
            try:
                writer.finish()
            except RecordRefusedError as refused:
                raise self._refused(topic, refused) from refused

    def write(self) -> Loaded:
        for writer in self._writers.values():
            writer.write()
        counts = {topic: writer.count for topic, writer in self._writers.items()}
        return Loaded(counts, list(self._left_alone))

    def drop_new_topics(self) -> None:
        for topic in self._new_topics:
            self._broker.delete_topic(topic)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file, progress(f"Loading {path.name}", size) as advance:
            for number, line in enumerate(file, 1):
                advance(len(line))
                yield number, line.removeprefix(UTF8_MARK) if number == 1 else line
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
