"""Credentials of Java's clients: one login module with its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";

The syntax is that of Kafka 4 (`JaasConfig.java`). Errors contain no part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""
      (?P<nothing> [\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]* )
    | (?P<mark> [;=] )
    | (?P<quote> ["'] )
    | (?P<word> [^\x00-\x20;=/"'\x81-\x9f]+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(ValueError):
    """A JAAS configuration cannot be read."""


class LoginModule(NamedTuple):
    """A login module by its class name, and its options, which contain secrets."""

    name: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name!r}, {sorted(self.options)!r})"


class _Token(NamedTuple):
    """A mark (; or =) or a word."""

    text: str
    is_mark: bool

    def __repr__(self) -> str:
        return "_Token(***)"


def parse_jaas(text: str) -> LoginModule:
    """Return the login module of a `sasl.jaas.config`, which must have exactly one."""
    entries: list[LoginModule] = []
    tokens = _tokens(text)
    for token in tokens:
        if token.is_mark:
            raise JaasError(
                f"the name of a login module was expected, but {token.text!r} was found"
            )
        entries.append(_entry(token.text, tokens))
    if len(entries) != 1:
        raise JaasError(f"the value has {len(entries)} login modules, but must have exactly one")
    return entries[0]


def _entry(module: str, tokens: Iterator[_Token]) -> LoginModule:
    flag = next(tokens, None)
    if flag is None or flag.text.lower() not in _FLAGS:
        raise JaasError(
            "the login module's name must be followed by a control flag such as 'required'"
        )
    options: dict[str, str] = {}
    for token in tokens:
        if token == (";", True):
            return LoginModule(module, options)
        sign, value = next(tokens, None), next(tokens, None)
        if token.is_mark or sign != ("=", True) or value is None or value.is_mark:
            raise JaasError(
                f"option number {len(options) + 1} of the login module must be written as "
                'name="value"'
            )
        options[token.text] = value.text
    raise JaasError("the value must end with a semicolon")


def _tokens(text: str) -> Iterator[_Token]:
    pos = 0
    while pos < len(text):
        match = _TOKEN.match(text, pos)
        if match is None:
            raise JaasError(f"character {pos + 1} is a control character, which is not allowed")
        pos = match.end()
        if match["quote"]:
            quoted, pos = _quoted(text, pos, match["quote"])
            yield _Token(quoted, is_mark=False)
        elif match["nothing"] is None:
            yield _Token(match[0], is_mark=match["mark"] is not None)


def _quoted(text: str, pos: int, quote: str) -> tuple[str, int]:
    """Read a quoted word, which ends with the line at the latest."""
    parts: list[str] = []
    while pos < len(text) and text[pos] not in (quote, "\r", "\n"):
        if (escape := _ESCAPE.match(text, pos)) is None:
            parts.append(text[pos])
            pos += 1
            continue
        code = escape[1]
        parts.append(chr(int(code, 8)) if "0" <= code[0] <= "7" else _ESCAPES.get(code, code))
        pos = escape.end()
    return "".join(parts), pos + (text[pos : pos + 1] == quote)
