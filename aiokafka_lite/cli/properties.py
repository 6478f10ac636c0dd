"""Files in the form of Java's `.properties`, which Kafka's own tools read their settings from.

Reference: `java.util.Properties.load(Reader)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SPACE: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# A key ends ahead of the first space, = or : that no backslash protects.
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_BETWEEN: Final = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Return names and values; of a name that comes twice, the last value."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        end = 0 if key is None else key.end()
        between = _BETWEEN.match(line, end)
        start = end if between is None else between.end()
        found[_unescaped(line[:end])] = _unescaped(line[start:])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without their indentation, joined where one ends with a backslash."""
    collected = ""
    for line in re.split(r"\r\n|\n|\r", text):
        stripped = line.lstrip(_SPACE)
        if not collected and (not stripped or stripped[0] in "#!"):
            continue
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            collected += stripped[:-1]
            continue
        yield collected + stripped
        collected = ""
    if collected:
        yield collected


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    escaped = found[1]
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _ESCAPES.get(escaped, escaped)
