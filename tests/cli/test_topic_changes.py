"""`topics create`, `topics delete` and `topics config`, on both brokers."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

import pytest

from tests.cli.running import Running, Terminal
from tests.support.cluster import KafkaHandle, unique


async def test_topics_are_created_and_ready(kafka: KafkaHandle, cli: Running) -> None:
    names, where = [unique("made"), unique("made")], ["-b", kafka.bootstrap_servers]
    chosen = ["--partitions", 3, "--replication", 1, "--config", "cleanup.policy=compact"]
    ended = await cli("topics", "create", *names, *chosen, *where)
    said = [f"created {name}: 3 partitions, 1 replica" for name in names]
    assert (ended.code, sorted(ended.lines), ended.errors) == (0, sorted(said), "")
    (shown,) = (await cli("describe", names[1], "--json", *where)).objects
    assert shown["configs"] == {"cleanup.policy": "compact"}
    assert len(shown["partitions"]) == 3  # type: ignore[arg-type]


async def test_topic_that_cannot_be_created_is_named_and_the_others_are(
    kafka: KafkaHandle, cli: Running
) -> None:
    there, new, where = await kafka.create_topic(), unique("made"), ["-b", kafka.bootstrap_servers]
    ended = await cli("topics", "create", there, new, *where)
    assert (ended.code, len(ended.lines)) == (1, 1)
    assert ended.lines[0].startswith(f"created {new}: ")
    said = f"error: {there} was not created: Topic '{there}' already exists.\n"
    assert ended.errors == said
    ended = await cli("topics", "create", unique("made"), "--config", "no.such=1", *where)
    assert (ended.code, ended.out) == (1, b"")
    assert "no.such" in ended.errors
    for option, number, limit in (("-p", 1 << 31, "2,147,483,647"), ("-r", 1 << 15, "32,767")):
        ended = await cli("topics", "create", new, option, number, *where)
        assert ended.code == 2
        assert f"'{number}' is too large: the limit is {limit}" in ended.errors


async def test_topics_are_deleted_and_those_that_are_not_there_are_named(
    kafka: KafkaHandle, cli: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, where = await kafka.create_topic(partitions=2), ["-b", kafka.bootstrap_servers]
    await kafka.produce(topic, 1, [(None, b"v")] * 3)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ended = await cli("topics", "delete", topic, *where)
    assert (ended.code, ended.out) == (2, b"")
    assert "add --yes" in ended.errors
    for answer in ("n", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        ended = await cli("topics", "delete", topic, *where)
        assert (ended.code, ended.out) == (1, b"")
        assert ended.errors.startswith(f"{topic}: 2 partitions, 3 records\nDelete 1 topic? [y/N] ")
        assert ended.errors.endswith("error: the deletion was not confirmed\n")
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    ended = await cli("topics", "delete", topic, f"{topic}x", *where)
    assert (ended.code, ended.lines) == (1, [f"deleted {topic}"])
    said = f"error: there is no topic {topic}x; did you mean {topic}?\n"
    assert ended.errors.endswith(said)
    for _ in range(2):
        ended = await cli("topics", "delete", topic, "--yes", *where)
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors.startswith(f"error: there is no topic {topic}")


async def test_settings_are_made_taken_away_and_shown(kafka: KafkaHandle, cli: Running) -> None:
    topic = await kafka.create_topic(configs={"retention.ms": "1000"})
    command = ["topics", "config", topic, "-b", kafka.bootstrap_servers]

    async def set_for_topic(*changes: str) -> dict[object, object]:
        ended = await cli(*command, *changes, "--json")
        assert (ended.code, ended.errors) == (0, "")
        return {row["name"]: row["value"] for row in ended.objects if row["source"] == "topic"}

    assert await set_for_topic() == {"retention.ms": "1000"}
    changed = await set_for_topic("--set", "max.message.bytes=5000", "--unset", "retention.ms")
    assert changed == {"max.message.bytes": "5000"}
    every = (await cli(*command, "--every", "--json")).objects
    assert len(every) > 20
    (row,) = [each for each in every if each["name"] == "max.message.bytes"]
    assert row == {
        "topic": topic, "name": "max.message.bytes", "value": "5000", "source": "topic",
        "default": "message.max.bytes=1048588",
    }  # fmt: skip
    lines = (await cli(*command)).lines
    assert lines[0].split() == ["TOPIC", "SETTING", "VALUE", "SET", "IN", "DEFAULT"]
    ended = await cli(*command, "--set", "max.message.bytes=many", "--unset", "retention.ms")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors.startswith(f"error: {topic} was not changed: Invalid value many for ")
    assert await set_for_topic() == {"max.message.bytes": "5000"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "max.message.byte=1"], "did you mean max.message.bytes?"),
        (["--set", "retention.ms=1", "--unset", "retention.ms"], "retention.ms is named twice"),
    ],
)
async def test_wrong_changes_are_said(
    kafka: KafkaHandle, cli: Running, options: Sequence[str], said: str
) -> None:
    topic = await kafka.create_topic()
    ended = await cli("topics", "config", topic, *options, "-b", kafka.bootstrap_servers)
    assert (ended.code, ended.out) == (2, b"")
    assert said in ended.errors
