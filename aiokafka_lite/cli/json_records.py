"""Records as lines of JSON objects: of `produce --json` and `broker --load`."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Final

from aiokafka_lite._arguments import is_int
from aiokafka_lite._pages import Json
from aiokafka_lite.cli.problems import LineProblem
from aiokafka_lite.producing.batch import Output

FIELDS: Final = ("topic", "key", "value", "headers", "partition", "timestamp")
# A field of `cat --json`: a record gets the next offset instead.
IGNORED: Final = ("offset",)
BASE64: Final = "base64"
UTF8_MARK: Final = b"\xef\xbb\xbf"
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1


def parse_line(text: bytes, topic: str | None = None) -> Output:
    """Return the record of a line, for `topic` or its own topic, or raise LineProblem."""
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
    return Output(
        name,
        key=_bytes_of("key", line.get("key")),
        value=_bytes_of("value", line.get("value")),
        partition=_integer("partition", line.get("partition"), INT32_MAX),
        timestamp_ms=_integer("timestamp", line.get("timestamp"), INT64_MAX),
        headers=list(_headers(line.get("headers"))),
    )


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
    pairs: Json = [list(pair) for pair in value.items()] if isinstance(value, dict) else value
    for pair in pairs if isinstance(pairs, list) else [None]:
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
