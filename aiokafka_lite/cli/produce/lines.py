"""Lines as they come, and the records in them."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import BinaryIO, Final

from aiokafka_lite.cli.produce.sending import ProducerRecord

READ_BYTES: Final = 256 << 10


def lines_of(stream: BinaryIO, delimiter: bytes) -> Iterator[bytes | None]:
    """Yield what stands between delimiters; None whenever nothing more is there for now.

    What is after the last delimiter is a line, too, unless it is empty.
    """
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while chunk := read(READ_BYTES):
        *lines, rest = (rest + chunk).split(delimiter)
        yield from lines
        if not _has_more(stream):
            yield None
    if rest:
        yield rest


def _has_more(stream: BinaryIO) -> bool:
    """Whether reading would return at once; True where that cannot be told."""
    if stream.isatty():
        return False  # a person writes a line at a time
    try:
        return bool(select.select([stream], [], [], 0)[0])
    except (OSError, ValueError):  # Windows selects sockets only; a test's input is no file
        return True


def record_of_text(
    line: bytes,
    *,
    key_separator: bytes | None,
    null: bytes | None,
) -> ProducerRecord:
    """Return the record of a line: its value, with a key ahead of the separator if there is one."""
    key: bytes | None = None
    value: bytes | None = line
    if key_separator is not None:
        ahead, found, behind = line.partition(key_separator)
        if found:
            key, value = ahead, behind
    if null is not None:
        key, value = (None if each == null else each for each in (key, value))
    return ProducerRecord(key, value)


def record_of_json(line: bytes) -> ProducerRecord:
    """Return the record of an object such as `cat --json` prints; topic and offset do not count.

    Raises:
        LineProblem: It is none.
    """
    # Only now: it imports the broker that loads the same lines.
    from aiokafka_lite.cli.load import parse_line

    _, record = parse_line(line, topic="")
    key, value, headers = (_as_bytes(record.key), _as_bytes(record.value), record.headers)
    pairs = [(name, _as_bytes(content)) for name, content in headers]
    return ProducerRecord(key, value, pairs, record.partition, record.timestamp_ms)


def _as_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
