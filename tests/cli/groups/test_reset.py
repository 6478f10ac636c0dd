"""`reset`, on the embedded broker and on a real Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from tests.cli.running import Running
from tests.support.cluster import KafkaHandle, unique


@asynccontextmanager
async def member(kafka: KafkaHandle, topic: str, group: str) -> AsyncIterator[AIOKafkaConsumer]:
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group, enable_auto_commit=False
    ) as consumer:
        yield consumer


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    """Ten records in the first of two partitions, of which two are deleted; three in the other."""
    name = await kafka.create_topic(partitions=2)
    await kafka.produce(name, 0, [(None, b"v")] * 10)
    await kafka.produce(name, 1, [(None, b"v")] * 3)
    await kafka.delete_records(name, 0, 2)
    return name


@pytest.fixture
async def group(kafka: KafkaHandle, topic: str) -> str:
    """A group without members that has committed 5 and 1."""
    name = unique("group")
    async with member(kafka, topic, name) as consumer:
        await consumer.commit({TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 1})
    return name


async def committed(cli: Running, kafka: KafkaHandle, group: str) -> list[object]:
    rows = (await cli("lag", group, "--json", "-b", kafka.bootstrap_servers)).objects
    return [row["committed"] for row in rows]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to", "earliest"], [2, 0]),
        (["--to", "latest"], [10, 3]),
        (["--to", "7"], [7, 3]),
        (["--to", "1h"], [2, 0]),
        (["--by", "-1"], [4, 0]),
        (["--by", "-100"], [2, 0]),
        (["--by", "100"], [10, 3]),
    ],
)
async def test_reset_shows_first_and_commits_when_told(
    kafka: KafkaHandle,
    topic: str,
    group: str,
    cli: Running,
    options: Sequence[str],
    expected: list[int],
) -> None:
    arguments = ["reset", group, "--topic", topic, *options, "-b", kafka.bootstrap_servers]
    shown = await cli(*arguments, "--json")
    assert [row["new"] for row in shown.objects] == expected
    assert (shown.code, shown.errors) == (
        0,
        "no offsets were changed: add --execute to change them\n",
    )
    assert await committed(cli, kafka, group) == [5, 1]
    done = await cli(*arguments, "--execute")
    assert (done.code, done.errors) == (
        0,
        f"group {group}: offsets of 2 partitions were changed\n",
    )
    assert await committed(cli, kafka, group) == expected


async def test_only_the_partitions_that_were_named_are_reset(
    kafka: KafkaHandle, topic: str, group: str, cli: Running
) -> None:
    where = ["-b", kafka.bootstrap_servers]
    await cli("reset", group, "--topic", f"{topic}:1", "--to", "3", "--execute", *where)
    assert await committed(cli, kafka, group) == [5, 3]
    ended = await cli("reset", group, "--all-topics", "--to", "latest", *where)
    assert [line.split()[2:] for line in ended.lines[1:]] == [
        ["5", "10", "+5", "0"],
        ["3", "3", "+0", "0"],
    ]


async def test_group_in_use_is_refused(
    kafka: KafkaHandle, topic: str, group: str, cli: Running
) -> None:
    arguments = ["reset", group, "--topic", topic, "--to", "latest", "-b", kafka.bootstrap_servers]
    async with member(kafka, topic, group):
        for more in ([], ["--execute"]):
            ended = await cli(*arguments, *more)
            assert (ended.code, ended.out) == (1, b"")
            assert ended.errors.startswith(
                f"error: group {group} is in use (state Stable, 1 member"
            )
            assert "stop its members" in ended.errors
    assert await committed(cli, kafka, group) == [5, 1]


async def test_group_that_is_not_there_is_made(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    group, where = unique("new"), ["-b", kafka.bootstrap_servers]
    ended = await cli("reset", group, "--topic", topic, "--to", "latest", "--execute", *where)
    assert ended.errors == (
        f"group {group} (newly created): offsets of 2 partitions were changed\n"
    )
    assert await committed(cli, kafka, group) == [10, 3]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--all-topics", "--to", "latest"], "has no committed offsets"),
        (["--topic", "TOPIC", "--by", "1"], "has no committed offset"),
        (["--topic", "TOPIC:7", "--to", "1"], "has no partition 7"),
        (["--topic", "TOPIC:x", "--to", "1"], "is not a list of partitions"),
        (["--topic", "TOPIC-", "--to", "1"], "there is no topic"),
    ],
)
async def test_what_cannot_be_reset_is_said(
    kafka: KafkaHandle, topic: str, cli: Running, options: Sequence[str], said: str
) -> None:
    named = [each.replace("TOPIC", topic) for each in options]
    ended = await cli("reset", unique("none"), *named, "--execute", "-b", kafka.bootstrap_servers)
    assert ended.code in (1, 2)
    assert said in ended.errors
    assert "TOPIC:x" in options or ended.errors.count("\n") <= 2
