"""Kafka's own command-line tools print the same on the embedded broker and on Kafka."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.broker.clients.conftest import BothKafkas
from tests.broker.groups.share.requests import ShareGroupRequests
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator

pytestmark = [pytest.mark.java, pytest.mark.real_kafka]

LINES = b"".join(b"key %d\tvalue %d\n" % (number % 5, number) for number in range(40))


def make_topic(both: BothKafkas, partitions: int = 3, *configs: str) -> None:
    overrides = [word for config in configs for word in ("--config", config)]
    both.prints(
        "topics", "--create", "--topic", both.topic, "--partitions", str(partitions), *overrides
    )
    both.prints("topics", "--describe", "--topic", both.topic)  # Kafka's brokers know of it


def fill_topic(both: BothKafkas, partitions: int = 3) -> None:
    """Make a topic of 40 records."""
    make_topic(both, partitions)
    produce = ("console-producer", "--topic", both.topic, "--reader-property", "parse.key=true")
    both.prints(*produce, stdin=LINES)


def consume(both: BothKafkas) -> None:
    """Read all 40 in the group, which commits that on its way out."""
    read = both.prints(
        "console-consumer", "--topic", both.topic, "--group", both.group, "--from-beginning",
        "--max-messages", "40", "--timeout-ms", "20000",
    )  # fmt: skip
    assert sorted(read.splitlines()) == sorted(f"value {number}" for number in range(40))


# --- kafka-topics ----------------------------------------------------------------------------
def test_topics_are_created_listed_and_described_alike(both: BothKafkas) -> None:
    make_topic(both, 3, "retention.ms=100000", "cleanup.policy=compact,delete")
    again = ("topics", "--create", "--topic", both.topic)
    assert "already exists" in both.refuses(*again)
    both.prints(*again, "--if-not-exists")
    both.prints(
        "topics", "--create", "--topic", f"{both.topic}-by-hand", "--replica-assignment", "1,1"
    )
    listed = both.prints("topics", "--list", "--topic", f"{both.topic}.*")
    assert listed.split() == [both.topic, f"{both.topic}-by-hand"]
    described = both.prints("topics", "--describe", "--topic", both.topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=100000" in described
    both.prints("topics", "--describe", "--topic", f"{both.topic}.*")
    for choice in (
        "--topics-with-overrides",
        "--under-replicated-partitions",
        "--under-min-isr-partitions",
        "--at-min-isr-partitions",
        "--unavailable-partitions",
    ):
        both.prints("topics", "--describe", "--topic", both.topic, choice)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--partitions", "0"], "must be greater than 0"),
        (["--partitions", "1", "--replication-factor", "9"], "cannot be reached"),
        (["--config", "nope=1"], "Unknown topic config name"),
        (["--config", "retention.ms=soon"], "Not a number"),
        (["--config", "segment.bytes=1"], "at least 1048576"),
        (["--replica-assignment", "1,9"], "no such broker"),
    ],
)
def test_topics_are_refused_alike(both: BothKafkas, arguments: list[str], reason: str) -> None:
    refused = both.refuses("topics", "--create", "--topic", both.topic, *arguments)
    assert reason in refused


def test_partitions_are_added_and_topics_deleted_alike(both: BothKafkas) -> None:
    make_topic(both, 3)
    alter = ("topics", "--alter", "--topic", both.topic, "--partitions")
    both.prints(*alter, "4")
    assert "PartitionCount: 4" in both.prints("topics", "--describe", "--topic", both.topic)
    assert "already has 4" in both.refuses(*alter, "4")
    assert "would not be an increase" in both.refuses(*alter, "2")
    both.prints("topics", "--delete", "--topic", both.topic)
    assert "does not exist" in both.refuses("topics", "--describe", "--topic", both.topic)
    assert "does not exist" in both.refuses("topics", "--delete", "--topic", both.topic)
    assert "invalid" in both.refuses("topics", "--create", "--topic", "a b")


# --- kafka-configs ---------------------------------------------------------------------------
def test_topic_configs_are_changed_and_described_alike(both: BothKafkas) -> None:
    make_topic(both)
    of_topic = ("--entity-type", "topics", "--entity-name", both.topic)
    alter, describe = ("configs", "--alter", *of_topic), ("configs", "--describe", *of_topic)
    both.prints(*alter, "--add-config", "retention.ms=5000,max.message.bytes=2000")
    assert "retention.ms=5000" in both.prints(*describe)
    everything = both.prints(*describe, "--all")
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000" in everything
    assert "DEFAULT_CONFIG:message.max.bytes=1048588" in everything
    both.prints(*alter, "--delete-config", "retention.ms")
    assert "retention.ms" not in both.prints(*describe)
    both.prints(*alter, "--add-config", "cleanup.policy=[compact,delete]")
    assert "cleanup.policy=compact,delete" in both.prints(*describe)
    assert "Not a number" in both.refuses(*alter, "--add-config", "retention.ms=soon")
    assert "Unknown topic config" in both.refuses(*alter, "--add-config", "nope=1")


def test_configs_of_groups_are_changed_alike(both: BothKafkas) -> None:
    config, name = "consumer.session.timeout.ms=50000", "consumer.session.timeout.ms"
    which = ("--entity-type", "groups", "--entity-name", both.group)
    both.prints("configs", "--alter", *which, "--add-config", config)
    assert config in both.prints("configs", "--describe", *which)
    both.prints("configs", "--alter", *which, "--delete-config", name)
    short = ("configs", "--alter", *which, "--add-config", "consumer.session.timeout.ms=5")
    refused = both.refuses(*short)
    assert "group.consumer.min.session.timeout.ms" in refused


def test_brokers_keep_what_they_were_started_with(both: BothKafkas) -> None:
    which = ("--entity-type", "brokers", "--entity-name", "1")
    assert "Dynamic configs for broker 1" in both.prints("configs", "--describe", *which)
    refused = both.refuses("configs", "--alter", *which, "--add-config", "num.partitions=3")
    assert "Cannot update these configs dynamically" in refused
    refused = both.refuses("configs", "--alter", *which, "--add-config", "message.max.bytes=x")
    assert "Not a number of type INT" in refused


# --- Records ---------------------------------------------------------------------------------
def test_offsets_are_found_and_records_deleted_alike(both: BothKafkas, json_file: Path) -> None:
    fill_topic(both)
    offsets = ("get-offsets", "--topic", both.topic)
    ends = {line.rpartition(":")[0]: int(line.rpartition(":")[2])
            for line in both.prints(*offsets).split()}  # fmt: skip
    assert sum(ends.values()) == 40
    for time in ("-2", "earliest-local", "latest-tiered", "0"):
        both.prints(*offsets, "--time", time)
    full = max(ends, key=ends.__getitem__)
    partition = int(full.rpartition(":")[2])
    deleted = {"topic": both.topic, "partition": partition, "offset": 2}
    json_file.write_text(json.dumps({"partitions": [deleted], "version": 1}))
    both.prints("delete-records", "--offset-json-file", str(json_file))
    assert f"{full}:2" in both.prints(*offsets, "--time", "earliest")
    deleted["offset"] = 1_000
    json_file.write_text(json.dumps({"partitions": [deleted], "version": 1}))
    both.run("delete-records", "--offset-json-file", str(json_file))
    both.refuses("get-offsets", "--topic", "nope")


def test_keys_headers_and_offsets_are_read_alike(both: BothKafkas) -> None:
    make_topic(both, 1)
    header_lines = b"a:1,b:2\tkey\tvalue\nc:3\tkey 2\tvalue 2\n"
    properties = [word for name in ("parse.key=true", "parse.headers=true")
                  for word in ("--reader-property", name)]  # fmt: skip
    both.prints("console-producer", "--topic", both.topic, *properties, stdin=header_lines)
    shown = [word for what in ("key", "headers", "partition", "offset")
             for word in ("--formatter-property", f"print.{what}=true")]  # fmt: skip
    read = both.prints(
        "console-consumer", "--topic", both.topic, "--partition", "0", "--offset", "earliest",
        "--max-messages", "2", "--timeout-ms", "20000", *shown,
    )  # fmt: skip
    assert "Partition:0\tOffset:0\ta:1,b:2\tkey\tvalue" in read


# --- kafka-consumer-groups -------------------------------------------------------------------
def test_groups_are_described_reset_and_deleted_alike(both: BothKafkas) -> None:
    fill_topic(both)
    consume(both)
    group = ("consumer-groups", "--group", both.group)
    assert both.topic in both.prints(*group, "--describe")
    both.prints(*group, "--describe", "--offsets", "--verbose")
    both.prints(*group, "--describe", "--members", "--verbose")
    assert "Empty" in both.prints(*group, "--describe", "--state")
    reset = (*group, "--reset-offsets", "--topic", both.topic)
    both.prints(*reset, "--to-earliest", "--dry-run")
    both.prints(*reset, "--to-earliest", "--execute")
    both.prints(*reset, "--shift-by", "2", "--execute")
    both.prints(*reset, "--to-offset", "1", "--execute")
    both.prints(*reset, "--to-datetime", "2000-01-01T00:00:00.000", "--dry-run")
    both.prints(*group, "--reset-offsets", "--all-topics", "--to-latest", "--execute", "--export")
    both.prints(*group, "--describe")
    both.prints(*group, "--delete-offsets", "--topic", f"{both.topic}:0")
    assert f"{both.topic}     0" not in both.prints(*group, "--describe")
    both.run(*group, "--delete-offsets", "--topic", "nope")
    assert "was successful" in both.prints(*group, "--delete")
    both.run(*group, "--describe")
    both.run(*group, "--delete")


# --- kafka-share-groups ----------------------------------------------------------------------
async def join_share_groups(both: BothKafkas) -> None:
    """Have the member "m" in the group of both, with the topic's three partitions."""
    for kind, address in (("embedded", both.embedded), ("real", both.real)):
        kafka = KafkaHandle("embedded" if kind == "embedded" else "real", address)
        await await_coordinator(kafka)
        member = ShareGroupRequests(kafka, both.group).of("m", both.topic)
        await member.join()
        await member.until(lambda member=member: member.count == 3)  # type: ignore[misc]


