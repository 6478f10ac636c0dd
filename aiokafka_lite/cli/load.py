"""`broker --load FILE.jsonl`: loads topics from a file, one JSON object per line.

    {"topic": "orders", "key": "42", "value": {"amount": 3}, "headers": {"trace": "a1"}}
    {"topic": "orders", "value": {"base64": "AP8="}, "partition": 0, "timestamp": 1767225600000}

The whole file is checked before any record is written.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite._arguments import is_int
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.broker.writing import RecordRefusedError, TopicWriter
from aiokafka_lite.cli.problems import CommandError, LineProblem, plain_text
from aiokafka_lite.errors import KafkaError

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

FIELDS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")
# A field of `cat --json`: a record gets the next offset instead.
IGNORED: Final = ("offset",)
BASE64: Final = "base64"
UTF8_MARK: Final = b"\xef\xbb\xbf"
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
# The time between two yields to clients and Ctrl-C.
SLICE_S: Final = 0.002


class BadLineError(CommandError):
    def __init__(self, path: Path, line_number: int, reason: str) -> None:
        self.line_number = line_number
        super().__init__(f"{path}, line {line_number}: {reason} (no records were loaded)")


class Loaded(NamedTuple):
    counts: dict[str, int]
    left_alone: list[str]


class _Line(NamedTuple):
    topic: str
    record: NewRecord


def file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error


async def load_file(broker: Broker, path: Path, on_progress: Callable[[int], None]) -> Loaded:
    """Load topics from a file. Missing topics are created with the broker's defaults.

    A topic that already has records stays unchanged, so that a broker with a data directory can be
    started again with the same command. After an error created topics are deleted.

    Raises:
        BadLineError: A line is no record, or its topic does not accept it.
        CommandError: The file cannot be read.
        KafkaStorageError: The disk is full or broken.
    """
    loading = _Loading(broker, path)
    try:
        await loading.read(on_progress)
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

    async def read(self, on_progress: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_S
        for line_number, line, bytes_read in _lines(self._path):
            if line.strip():
                self._add(line_number, line)
            if loop.time() >= until:
                on_progress(bytes_read)
                await asyncio.sleep(0)
                until = loop.time() + SLICE_S

    def _add(self, line_number: int, text: bytes) -> None:
        try:
            topic, record = parse_line(text)
            writer = self._writer(topic)
        except LineProblem as problem:
            raise BadLineError(self._path, line_number, str(problem)) from None
        except KafkaError as error:
            raise BadLineError(self._path, line_number, plain_text(error)) from error
        if writer is None:
            return
        self._line_numbers[topic].append(line_number)
        try:
            writer.add(record)
        except RecordRefusedError as refused:
            raise self._refused(topic, refused) from refused

    def _writer(self, topic: str) -> TopicWriter | None:
        """Return the writer of a topic, or None if the topic already has records."""
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
        """Run the checks that need all records."""
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


def _lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    bytes_read = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                bytes_read += len(line)
                yield (
                    number,
                    line.removeprefix(UTF8_MARK) if number == 1 else line,
                    bytes_read,
                )
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error


def parse_line(text: bytes, topic: str | None = None) -> _Line:
    """Return the topic and the record of a line, or raise LineProblem."""
    try:
        line: Json = json.loads(text.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise LineProblem(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise LineProblem(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise LineProblem("nested too deep") from None
    if not isinstance(line, dict):
        raise LineProblem("each line must be a JSON object")
    unknown = [name for name in line if name not in FIELDS and name not in IGNORED]
    if unknown:
        raise LineProblem(f"unknown field {unknown[0]!r}: the fields are {', '.join(FIELDS)}")
    name = line.get("topic") if topic is None else topic
    if not isinstance(name, str):
        raise LineProblem('the field "topic" must be a string')
    record = NewRecord(
        value=_bytes_of("value", line.get("value")),
        key=_bytes_of("key", line.get("key")),
        headers=list(_headers(line.get("headers"))),
        partition=_integer("partition", line.get("partition"), INT32_MAX),
        timestamp_ms=_integer("timestamp", line.get("timestamp"), INT64_MAX),
    )
    return _Line(name, record)


def _refuse_constant(name: str) -> Json:
    raise LineProblem(f"{name} is not JSON")


def _bytes_of(name: str, value: Json) -> bytes | None:
    """Return a string in UTF-8, the bytes of {"base64": …}, or another value as JSON text."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and list(value) == [BASE64]:
            encoded = value[BASE64]
            if not isinstance(encoded, str):
                raise LineProblem(f'{name}: the value of "base64" must be a string')
            return base64.b64decode(encoded, validate=True)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except binascii.Error as error:
        raise LineProblem(f"{name} is not base64: {error}") from None
    except UnicodeEncodeError:
        raise LineProblem(
            f"{name} contains half a surrogate pair, which UTF-8 cannot encode"
        ) from None


def _headers(value: Json) -> Iterator[tuple[str, bytes | None]]:
    """Yield headers of an object, or of a list of pairs in which a name may occur twice."""
    if value is None:
        return
    pairs: list[Json] = (
        [[name, of_name] for name, of_name in value.items()]
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )
    if not isinstance(value, dict | list):
        raise LineProblem('the field "headers" must be an object, or a list of [name, value]')
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise LineProblem('the field "headers" must be an object, or a list of [name, value]')
        _bytes_of("a header's name", pair[0])  # which has to be UTF-8 as well
        yield pair[0], _bytes_of(f"header {pair[0]!r}", pair[1])


def _integer(name: str, value: Json, highest: int) -> int | None:
    if value is None:
        return None
    if not is_int(value) or not 0 <= value <= highest:
        raise LineProblem(f"{name} must be an integer from 0 to {highest}")
    return value
