"""Kafka's own message definitions, out of its jars."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from typing import TypedDict

import pytest

from tests.support.real_kafka import KAFKA_VERSION, KafkaUnavailableError, kafka_libs
from tests.support.required import unavailable
from tests.support.samples import NEWER


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
# The release that has the messages of `NEWER`.
NEWER_RELEASE = "4.4.0"


@pytest.fixture(scope="session")
def definitions() -> Mapping[str, MessageDefinition]:
    """Every message definition of the Kafka release under test, by name."""
    found = _definitions_in(KAFKA_VERSION, _JARS)
    newer = _definitions_in(NEWER_RELEASE, _JARS[:1])
    for field in newer["TxnOffsetCommitRequest"]["fields"]:
        if field["name"] == "GenerationIdOrMemberEpoch":  # as it was called before
            field["name"] = "GenerationId"
    return found | {name: newer[name] for name in NEWER}


def _definitions_in(version: str, jars: Iterable[str]) -> dict[str, MessageDefinition]:
    try:
        libs = kafka_libs(version)
    except KafkaUnavailableError as error:
        unavailable(f"Kafka's message definitions are in its jars: {error}")
    found: dict[str, MessageDefinition] = {}
    for jar in jars:
        with zipfile.ZipFile(libs / f"{jar}-{version}.jar") as archive:
            for path in archive.namelist():
                if re.fullmatch(r"common/message/\w+\.json", path):
                    text = archive.read(path).decode()
                    definition = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
                    found[definition["name"]] = definition
    return found
