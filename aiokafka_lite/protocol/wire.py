"""What a declaration is made of: version ranges, wire types, fields."""

from __future__ import annotations

import base64
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aiokafka_lite.protocol.schema import Struct

ZERO_UUID: Final = bytes(16)
_NO_LAST_VERSION: Final = 0x7FFF


def uuid_to_str(uuid: bytes) -> str:
    """Return a topic id as Kafka prints it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def uuid_from_str(text: str) -> bytes:
    """Return the 16 bytes of a topic id that Kafka printed.

    Raises:
        ValueError: The text is not one.
    """
    uuid = base64.urlsafe_b64decode(text + "==")
    if len(uuid) != len(ZERO_UUID):
        raise ValueError(f"{text!r} is not a Kafka uuid")
    return uuid


class VersionRange(NamedTuple):
    """Versions from `first` to `last`, both included."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read Kafka's notation: ``"3"``, ``"3-7"``, ``"3+"`` and ``"none"``."""
        if text == "none":
            return NO_VERSIONS
        if text.endswith("+"):
            return cls(int(text[:-1]), _NO_LAST_VERSION)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def covers(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == _NO_LAST_VERSION:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NO_VERSIONS: Final = VersionRange(0, -1)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A type of fixed size, with its code in the struct module."""

    name: str
    code: str
    size: int
    zero: int | bool | bytes


class SizedKind(enum.Enum):
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Sized:
    """Bytes behind their length. Records are decoded as a slice of the frame, not copied."""

    kind: SizedKind

    @property
    def zero(self) -> str | bytes | None:
        match self.kind:
            case SizedKind.STRING:
                return ""
            case SizedKind.BYTES:
                return b""
            case SizedKind.RECORDS:
                return None


@dataclass(frozen=True, slots=True)
class Array:
    """A count and that many elements."""

    element: Wire


@dataclass(frozen=True, slots=True)
class Nested:
    """The fields of another struct, in place."""

    struct: type[Struct]


Wire = Fixed | Sized | Array | Nested

INT8: Final = Fixed("int8", "b", 1, 0)
INT16: Final = Fixed("int16", "h", 2, 0)
INT32: Final = Fixed("int32", "i", 4, 0)
INT64: Final = Fixed("int64", "q", 8, 0)
BOOL: Final = Fixed("bool", "?", 1, False)
UUID: Final = Fixed("uuid", "16s", 16, ZERO_UUID)
STRING: Final = Sized(SizedKind.STRING)
BYTES: Final = Sized(SizedKind.BYTES)
RECORDS: Final = Sized(SizedKind.RECORDS)


class _Unset(enum.Enum):
    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset.UNSET
"""The default of a field that starts as a new list or a new struct of its own."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct: where it is on the wire, and what it is where it is not."""

    name: str
    wire: Wire
    versions: VersionRange
    nullable: VersionRange
    default: object
    ignorable: bool
    tag: int | None

    @property
    def is_lazy(self) -> bool:
        """Whether the value is a struct that is made when it is first read."""
        return self.default is UNSET and isinstance(self.wire, Nested)

    @property
    def is_list(self) -> bool:
        """Whether the default is a new list."""
        return self.default is UNSET and isinstance(self.wire, Array)

    @property
    def slot(self) -> str:
        """The attribute that holds the value; for a lazy field it holds None at first."""
        return f"_{self.name}" if self.is_lazy else self.name

    def new_default(self) -> object:
        """Return the value that stands for the field where a message lacks it."""
        if self.default is not UNSET:
            return self.default
        return self.wire.struct() if isinstance(self.wire, Nested) else []
