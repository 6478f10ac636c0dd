r"""Regular expressions of Java for names of topics, as patterns of Python's `re`.

The syntax is what both interpret alike: that of `protocol.regex`, lookarounds and ``(?i:...)``.
``\Q...\E``, ``\z`` and some properties are translated. The reference is the documentation of
`java.util.regex.Pattern` (Java 17).
"""

from __future__ import annotations

import re
from typing import Final

from aiokafka_lite.protocol.regex import IGNORE_CASE, tokens_of

_SHOWN_CHARACTERS: Final = 12
# Names of topics are ASCII.
_PROPERTIES: Final = {
    "Lower": "[a-z]",
    "Upper": "[A-Z]",
    "Alpha": "[A-Za-z]",
    "Digit": "[0-9]",
    "Alnum": "[A-Za-z0-9]",
}
_FURTHER: Final = re.compile(
    rf"""
      \(\?(?:[=!]|<[=!]|i:)                     # lookarounds, and a group without case
    | \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | \\p\{{(?P<property>{"|".join(_PROPERTIES)})\}}
    | (?P<end>\\[zZ])
    """,
    re.VERBOSE | re.DOTALL,
)


class JavaPatternError(ValueError):
    """A pattern is wrong, or has syntax that is not supported."""


def compile_java(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of Java so that it finds the same names of topics."""
    rest = pattern.removeprefix(IGNORE_CASE)
    parts = [pattern[: len(pattern) - len(rest)]]
    while True:
        tokens, rest = tokens_of(rest)
        parts += tokens
        if (further := _FURTHER.match(rest)) is None:
            break
        parts.append(_translated(further))
        rest = rest[further.end() :]
    if rest:
        raise JavaPatternError(
            "this source supports only syntax that Java and Python's `re` share, not "
            f"`{rest[:_SHOWN_CHARACTERS]}` at character {len(pattern) - len(rest) + 1}"
        )
    try:
        return re.compile("".join(parts), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise JavaPatternError(f"this source cannot use the pattern in Python: {error}") from error


def _translated(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "quoted":
            return re.escape(found["quoted"])
        case "property":
            return _PROPERTIES[found["property"]]
        case "end":
            return r"\Z"
    return found[0]
