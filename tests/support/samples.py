"""Messages to test with, made from the declarations, for one version at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from hypothesis import strategies as st

from aiokafka_lite.protocol.messages.coordinator_records import (
    VALUE_OF,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from aiokafka_lite.protocol.registry import REQUESTS
from aiokafka_lite.protocol.schema import Blob, Message, Request, Response, Struct
from aiokafka_lite.protocol.wire import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UINT16,
    UUID,
    Array,
    Field,
    Fixed,
    Nested,
    Sized,
    Wire,
)

REQUEST_CLASSES: list[type[Request[Response]]] = list(REQUESTS.values())
BLOB_CLASSES: list[type[Blob]] = [
    ConsumerProtocolSubscription,
    ConsumerProtocolAssignment,
    OffsetCommitKey,
    OffsetCommitValue,
    GroupMetadataKey,
    GroupMetadataValue,
    *VALUE_OF,
    *VALUE_OF.values(),
    TransactionLogKey,
    TransactionLogValue,
]
MESSAGE_CLASSES: list[type[Message]] = [
    *REQUEST_CLASSES,
    *(cls.response for cls in REQUEST_CLASSES),
    *BLOB_CLASSES,
]


def versions(cls: type[Message]) -> range:
    """Every version of a message, the unstable ones too."""
    return range(cls.versions.first, cls.versions.last + 1)


# The first versions of messages that came after the release that tests run on, with Kafka 4.4.0.
NEWER: Mapping[str, int] = MappingProxyType(
    {
        "ApiVersionsRequest": 5,
        "ApiVersionsResponse": 5,
        "TxnOffsetCommitRequest": 6,
        "TxnOffsetCommitResponse": 6,
    }
)
EVERY_VERSION: list[tuple[type[Message], int]] = [
    (cls, version) for cls in MESSAGE_CLASSES for version in versions(cls)
]


def name_of(value: object) -> str | None:
    """Name a class in a test's id; other values get pytest's own."""
    return value.__name__ if isinstance(value, type) else None


S = TypeVar("S", bound=Struct)


# --- One message with everything set -------------------------------------------------------
def filled(cls: type[S], version: int, *, has_nulls: bool = False) -> S:
    """Make a struct in which every field of `version` is set, each to something else.

    With `has_nulls` the fields that can be null are.
    """
    return _filled(cls, version, has_nulls, itertools.count(1))


def _filled(cls: type[S], version: int, has_nulls: bool, numbers: Iterator[int]) -> S:
    values = {
        field.name: None
        if has_nulls and field.nullable.covers(version)
        else _filled_value(field.wire, version, has_nulls, numbers)
        for field in cls.schema
        if field.versions.covers(version)
    }
    return cls(**values)


def _filled_value(wire: Wire, version: int, has_nulls: bool, numbers: Iterator[int]) -> object:
    match wire:
        case Array(element):
            return [_filled_value(element, version, has_nulls, numbers) for _ in range(2)]
        case Nested(struct):
            return _filled(struct, version, has_nulls, numbers)
    number = next(numbers)
    match wire:
        case Fixed(name) if name == BOOL.name:
            return True
        case Fixed(name) if name == UUID.name:
            return number.to_bytes(16, "big")
        case Sized(name) if name == STRING.name:
            return f"ü{number}"
        case Sized():
            return number.to_bytes(200, "big")  # long enough for a varint of two bytes
    return number % 128


# --- Any message ---------------------------------------------------------------------------
_INTEGERS = {
    wire.name: st.integers(-(2 ** (8 * wire.size - 1)), 2 ** (8 * wire.size - 1) - 1)
    for wire in (INT8, INT16, INT32, INT64)
} | {UINT16.name: st.integers(0, 2**16 - 1)}
_SIZED = {
    STRING.name: st.text(max_size=150),
    BYTES.name: st.binary(max_size=150),
    RECORDS.name: st.binary(max_size=300),
}


def any_message(cls: type[S], version: int) -> st.SearchStrategy[S]:
    """Make a strategy for what `version` of a struct can carry."""
    fields = [field for field in cls.schema if field.versions.covers(version)]
    return st.builds(cls, **{field.name: _any_value(field, version) for field in fields})


def _any_value(field: Field, version: int) -> st.SearchStrategy[object]:
    value = _any_of(field.wire, version)
    return st.none() | value if field.nullable.covers(version) else value


def _any_of(wire: Wire, version: int) -> st.SearchStrategy[object]:
    match wire:
        case Array(element):
            return st.lists(_any_of(element, version), max_size=3)
        case Nested(struct):
            return any_message(struct, version)
        case Sized(name):
            return _SIZED[name]
        case Fixed(name) if name == BOOL.name:
            return st.booleans()
        case Fixed(name) if name == UUID.name:
            return st.binary(min_size=16, max_size=16)
        case Fixed(name):
            return _INTEGERS[name]
