"""Kafka's own message definitions, out of its jars."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from typing import TypedDict

import pytest

from tests.support.real_kafka import KAFKA_VERSION, KafkaUnavailableError, kafka_libs
from tests.support.required import unavailable


class FieldDefinition(TypedDict, total=False):
    """A field as Kafka's JSON files have it."""

    name: str
    type: str
    versions: str
    nullableVersions: str
    taggedVersions: str
    tag: int
    default: str | int | bool
    ignorable: bool
    fields: list[FieldDefinition]


class StructDefinition(TypedDict, total=False):
    """A struct that several fields share."""

    name: str
    fields: list[FieldDefinition]


class MessageDefinition(TypedDict, total=False):
    """A message as Kafka's JSON files have it."""

    name: str
    apiKey: int
    validVersions: str
    flexibleVersions: str
    latestVersionUnstable: bool
    fields: list[FieldDefinition]
    commonStructs: list[StructDefinition]


_JARS = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator")


@pytest.fixture(scope="session")
def definitions() -> Mapping[str, MessageDefinition]:
    """Every message definition of the Kafka release under test, by name."""
    try:
        libs = kafka_libs()
    except KafkaUnavailableError as error:
        unavailable(f"Kafka's message definitions are in its jars: {error}")
    found: dict[str, MessageDefinition] = {}
    for jar in _JARS:
        with zipfile.ZipFile(libs / f"{jar}-{KAFKA_VERSION}.jar") as archive:
            for path in archive.namelist():
                if re.fullmatch(r"common/message/\w+\.json", path):
                    text = archive.read(path).decode()
                    definition = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
                    found[definition["name"]] = definition
    return found
