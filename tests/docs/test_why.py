"""What docs/why.md says of the other clients, asked of these themselves."""

from __future__ import annotations

import importlib.util
import warnings
from importlib.metadata import metadata
from inspect import signature
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.aio import AIOConsumer

import aiokafka_lite
from aiokafka_lite.producing import AIOKafkaProducer
from benchmarks import comparison

with warnings.catch_warnings():  # it reads its own message definitions by old functions
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.coordinator.assignors.cooperative_sticky

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "why.md").read_text()
FEATURES = PAGE.split("## Features")[1].split("\n\n")[2]
HEAD, _, *LINES = (
    [cell.strip() for cell in line.strip("|").split("|")] for line in FEATURES.splitlines()
)
ROWS = {cells[0]: dict(zip(HEAD[1:], cells[1:], strict=True)) for cells in LINES}
OURS, AIOKAFKA, CONFLUENT, KAFKA_PYTHON = HEAD[1:]
PACKAGES = {
    OURS: "aiokafka-lite", AIOKAFKA: "aiokafka", CONFLUENT: "confluent-kafka",
    KAFKA_PYTHON: "kafka-python",
}  # fmt: skip
MODULES = {
    OURS: "aiokafka_lite", AIOKAFKA: "aiokafka", CONFLUENT: "confluent_kafka",
    KAFKA_PYTHON: "kafka",
}  # fmt: skip
COOPERATIVE = "cooperative rebalancing (KIP-429)"
OTHERS = {AIOKAFKA, CONFLUENT, KAFKA_PYTHON}


def has(row: str) -> set[str]:
    """The clients that have what a row is about."""
    return {client for client, cell in ROWS[row].items() if cell == "yes"}


@pytest.mark.parametrize("client", PACKAGES)
def test_status_and_types_are_as_stated(client: str) -> None:
    classifiers = metadata(PACKAGES[client]).get_all("Classifier", [])
    (status,) = (each for each in classifiers if each.startswith("Development Status"))
    assert status.lower().endswith(ROWS["maturity"][client])
    found = importlib.util.find_spec(MODULES[client])
    assert found is not None
    assert found.origin is not None
    is_typed = Path(found.origin).with_name("py.typed").exists()
    assert is_typed == (client in has("types for mypy (`py.typed`)"))


def test_producers_and_admin_clients() -> None:
    producers = (
        AIOKafkaProducer,
        aiokafka.AIOKafkaProducer,
        confluent_kafka.Producer,
        kafka.KafkaProducer,
    )
    assert all(hasattr(each, "commit_transaction") for each in producers)
    assert aiokafka_lite.AIOKafkaProducer is AIOKafkaProducer
    assert has("producer, transactions") == {OURS, *OTHERS}
    assert all(importlib.util.find_spec(f"{MODULES[client]}.admin") for client in OTHERS)
    assert has("admin client") == OTHERS


def test_nobody_else_calls_handlers() -> None:
    assert hasattr(aiokafka_lite.AIOKafkaConsumer, "run")
    for consumer in (aiokafka.AIOKafkaConsumer, confluent_kafka.Consumer, kafka.KafkaConsumer):
        assert not any(hasattr(consumer, name) for name in ("run", "handle", "process", "ack"))
    assert has("concurrent handlers with retries and dead letters") == {OURS}


@pytest.mark.parametrize(
    ("setting", "value", "row"),
    [
        (
            "partition.assignment.strategy",
            "cooperative-sticky",
            "cooperative rebalancing (KIP-429)",
        ),
        ("group.protocol", "consumer", "group protocol of Kafka 4 (KIP-848)"),
        ("group.instance.id", "a", "static membership, `read_committed`, nearest replica"),
        ("client.rack", "a", "static membership, `read_committed`, nearest replica"),
        ("test.mock.num.brokers", 1, "a broker for tests"),
    ],
)
def test_librdkafka_takes_what_is_said_of_it(setting: str, value: object, row: str) -> None:
    assert ROWS[row][CONFLUENT] != "–"
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0, setting: value}
    confluent_kafka.Consumer(settings).close()


def test_what_kafka_python_and_aiokafka_have() -> None:
    settings = kafka.KafkaConsumer.DEFAULT_CONFIG
    assert {"group_instance_id", "isolation_level", "client_rack"} <= settings.keys()
    assert "group_protocol" not in settings
    assert "partition_assignment_strategy" in signature(aiokafka.AIOKafkaConsumer).parameters
    assert "group_protocol" not in signature(aiokafka.AIOKafkaConsumer).parameters
    assert "group_protocol" in signature(aiokafka_lite.AIOKafkaConsumer).parameters
    assert hasattr(aiokafka_lite, "CooperativeStickyPartitionAssignor")
    assert has(COOPERATIVE) == {OURS, CONFLUENT, KAFKA_PYTHON}
    assert has("group protocol of Kafka 4 (KIP-848)") == {OURS, CONFLUENT}
    assert importlib.util.find_spec("kafka.net.sasl.msk") is not None
    assert has("AWS MSK IAM") == {KAFKA_PYTHON}
    assert importlib.util.find_spec("confluent_kafka.schema_registry") is not None
    assert has("schema registry client") == {CONFLUENT}
    assert not hasattr(aiokafka.AIOKafkaConsumer, "metrics")
    assert hasattr(kafka.KafkaConsumer, "metrics")


def test_an_asyncio_consumer_of_confluent_goes_by_threads() -> None:
    assert "thread" in (AIOConsumer.__doc__ or "")
    assert "thread" in ROWS["concurrency"][CONFLUENT]


@pytest.mark.parametrize(
    ("words", "cells"),
    list(
        zip(
            ("KIP-848", "dead letters", "for tests", "admin client"),
            comparison.FEATURES,
            strict=True,
        )
    ),
)
def test_readme_repeats_rows_of_the_page(words: str, cells: tuple[str, ...]) -> None:
    (row,) = (row for title, row in ROWS.items() if words in title)
    assert list(cells[1:]) == [row[OURS], row[AIOKAFKA], row[CONFLUENT]]
