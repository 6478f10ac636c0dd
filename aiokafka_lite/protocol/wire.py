"""The parts of a declaration: version ranges, wire types, fields."""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aiokafka_lite.protocol.schema import Struct

ZERO_UUID: Final = bytes(16)
_NO_LAST_VERSION: Final = 0x7FFF


def uuid_to_str(uuid: bytes) -> str:
    """Return a topic id as Kafka prints it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def uuid_from_str(text: str) -> bytes:
    """Return the 16 bytes of a topic id that Kafka printed, or raise ValueError."""
    uuid = base64.urlsafe_b64decode(text + "==")
    if len(uuid) != len(ZERO_UUID):
        raise ValueError(f"{text!r} is not a Kafka UUID: it must be 16 bytes in URL-safe base64")
    return uuid


class VersionRange(NamedTuple):
    """Versions from `first` to `last`, inclusive."""

    first: int
    last: int

    @staticmethod
    @functools.cache
    def parse(text: str) -> VersionRange:
        """Parse Kafka's notation: ``"3"``, ``"3-7"``, ``"3+"`` and ``"none"``."""
        if text == "none":
            return NO_VERSIONS
        if text.endswith("+"):
            return VersionRange(int(text[:-1]), _NO_LAST_VERSION)
        first, _, last = text.partition("-")
        return VersionRange(int(first), int(last or first))

    def covers(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == _NO_LAST_VERSION:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NO_VERSIONS: Final = VersionRange(0, -1)


class Fixed(NamedTuple):
    """A type of fixed size, with its code in the struct module."""

    name: str
    code: str
    size: int
    zero: int | bytes


class Sized(NamedTuple):
    """Bytes after their length. Records are decoded as a slice of the frame."""

    name: str
    zero: str | bytes | None


class Array(NamedTuple):
    """A count and its elements."""

    element: Wire


class Nested(NamedTuple):
    """The fields of another struct, in place."""

    struct: type[Struct]


Wire = Fixed | Sized | Array | Nested

INT8: Final = Fixed("int8", "b", 1, 0)
INT16: Final = Fixed("int16", "h", 2, 0)
UINT16: Final = Fixed("uint16", "H", 2, 0)
INT32: Final = Fixed("int32", "i", 4, 0)
INT64: Final = Fixed("int64", "q", 8, 0)
BOOL: Final = Fixed("bool", "?", 1, False)
UUID: Final = Fixed("uuid", "16s", 16, ZERO_UUID)
STRING: Final = Sized("string", "")
BYTES: Final = Sized("bytes", b"")
RECORDS: Final = Sized("records", None)


UNSET: Final = object()
"""The default of a field that starts as a new list or a new struct of its own."""


# No dataclasses, which would take half of the import time.
class Field:
    """One field of a struct: its place on the wire, and its default in versions without it.

    The default may be a struct, created when it is first read (`is_lazy`): until then `slot`, the
    attribute with the value, is null. Or it may be a new list (`is_list`). A tagged field that
    `writes_null` has no default in Kafka.
    """

    def __init__(
        self,
        wire: Wire,
        versions: VersionRange,
        nullable: VersionRange,
        default: object,
        ignorable: bool,
        tag: int | None,
        writes_null: bool = False,
    ) -> None:
        self.wire = wire
        self.versions = versions
        self.nullable = nullable
        self.default = default
        self.ignorable = ignorable
        self.tag = tag
        self.writes_null = writes_null
        self.is_lazy = default is UNSET and isinstance(wire, Nested)
        self.is_list = default is UNSET and isinstance(wire, Array)
        self.name = self.slot = ""

    def set_name(self, name: str) -> None:
        self.name = name
        self.slot = f"_{name}" if self.is_lazy else name

    def new_default(self) -> object:
        """Return the value of the field in a message without it."""
        if self.default is not UNSET:
            return self.default
        return self.wire.struct() if isinstance(self.wire, Nested) else []