async def leave_share_groups(both: BothKafkas) -> None:
    for address in (both.embedded, both.real):
        await ShareGroupRequests(KafkaHandle("real", address), both.group).beat("m", -1)


def test_share_groups_are_described_reset_and_deleted_alike(both: BothKafkas) -> None:
    fill_topic(both)
    both.prints(
        "configs", "--alter", "--entity-type", "groups", "--entity-name", both.group,
        "--add-config", "share.assignment.interval.ms=0,share.auto.offset.reset=earliest",
    )  # fmt: skip
    asyncio.run(join_share_groups(both))
    group = ("share-groups", "--group", both.group)
    for address in (both.embedded, both.real):
        where = ("share-groups", "--bootstrap-server", address)
        assert both.group in both.runner.run(*where, "--list", "--state", "Stable").stdout.split()
    assert f"{both.topic}:0,1,2" in both.prints(*group, "--describe", "--members", "--verbose")
    assert "Stable" in both.prints(*group, "--describe", "--state", "--verbose")
    both.prints(*group, "--describe", "--offsets", "--verbose")
    both.run(*group, "--delete")
    reset = (*group, "--reset-offsets", "--topic", both.topic)
    both.run(*reset, "--to-earliest", "--execute")
    asyncio.run(leave_share_groups(both))
    assert "Empty" in both.prints(*group, "--describe", "--state")
    both.prints(*reset, "--to-earliest", "--dry-run")
    both.prints(*reset, "--to-latest", "--execute")
    both.prints(*group, "--describe")
    both.prints(*group, "--delete-offsets", "--topic", both.topic)
    both.run(*group, "--delete-offsets", "--topic", "nope")
    assert "was successful" in both.prints(*group, "--delete")
    both.run(*group, "--describe")
    both.run(*group, "--delete")
