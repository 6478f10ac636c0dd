"""`topics` and `describe`, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.cli import topics
from aiokafka_lite.cli.asking import place
from aiokafka_lite.cli.connecting import Connecting
from aiokafka_lite.cli.reading import Span
from aiokafka_lite.errors import TopicAuthorizationFailedError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.cli.running import Running
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import until


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    """Three records in the first of two partitions, of which one is deleted."""
    name = await kafka.create_topic(partitions=2, configs={"retention.ms": "86400000"})
    await kafka.produce(name, 0, [(b"k", b"v")] * 3)
    await kafka.delete_records(name, 0, 1)
    return name


async def test_topics_are_listed_with_what_they_hold(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    where = ["-b", kafka.bootstrap_servers]
    (row,) = (await cli("topics", topic, "--json", *where)).objects
    size = row.pop("bytes")
    if kafka.kind == "embedded":
        assert size is None  # it does not tell
    else:
        assert isinstance(size, int)
        assert size > 0
    assert row == {
        "topic": topic, "partitions": 2, "replicas": 1, "under_replicated": 0, "records": 2,
    }  # fmt: skip
    ended = await cli("topics", f"{topic[:-1]}*", *where)
    assert ended.lines[0].split() == [
        "TOPIC", "PARTITIONS", "REPLICAS", "UNDER-REPLICATED", "RECORDS", "SIZE",
    ]  # fmt: skip
    assert ended.lines[1].split()[:5] == [topic, "2", "1", "0", "2"]


async def test_names_alone_leave_internal_topics_out(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    names = (await cli("topics", "-q", "-b", kafka.bootstrap_servers)).lines
    assert topic in names
    assert "__consumer_offsets" not in names
    ended = await cli("topics", unique("none") + "*", "-b", kafka.bootstrap_servers)
    assert (ended.code, ended.out, ended.errors) == (0, b"", "no topics\n")


async def test_topics_that_do_not_exist_are_named_and_the_others_listed(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    where = ["-b", kafka.bootstrap_servers]
    said = f"error: there is no topic {topic}x; did you mean {topic}?\n"
    for form in ([], ["-q"], ["--json"]):
        ended = await cli("topics", f"{topic}x", topic, "none-*", *form, *where)
        assert (ended.code, ended.errors) == (1, said)
        assert topic in ended.lines[-1]
        ended = await cli("topics", f"{topic}x", *form, *where)
        assert (ended.code, ended.out, ended.errors) == (1, b"", said)


async def test_describe_shows_partitions_offsets_and_what_was_set(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    (shown,) = (await cli("describe", topic, "--json", "-b", kafka.bootstrap_servers)).objects
    partitions = shown["partitions"]
    assert isinstance(partitions, list)
    leader = partitions[0]["leader"]
    assert shown["configs"] == {"retention.ms": "86400000"}
    assert [{**each, "bytes": None} for each in partitions] == [
        {
            "partition": number, "leader": leader, "replicas": [leader], "in_sync": [leader],
            "begin": begin, "end": end, "records": end - begin, "bytes": None,
        }
        for number, begin, end in ((0, 1, 3), (1, 0, 0))
    ]  # fmt: skip
    lines = (await cli("describe", topic, "-b", kafka.bootstrap_servers)).lines
    assert lines[0] == f"{topic}  (id {shown['topic_id']})"
    assert lines[1] == "  retention.ms=86400000"
    assert lines[3].split()[:6] == ["0", str(leader), str(leader), str(leader), "1", "3"]


async def test_describe_measures_what_came_since_some_time(
    kafka: KafkaHandle, cli: Running
) -> None:
    topic = await kafka.create_topic(partitions=2)
    command = ["describe", topic, "-b", kafka.bootstrap_servers]
    assert (await cli(*command)).lines[-1] == "in the last 60 s: no records"
    assert (await cli(*command, "--since", "earliest")).lines[-1] == "no records"
    hour_ago_ms = int(time.time() * 1000) - 3_600_000
    await kafka.produce(topic, 0, [(b"key", b"x" * 2_045)], timestamp_ms=hour_ago_ms)
    headers = [("name", b"value"), ("none", None)]
    await kafka.produce(topic, 1, [(None, None), (b"k", b"v" * 606)], headers=headers)
    (shown,) = (await cli(*command, "--json")).objects
    lately = cast("dict[str, float]", shown["sample"])
    assert lately.pop("seconds") == pytest.approx(60, rel=0.1)
    assert lately.pop("bytes_per_second") == pytest.approx(633 / 60, rel=0.1)
    assert lately == {
        "records": 2, "records_per_second": 0.0, "read": 2,
        "largest_record": {"bytes": 620, "partition": 1, "offset": 1},
    }  # fmt: skip
    line = (await cli(*command)).lines[-1]
    assert re.fullmatch(
        r"in the last 6\d s: 2 records, 0.0 records/s, 1\d B/s; "
        r"largest record: 620 B \(partition 1, offset 1\)",
        line,
    )
    for since in ("2h", "earliest", "0"):
        line = (await cli(*command, "--since", since)).lines[-1]
        assert line.startswith(f"in the last {'7,2' if since == '2h' else '3,6'}")
        assert "s: 3 records, " in line
        assert line.endswith("largest record: 2.0 KiB (partition 0, offset 0)")


async def test_describe_starts_no_consumer_for_an_empty_topic(
    cli: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **_more: object) -> None:
        raise AssertionError("it needs no consumer")

    monkeypatch.setattr(Connecting, "consumer", start)
    async with Broker() as broker:
        broker.create_topic("t")
        ended = await cli("describe", "t", "-b", broker.bootstrap_servers)
        assert ended.lines[-1] == "in the last 60 s: no records"


async def test_describe_reads_no_more_than_a_part_by_default(
    cli: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MOST_SAMPLED_BYTES", 1_000)
    async with Broker() as broker:
        broker.create_topic("t")
        for _ in range(2):  # as much as a consumer fetches at a time
            broker.produce_all("t", [NewRecord(b"x" * 1_000)] * 5_000)
        where = ["-b", broker.bootstrap_servers]
        for options, is_all in ([], False), (["--since", "1m"], True):
            (shown,) = (await cli("describe", "t", "--json", *options, *where)).objects
            found = cast("dict[str, float]", shown["sample"])
            assert found["records"] == 10_000
            assert (found["read"] == 10_000) == is_all
            assert found["bytes_per_second"] == pytest.approx(10_000_000 / 60, rel=0.1)
        assert " read: 1000 B (" in (await cli("describe", "t", *where)).lines[-1]
        with broker.on("Fetch").fail(TopicAuthorizationFailedError, times=None):
            ended = await cli("describe", "t", *where)
        assert (ended.code, len(ended.lines)) == (0, 3)
        assert ended.errors.startswith("warning: cannot read the records to compute rates")


async def test_describe_names_the_topic_that_may_be_meant(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    ended = await cli("describe", topic, f"{topic}x", "-b", kafka.bootstrap_servers)
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors == f"error: there is no topic {topic}x; did you mean {topic}?\n"


async def test_offsets_of_several_leaders_are_found(cli: Running) -> None:
    async with Broker(nodes=3) as broker:
        broker.create_topic("spread", 6)
        for partition in range(6):
            for _ in range(partition):
                broker.produce("spread", "x", partition=partition)
        where = ["-b", broker.bootstrap_servers]
        (shown,) = (await cli("describe", "spread", "--json", *where)).objects
        assert (await cli("cat", "spread", *where)).lines == ["x"] * 15
    partitions = shown["partitions"]
    assert isinstance(partitions, list)
    assert [each["records"] for each in partitions] == [0, 1, 2, 3, 4, 5]
    assert len({each["leader"] for each in partitions}) == 3


@pytest.mark.parametrize("command", ["topics", "describe", "groups", "lag"])
async def test_no_broker_is_one_line(command: str, cli: Running) -> None:
    names = [] if command in ("topics", "groups") else ["x"]
    ended = await cli(command, *names, "-b", "127.0.0.1:1")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors.startswith("error: no broker can be used: cannot connect to 127.0.0.1:1")
    assert ended.errors.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["cat"], ["describe"], ["replay"], ["reset", "g", "--to", "0", "--topic"]]
)
async def test_a_topic_that_is_deleted_during_the_command_is_one_line(
    command: list[str], cli: Running
) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 2)
        with broker.on("ListOffsets").hold() as held:
            running = asyncio.ensure_future(cli(*command, "t", "-b", broker.bootstrap_servers))
            await until(lambda: held.hits > 0)
            broker.delete_topic("t")
        ended = await running
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors.splitlines()[-1] == "error: topic t was deleted during the command"


async def test_messages_without_a_timestamp_do_not_date_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of magic 0 have none."""

    async def read(*_: object, **__: object) -> AsyncIterator[list[ConsumerRecord]]:
        for offset, timestamp in enumerate((None, 90_000, None, 95_000)):
            yield [
                ConsumerRecord(
                    "t", 0, offset, timestamp, None, b"k", b"v", None, 1, 1, ()  # type: ignore[arg-type]
                )
            ]  # fmt: skip

    monkeypatch.setattr(topics, "read_spans", read)
    where: Any = SimpleNamespace()
    spans = {TopicPartition("t", 0): Span(0, 4)}
    sample = await topics._sample(where, spans, place("earliest"), 100.0, is_all_wanted=True)
    assert sample is not None
    assert (sample.seconds, sample.read) == (10.0, 4)
