"""The declarations say what the definitions in Kafka's jars say, field by field."""

from __future__ import annotations

import re
from collections.abc import Mapping

from aiokafka_lite.protocol.messages.coordinator_records import (
    VALUE_OF,
    GroupRecordKey,
    TransactionLogKey,
)
from aiokafka_lite.protocol.schema import Message, Request, Response, Struct
from aiokafka_lite.protocol.wire import UNSET, Array, Field, Nested, VersionRange, Wire
from tests.protocol.conftest import FieldDefinition, MessageDefinition
from tests.support.for_each import for_each
from tests.support.samples import MESSAGE_CLASSES, REQUEST_CLASSES, versions

Definitions = Mapping[str, MessageDefinition]
_ZERO_OF = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": bytes(16),
}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _type_name(wire: Wire) -> str:
    match wire:
        case Array(element):
            return f"[]{_type_name(element)}"
        case Nested():
            return "struct"
        case _:
            return wire.name


def _lacks_default(definition: FieldDefinition) -> bool:
    return "default" in definition and definition["default"] is None


def _expected_default(definition: FieldDefinition) -> object:
    kind = definition["type"]
    default = definition.get("default")
    if default == "null" or _lacks_default(definition):
        return None
    if kind.startswith(("int", "uint")):
        return int(str(default or 0), 0)
    if kind == "bool":
        return default in ("true", True)
    if default is not None and kind == "string":
        return default
    return _ZERO_OF.get(kind, UNSET)


def _facts(field: Field, valid: set[int]) -> dict[str, object]:
    return {
        "type": _type_name(field.wire),
        "versions": _within(field.versions, valid),
        "nullable": _within(field.nullable, valid),
        "default": field.default,
        "ignorable": field.ignorable and _within(field.versions, valid) != valid,
        "tag": field.tag,
        "writes_null": field.writes_null,
    }


def _expected_facts(definition: FieldDefinition, valid: set[int]) -> dict[str, object]:
    def of(key: str) -> set[int]:
        text = definition.get(key)
        if key == "versions" and text is None:  # a tagged field need not say it twice
            text = definition.get("taggedVersions")
        return _within(VersionRange.parse(text if isinstance(text, str) else "none"), valid)

    tagged = of("taggedVersions")
    assert tagged in (set(), of("versions")), "a field that is tagged in some versions only"
    return {
        "type": re.sub("[A-Z].*", "struct", definition["type"]),
        "versions": of("versions"),
        "nullable": of("nullableVersions"),
        "default": _expected_default(definition),
        # It matters in versions without the field.
        "ignorable": definition.get("ignorable", False) and of("versions") != valid,
        "tag": definition.get("tag"),
        # To Kafka's generator a default is the text "null"; JSON's null is none at all.
        "writes_null": _lacks_default(definition) and definition.get("tag") is not None,
    }


def _within(versions: VersionRange, valid: set[int]) -> set[int]:
    return {version for version in valid if versions.covers(version)}


def _compare(
    cls: type[Struct],
    definitions: list[FieldDefinition],
    shared: Mapping[str, list[FieldDefinition]],
    valid: set[int],
) -> None:
    """Compare order, names and facts of all fields, and those of nested structs."""
    # A struct of several messages may have fields of other versions.
    fields = [f for f in cls.schema if _within(f.versions, valid)]
    expected = [(d, _expected_facts(d, valid)) for d in definitions]
    there = [(d, facts) for d, facts in expected if facts["versions"]]
    assert [f.name for f in fields] == [_snake_case(d["name"]) for d, _ in there]
    for field, (definition, facts) in zip(fields, there, strict=True):
        assert _facts(field, valid) == facts, f"{cls.__name__}.{field.name}"
        wire = field.wire.element if isinstance(field.wire, Array) else field.wire
        if isinstance(wire, Nested):
            inner = definition.get("fields") or shared[definition["type"].removeprefix("[]")]
            _compare(wire.struct, inner, shared, _within(field.versions, valid))


@for_each(MESSAGE_CLASSES)
def test_fields_are_those_of_the_definition(cls: type[Message], definitions: Definitions) -> None:
    definition = definitions[cls.__name__]
    shared = {common["name"]: common["fields"] for common in definition.get("commonStructs", [])}
    assert cls.versions == VersionRange.parse(definition["validVersions"])
    assert cls.flexible == VersionRange.parse(definition["flexibleVersions"])
    _compare(cls, definition["fields"], shared, set(versions(cls)))


@for_each(REQUEST_CLASSES)
def test_requests_have_kafkas_keys_and_stable_versions(
    cls: type[Request[Response]], definitions: Definitions
) -> None:
    definition = definitions[cls.__name__]
    assert cls.api_key == cls.response.api_key == definition["apiKey"]
    assert definitions[cls.response.__name__]["apiKey"] == cls.api_key
    is_unstable = definition.get("latestVersionUnstable", False)
    assert cls.max_version == cls.versions.last - is_unstable


@for_each([*VALUE_OF, TransactionLogKey])
def test_coordinators_records_have_kafkas_record_types(
    cls: type[GroupRecordKey | TransactionLogKey], definitions: Definitions
) -> None:
    assert cls.record_type == definitions[cls.__name__]["apiKey"]
    assert definitions["LegacyOffsetCommitKey"]["apiKey"] == 0
