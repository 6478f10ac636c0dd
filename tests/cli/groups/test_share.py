"""`share`, and `groups` and `lag` of share groups, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import io
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.protocol.messages.share import ShareGroupHeartbeatRequest
from tests.cli.running import Running, Terminal
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import await_coordinator


@asynccontextmanager
async def member(kafka: KafkaHandle, topic: str, group: str) -> AsyncIterator[None]:
    """A member of a share group that has partitions, and fetches nothing."""
    await await_coordinator(kafka)
    member_id, epoch = str(uuid.uuid4()), 0

    def beat(member_epoch: int, topics: list[str] | None = None) -> ShareGroupHeartbeatRequest:
        return ShareGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=member_epoch,
            subscribed_topic_names=topics,
        )

    async with kafka.raw() as client:
        topics: list[str] | None = [topic]
        while True:
            response = await client.request(beat(epoch, topics))
            assert not response.error_code, response.error_message
            epoch, topics = response.member_epoch, None
            if response.assignment is not None and response.assignment.topic_partitions:
                break
            await asyncio.sleep(0.1)
        yield
        await client.request(beat(-1))


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    """Ten records in the first of two partitions, of which two are deleted; three in the other."""
    name = await kafka.create_topic(partitions=2)
    await kafka.produce(name, 0, [(None, b"v")] * 10)
    await kafka.produce(name, 1, [(None, b"v")] * 3)
    await kafka.delete_records(name, 0, 2)
    return name


@pytest.fixture
def where(kafka: KafkaHandle) -> list[str]:
    return ["-b", kafka.bootstrap_servers]


@pytest.fixture
async def group(cli: Running, topic: str, where: list[str]) -> str:
    """A share group without members that has the start offsets 5 and 3."""
    name = unique("jobs")
    at = ["--topic", topic, "--to", "5", "--execute"]
    ended = await cli("share", "reset", name, *at, *where)
    said = f"group {name} (newly created): offsets of 2 partitions were changed\n"
    assert (ended.code, ended.errors) == (0, said)
    return name


async def start_offsets(cli: Running, group: str, where: Sequence[str]) -> list[object]:
    return [row["start"] for row in (await cli("lag", group, "--json", *where)).objects]


async def test_share_groups_are_listed_with_their_members(
    kafka: KafkaHandle, topic: str, cli: Running, where: list[str]
) -> None:
    group = unique("jobs")
    async with member(kafka, topic, group):
        (row,) = (await cli("groups", group, "--json", *where)).objects
    assert isinstance(row.pop("coordinator"), int)
    assert row == {
        "group": group, "state": "Stable", "type": "share", "members": 1, "assignor": "simple",
    }  # fmt: skip


async def test_lag_of_a_share_group_counts_records_that_are_not_finished(
    kafka: KafkaHandle, topic: str, group: str, cli: Running, where: list[str]
) -> None:
    common = {"group": group, "topic": topic, "members": 1, "clients": ["raw"]}
    async with member(kafka, topic, group):
        rows = (await cli("lag", group, "--json", *where)).objects
        assert rows == [
            {**common, "partition": 0, "start": 5, "end": 10, "lag": 5},
            {**common, "partition": 1, "start": 3, "end": 3, "lag": 0},
        ]
        lines = (await cli("lag", group, *where)).lines
    assert lines[0] == f"share group {group}: Stable, 1 member, lag 5 in 2 partitions"
    assert lines[2].split() == [topic, "0", "5", "10", "5", "1", "raw"]


async def test_partitions_without_acknowledgements_have_no_start_offset_yet(
    kafka: KafkaHandle, topic: str, cli: Running, where: list[str]
) -> None:
    group = unique("jobs")
    async with member(kafka, topic, group):
        lines = (await cli("lag", group, *where)).lines
    assert lines[0] == f"share group {group}: Stable, 1 member, lag unknown for 2 partitions"
    assert lines[3].split() == [topic, "1", "-", "3", "-", "1", "raw"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to", "earliest"], [2, 0]),
        (["--to", "latest"], [10, 3]),
        (["--to", "1h"], [2, 0]),
        (["--by", "-1"], [4, 2]),
    ],
)
async def test_share_reset_shows_first_and_changes_when_told(
    cli: Running,
    topic: str,
    group: str,
    where: list[str],
    options: Sequence[str],
    expected: list[int],
) -> None:
    arguments = ["share", "reset", group, "--topic", topic, *options, *where]
    shown = await cli(*arguments, "--json")
    assert [row["new"] for row in shown.objects] == expected
    said = "no offsets were changed: add --execute to change them\n"
    assert (shown.code, shown.errors) == (0, said)
    assert await start_offsets(cli, group, where) == [5, 3]
    assert (await cli(*arguments, "--execute")).code == 0
    assert await start_offsets(cli, group, where) == expected


async def test_share_group_in_use_is_neither_reset_nor_deleted(
    kafka: KafkaHandle, topic: str, group: str, cli: Running, where: list[str]
) -> None:
    async with member(kafka, topic, group):
        for command in (
            ["reset", group, "--all-topics", "--to", "latest"],
            ["delete", group, "-y"],
        ):
            ended = await cli("share", *command, *where)
            assert (ended.code, ended.out) == (1, b"")
            assert ended.errors == (
                f"error: group {group} is in use (state Stable, 1 member: raw at 127.0.0.1): stop "
                "its members, because a share group is only changed without members\n"
            )
    assert await start_offsets(cli, group, where) == [5, 3]


async def test_groups_of_the_other_type_are_refused(
    kafka: KafkaHandle, topic: str, group: str, cli: Running, where: list[str]
) -> None:
    ended = await cli("reset", group, "--topic", topic, "--to", "latest", *where)
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors == f"error: group {group} is a share group: use `share reset`\n"
    other = unique("group")
    async with AIOKafkaConsumer(
        topic, group_id=other, bootstrap_servers=kafka.bootstrap_servers, group_protocol="classic"
    ) as consumer:
        await consumer.commit({TopicPartition(topic, 0): 3})
    for command in (
        ["reset", other, "--topic", topic, "--to", "latest"], ["delete", other, "-y"],
        ["config", other],
    ):  # fmt: skip
        ended = await cli("share", *command, *where)
        assert (ended.code, ended.out) == (1, b"")
        assert ended.errors == f"error: group {other} is not a share group (type classic)\n"


async def test_share_groups_are_deleted_after_a_confirmation(
    topic: str, group: str, cli: Running, where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ended = await cli("share", "delete", group, *where)
    assert (ended.code, ended.out) == (2, b"")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    ended = await cli("share", "delete", group, *where)
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors == (
        f"share group {group}: Empty, 0 members, lag 5 in 2 partitions\n"
        "Delete 1 share group? [y/N] error: the deletion was not confirmed\n"
    )
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    ended = await cli("share", "delete", group, f"{group}s", *where)
    assert (ended.code, ended.lines) == (1, [f"deleted {group}"])
    assert ended.errors.endswith(f"error: there is no group {group}s; did you mean {group}?\n")
    ended = await cli("groups", group, *where)
    assert ended.code == 1


async def test_offsets_of_one_topic_are_deleted(
    kafka: KafkaHandle, topic: str, group: str, cli: Running, where: list[str]
) -> None:
    other = await kafka.create_topic()
    at = ["--topic", other, "--to", "earliest", "--execute"]
    assert (await cli("share", "reset", group, *at, *where)).code == 0
    ended = await cli("share", "delete", group, "--topic", topic, "--yes", *where)
    assert (ended.code, ended.lines, ended.errors) == (0, [f"deleted {group} (topic {topic})"], "")
    rows = (await cli("lag", group, "--json", *where)).objects
    assert [row["topic"] for row in rows] == [other]
    ended = await cli("share", "delete", group, "--topic", topic, "--yes", *where)
    assert (ended.code, ended.out) == (1, b"")
    said = f"error: group {group} has no offsets and no members for topic {topic}\n"
    assert ended.errors == said


async def test_settings_of_a_share_group_are_made_before_the_group(
    cli: Running, where: list[str]
) -> None:
    group = unique("jobs")

    async def settings(*options: str) -> dict[object, dict[str, object]]:
        ended = await cli("share", "config", group, "--json", *options, *where)
        assert (ended.code, ended.errors) == (0, "")
        return {row["name"]: row for row in ended.objects}

    name = "share.auto.offset.reset"
    assert name not in await settings()
    changed = await settings("--set", f"{name}=earliest")
    assert changed[name] == {
        "group": group, "name": name, "value": "earliest", "source": "group", "default": "latest",
    }  # fmt: skip
    every = await settings("--every")
    assert every["share.record.lock.duration.ms"]["value"] == "30000"
    assert all(str(each).startswith("share.") for each in every)
    assert name not in await settings("--unset", name)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ("share.isolation.levels=read_committed", 2, "did you mean share.isolation.level?"),
        ("consumer.session.timeout.ms=50000", 2, "groups have no setting consumer.session"),
        ("share.isolation.level=none", 1, "was not changed: Invalid value none for"),
    ],
)
async def test_wrong_settings_of_a_share_group_are_refused(
    cli: Running, where: list[str], change: str, code: int, said: str
) -> None:
    ended = await cli("share", "config", unique("jobs"), "--set", change, *where)
    assert (ended.code, ended.out) == (code, b"")
    assert said in ended.errors
