"""Messages as tokens, by the field tables of their declarations, so that a mutation can aim.

A token is a length, a count, a varint, a tag, the size of a tagged field, a number or content. A
mutation changes some of them and leaves the others as they were: a count that is too large by one,
a tag twice, null where it is not allowed, a record set in place of another.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from aiokafka_lite.protocol.decoding import present, tagged
from aiokafka_lite.protocol.schema import Message, Struct
from aiokafka_lite.protocol.wire import RECORDS, STRING, UUID, Array, Field, Fixed, Nested, Wire
from tests.fuzz import mutations


@dataclass
class Number:
    """A number of fixed size; `is_size` if it is a length or a count."""

    value: int
    size: int
    is_size: bool = False

    @cached_property
    def rendered(self) -> bytes:
        return mutations.packed(self.value, self.size)


@dataclass
class Varint:
    """A compact length, a count, a tag or a tagged field's size."""

    value: int
    padding: int = 0

    @cached_property
    def rendered(self) -> bytes:
        return mutations.uvarint(self.value % (1 << 64), self.padding)


@dataclass
class Content:
    """The bytes of a value. `kind` is "string", "bytes", "records" or "uuid"."""

    value: bytes
    kind: str

    @property
    def rendered(self) -> bytes:
        return self.value


Token = Number | Varint | Content

_CODES: Final = {"b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "?": 1}


class Tokens:
    """Collects the tokens of one message in one version."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self._version = version
        self._is_flexible = cls.flexible.covers(version)
        self.found: list[Token] = []

    def add_struct(self, cls: type[Struct], value: object) -> None:
        for field in present(cls, self._version):
            self._add_field(field, getattr(value, field.name))
        if not self._is_flexible:
            return
        fields = [
            (field, getattr(value, field.name))
            for field in tagged(cls, self._version)
            if field.writes_null or getattr(value, field.name) != field.new_default()
        ]
        self.found.append(Varint(len(fields)))
        for field, content in fields:
            outer, self.found = self.found, []
            self._add_field(field, content)
            size = len(render(self.found))
            self.found = [*outer, Varint(field.tag or 0), Varint(size), *self.found]

    def _add_field(self, field: Field, value: object) -> None:
        wire, is_nullable = field.wire, field.nullable.covers(self._version)
        if isinstance(wire, Nested) and is_nullable:
            null = 0 if field.tag is not None else -1
            self.found.append(Number(null if value is None else 1, 1))
            if value is None:
                return
        self._add(wire, value)

    def _add(self, wire: Wire, value: object) -> None:
        match wire:
            case Nested(struct_cls):
                self.add_struct(struct_cls, value)
            case Array(element):
                items = list(value) if isinstance(value, list | tuple) else None
                self._add_size(None if items is None else len(items), 4)
                for item in items or ():
                    self._add(element, item)
            case Fixed() if wire is UUID:
                assert isinstance(value, bytes)
                self.found.append(Content(value, "uuid"))
            case Fixed(_, "d"):
                self.found.append(Content(struct.pack(">d", value), "bytes"))
            case Fixed(_, code):
                assert isinstance(value, int)
                self.found.append(Number(int(value), _CODES[code]))
            case _:
                content = value.encode() if isinstance(value, str) else value
                assert content is None or isinstance(content, bytes | bytearray | memoryview)
                self._add_size(
                    None if content is None else len(content), 2 if wire is STRING else 4
                )
                kind = "string" if wire is STRING else "records" if wire is RECORDS else "bytes"
                self.found.append(Content(bytes(content or b""), kind))

    def _add_size(self, size: int | None, width: int) -> None:
        if self._is_flexible:
            self.found.append(Varint(0 if size is None else size + 1))
        else:
            self.found.append(Number(-1 if size is None else size, width, is_size=True))


def tokens_of(message: Message, cls: type[Message], version: int) -> list[Token]:
    """Split a message in the layout of its version."""
    tokens = Tokens(cls, version)
    tokens.add_struct(cls, message)
    return tokens.found


def render(tokens: Sequence[Token]) -> bytes:
    return b"".join([token.rendered for token in tokens])


class Others:
    """What other contents are replaced by. None is made before a mutation asks for it."""

    def record_set(self, rng: random.Random) -> bytes | None:
        return None

    def blob(self, rng: random.Random) -> bytes | None:
        return None


def mutate(rng: random.Random, tokens: Sequence[Token], others: Others) -> bytes:
    """Change some tokens, and return the bytes.

    The length in front of a changed content is corrected more often than not.
    """
    tokens = list(tokens)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not tokens:
            break
        at = rng.randrange(len(tokens))
        if rng.random() < 0.05:
            end = at + rng.randint(1, 12)
            tokens[at:end] = tokens[at:end] * rng.choice((0, 2, 2, 40))
            continue
        token = tokens[at]
        if isinstance(token, Content):
            tokens[at] = changed = Content(_changed(rng, token, others), token.kind)
            if at and token.kind != "uuid" and rng.random() < 0.85:
                _correct(tokens, at - 1, len(changed.value))
        elif isinstance(token, Varint):
            value = mutations.number(rng, token.value) % (1 << rng.choice((7, 14, 31, 32, 33, 35)))
            tokens[at] = Varint(value, rng.choice((0, 0, 0, 0, 1, 3, 6)))
        else:
            tokens[at] = Number(mutations.number(rng, token.value), token.size)
    return render(tokens)


def _correct(tokens: list[Token], at: int, size: int) -> None:
    match tokens[at]:
        case Varint():
            tokens[at] = Varint(size + 1)
        case Number(_, width, True):
            tokens[at] = Number(size, width, is_size=True)


_STRINGS: Final = (
    *(b"", b"t", b"g", b"__consumer_offsets", b"__transaction_state", b".", b"..", b"a/b", b"\0"),
    *(b"x" * 249, b"x" * 250, b"x" * 40_000, "ü😀".encode(), b"\xff\xfe", b"\xed\xa0\x80"),
    *(
        b"range",
        b"uniform",
        b"consumer",
        b"(",
        b"[a-z]+",
        b"(a*)*$",
        b"-1",
        b"1e9",
        b"cleanup.policy",
    ),
)


def _changed(rng: random.Random, token: Content, others: Others) -> bytes:
    if token.kind == "uuid":
        return rng.choice((bytes(16), b"\xff" * 16, rng.randbytes(16), token.value))
    if token.kind == "string" and rng.random() < 0.5:
        return rng.choice(_STRINGS)
    other = None
    if token.kind == "records" and rng.random() < 0.7:
        other = others.record_set(rng)
    elif token.kind == "bytes" and rng.random() < 0.5:
        other = others.blob(rng)
    if other is not None:
        return other
    return mutations.changed(rng, token.value, ())
