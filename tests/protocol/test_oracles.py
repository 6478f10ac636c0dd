"""Two other implementations read what we write, and write what we read."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import io
import re
import uuid
from typing import Protocol, cast

import pytest

from aiokafka_lite.protocol import codec
from aiokafka_lite.protocol.messages.coordinator_records import (
    VALUE_OF,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersionsResponse
from aiokafka_lite.protocol.schema import ZERO_UUID, Message, Request, Response, Struct
from aiokafka_lite.protocol.wire import Array, Nested, Wire
from tests.support.for_each import in_every_version
from tests.support.rounds import LONG
from tests.support.samples import EVERY_VERSION, NEWER, filled

KNOWN_VERSIONS = [
    (cls, version)
    for cls, version in EVERY_VERSION
    if version < NEWER.get(cls.__name__, 1000)
    # In the short form the first and last of either encoding: a real Kafka is sent every version.
    and (
        LONG
        or version in (cls.versions.first, cls.flexible.first, cls.versions.last)
        or version + 1 in (cls.flexible.first, NEWER.get(cls.__name__))
    )
]
API_MESSAGES = [
    (cls, version) for cls, version in KNOWN_VERSIONS if issubclass(cls, Request | Response)
]
# kio has the blobs of the kafka-clients jar, not those of the coordinators'.
KIO_MESSAGES = [
    (cls, version)
    for cls, version in KNOWN_VERSIONS
    if cls not in (*VALUE_OF, *VALUE_OF.values()) and not cls.__name__.startswith("TransactionLog")
]
# kafka-python 3.0 speaks neither the protocol of KIP-848 nor that of share groups.
KAFKA_PYTHON_MESSAGES = [
    (cls, version)
    for cls, version in API_MESSAGES
    if not re.search("ConsumerGroup|Share", cls.__name__)
]


def _samples(cls: type[Message], version: int) -> list[Message]:
    return [cls(), filled(cls, version), filled(cls, version, has_nulls=True)]


def _plain(
    value: object, version: int, wire: Wire | None = None, *, has_default_structs: bool = True
) -> object:
    """Return what the version carries as dicts, lists and plain values.

    Without `has_default_structs` a tagged struct that is not on the wire counts as None.
    """
    if isinstance(wire, Array):
        wire = wire.element
    if isinstance(value, Struct):
        # A struct that is read as a newer one has its own layout.
        layout = wire.struct if isinstance(wire, Nested) else type(value)
        return {
            field.name: None
            if field.is_lazy
            and not has_default_structs
            and getattr(value, field.name) == field.new_default()
            else _plain(
                getattr(value, field.name),
                version,
                field.wire,
                has_default_structs=has_default_structs,
            )
            for field in layout.schema
            if field.versions.covers(version)
        }
    if isinstance(value, list):
        return [
            _plain(item, version, wire, has_default_structs=has_default_structs) for item in value
        ]
    return value


# --- kio -------------------------------------------------------------------------------------
def _kio_class(cls: type[Message], version: int) -> type:
    api, kind = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower(), "data"
    if issubclass(cls, Request | Response):
        api, _, kind = api.rpartition("_")
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    return cast("type", getattr(module, cls.__name__))


def _plain_kio_field(field: dataclasses.Field[object], of: object) -> tuple[str, object]:
    value, name = getattr(of, field.name), field.name.rstrip("_")  # type_ is a field, too
    match field.metadata.get("kafka_type"):
        case "timedelta_i32" | "timedelta_i64":
            return f"{name}_ms", _plain_kio(value)
        case "datetime_i64":
            return f"{name}_ms", -1 if value is None else _plain_kio(value)
        case "uuid":
            return name, ZERO_UUID if value is None else _plain_kio(value)
    return name, _plain_kio(value)


def _plain_kio(value: object) -> object:
    """Undo kio's richer types: durations, instants, ids, error codes, tuples."""
    match value:
        case datetime.timedelta():
            return value // datetime.timedelta(milliseconds=1)
        case datetime.datetime():
            return int(value.timestamp() * 1000)
        case uuid.UUID():
            return value.bytes
        case enum.Enum():
            return value.value
        case tuple():
            return [_plain_kio(item) for item in value]
        case memoryview():
            return bytes(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dict(_plain_kio_field(field, value) for field in dataclasses.fields(value))
    return value


@in_every_version(KIO_MESSAGES)
def test_kio_agrees(cls: type[Message], version: int) -> None:
    serial = pytest.importorskip("kio.serial", reason="kio needs Python 3.11")
    kio_class = _kio_class(cls, version)
    for message in _samples(cls, version):
        body = codec.encode(message, version)
        theirs, size = serial.entity_reader(kio_class)(body, 0)
        assert size == len(body)
        assert _plain_kio(theirs) == _plain(message, version)
        written = io.BytesIO()
        serial.entity_writer(kio_class)(written, theirs)
        assert codec.decode(cls, version, written.getvalue()) == message
        assert written.getvalue() == body


# --- kafka-python ----------------------------------------------------------------------------
class _KafkaPythonMessage(Protocol):
    def to_dict(self, *, json: bool) -> dict[str, object]: ...
    @classmethod
    def decode(cls, data: bytes, version: int) -> _KafkaPythonMessage: ...


_KAFKA_PYTHON_MODULES = [
    f"kafka.protocol.{name}"
    for name in (
        "admin.cluster",
        "admin.configs",
        "admin.groups",
        "admin.topics",
        "admin.transactions",
        "admin.users",
        "consumer.fetch",
        "consumer.group",
        "consumer.metadata",
        "consumer.offsets",
        "metadata.api_versions",
        "metadata.find_coordinator",
        "metadata.metadata",
        "producer.produce",
        "producer.transaction",
        "sasl",
    )
]


def _kafka_python_class(cls: type[Message]) -> type[_KafkaPythonMessage]:
    for name in _KAFKA_PYTHON_MODULES:
        found: object = getattr(importlib.import_module(name), cls.__name__, None)
        if found is not None:
            return cast("type[_KafkaPythonMessage]", found)
    raise LookupError(f"kafka-python has no {cls.__name__}")


def _plain_kafka_python(value: object) -> object:
    match value:
        case uuid.UUID():
            return value.bytes
        case list():
            return [_plain_kafka_python(item) for item in value]
        case dict():
            return {name: _plain_kafka_python(item) for name, item in value.items()}
    return value


def _without_bit_sets(value: object) -> object:
    """Leave out authorized operations, which kafka-python renames and unpacks into sets."""
    match value:
        case list():
            return [_without_bit_sets(item) for item in value]
        case dict():
            return {
                name: _without_bit_sets(item)
                for name, item in value.items()
                if "authorized_operations" not in name or name.startswith("include")
            }
    return value


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")  # how it reads its schemas
@in_every_version(KAFKA_PYTHON_MESSAGES)
def test_kafka_python_agrees(cls: type[Message], version: int) -> None:
    theirs = _kafka_python_class(cls)
    # Past the one request class whose own encode moves fields about:
    encode = importlib.import_module("kafka.protocol.api_message").ApiMessage.encode
    for message in _samples(cls, version):
        if isinstance(message, ApiVersionsResponse):
            message.error_code = 0  # with any other it reads version 0
        body = codec.encode(message, version)
        decoded = theirs.decode(body, version=version)
        expected = _plain(message, version, has_default_structs=False)
        found = _plain_kafka_python(decoded.to_dict(json=False))
        assert _without_bit_sets(found) == _without_bit_sets(expected)
        written = bytes(encode(decoded))
        assert codec.decode(cls, version, written) == message
        assert written == body
