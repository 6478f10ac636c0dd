"""Records as bytes: lines of text, JSON, hexadecimal, or raw values.

A formatter converts many records at once, to save time per record.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone
from json.encoder import encode_basestring as quoted
from typing import Final, NoReturn, TypeAlias

from aiokafka_lite.cli.reading import Record

Records: TypeAlias = Sequence[Record]
Formatter: TypeAlias = Callable[[Records], bytes]

OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
KEY: Final = "key"
HEADERS: Final = "headers"
BASE64: Final = "base64"

# Characters that control a terminal, except tabs and ends of lines.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def text_formatter(
    fields: Collection[str],
    *,
    delimiter: bytes = b"\n",
    null: bytes = b"",
    is_hex: bool = False,
    is_for_terminal: bool = False,
) -> Formatter:
    """Return a formatter that separates the fields by tabs, with the value last.

    With `is_hex`, keys, header values and values are in hexadecimal. For a terminal, control
    characters are escaped.
    """

    def contents(found: list[bytes | None]) -> list[bytes]:
        if is_hex:
            return [null if each is None else each.hex().encode() for each in found]
        return [null if each is None else each for each in found]

    def keys(records: Records) -> list[bytes]:
        return contents([each.key for each in records])

    def values(records: Records) -> list[bytes]:
        return contents([each.value for each in records])

    def headers(records: Records) -> list[bytes]:
        return [b",".join([_header(*pair, is_hex) for pair in each.headers]) for each in records]

    known = {OFFSET: _offsets, TIMESTAMP: _timestamps, KEY: keys, HEADERS: headers}
    columns = [column for name, column in known.items() if name in fields]
    columns.append(values)

    def lines(records: Records) -> bytes:
        if len(columns) == 1:
            pieces = values(records)
        else:
            parts = [column(records) for column in columns]
            pieces = [b"\t".join(each) for each in zip(*parts, strict=True)]
        if is_for_terminal:
            pieces = [_shown(each) for each in pieces]
        pieces.append(b"")
        return delimiter.join(pieces)

    return lines


def _shown(content: bytes) -> bytes:
    return escaped(content.decode("utf-8", "backslashreplace")).encode()


def escaped(text: str) -> str:
    """Return a text without characters that control a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _offsets(records: Records) -> list[bytes]:
    return [b"%d:%d" % (each.partition, each.offset) for each in records]


def _timestamps(records: Records) -> list[bytes]:
    return [_time(each).encode() for each in records]


def _time(record: Record) -> str:
    at: int | None = record.timestamp  # that of a record of format 0 is missing
    return "" if at is None else time_text(at)


def time_text(timestamp_ms: int) -> str:
    """Return a time in ISO 8601, in UTC."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    except (OverflowError, OSError, ValueError):  # outside of the range of datetime
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _header(name: str, value: bytes | None, is_hex: bool) -> bytes:
    content = value or b""
    return name.encode() + b"=" + (content.hex().encode() if is_hex else content)


def raw_values(records: Records) -> bytes:
    return b"".join([each.value or b"" for each in records])


# --- JSON -------------------------------------------------------------------------------------
def json_formatter(*, unpacks: bool = False) -> Formatter:
    """Return a formatter that writes one object per line, for `produce --json` and `broker --load`.

    With `unpacks`, keys and values that are JSON are part of the object, not strings.
    """
    of_bytes = _unpacked if unpacks else _packed

    def lines(records: Records) -> bytes:
        out = [
            f'{{"topic":{quoted(each.topic)},"partition":{each.partition},"offset":{each.offset},'
            f'"timestamp":{_number(each.timestamp)},'
            f'"key":{of_bytes(each.key)},"headers":{_json_headers(each)},'
            f'"value":{of_bytes(each.value)}}}'
            for each in records
        ]
        out.append("")
        return "\n".join(out).encode("utf-8", "surrogatepass")

    return lines


def _number(number: int | None) -> str:
    return "null" if number is None else str(number)


def _packed(content: bytes | None) -> str:
    if content is None:
        return "null"
    try:
        return quoted(content.decode())
    except UnicodeDecodeError:
        return f'{{"base64":"{b64encode(content).decode()}"}}'


def _unpacked(content: bytes | None) -> str:
    if content is None:
        return "null"
    try:
        text = content.decode()
        parsed = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _packed(content)
    # Unquoted, these would be a record without a value, and binary data.
    if parsed is None or (isinstance(parsed, dict) and list(parsed) == [BASE64]):
        return _packed(content)
    # Serialized again, numbers would be rounded and repeated names dropped. Strings have no line
    # breaks.
    return text.strip().replace("\n", " ").replace("\r", " ")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _json_headers(record: Record) -> str:
    headers = record.headers
    if not headers:
        return "{}"
    pairs = [(quoted(name), _packed(value)) for name, value in headers]
    if len({name for name, _ in pairs}) == len(pairs):
        return "{" + ",".join([f"{name}:{value}" for name, value in pairs]) + "}"
    return "[" + ",".join([f"[{name},{value}]" for name, value in pairs]) + "]"
