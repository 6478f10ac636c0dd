"""`produce`, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
from collections.abc import Callable, Sequence

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import CoordinatorLoadInProgressError
from tests.cli.running import Running
from tests.support.cluster import KafkaHandle

pytestmark = pytest.mark.one_loop_each


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Sets what commands read."""

    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return give


async def test_a_broker_that_has_just_started_is_waited_for(
    cli: Running, stdin: Callable[[bytes], None]
) -> None:
    stdin(b"first\n")
    async with Broker() as broker:
        broker.create_topic("t")
        with broker.on("InitProducerId").fail(CoordinatorLoadInProgressError, times=3) as rule:
            ended = await cli("produce", "t", "-b", broker.bootstrap_servers)
        assert (ended.code, rule.hits) == (0, 3)
        assert [record.value for record in broker.records("t")] == [b"first"]


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"a\nb\n\nc", [], [(None, "a"), (None, "b"), (None, ""), (None, "c")]),
        (b"k:v:w\nx\n", ["-K:"], [("k", "v:w"), (None, "x")]),
        (b"k\tv\n", ["-K", r"\t"], [("k", "v")]),
        (b"~:v\nk:~\n", ["-K:", "--null", "~"], [(None, "v"), ("k", None)]),
        (b"a\nb\0c", ["-d", r"\0", "--key", "k"], [("k", "a\nb"), ("k", "c")]),
        (
            b'{"key":"k","value":{"a":1}}\n\n{"value":null}',
            ["-j"],
            [("k", '{"a":1}'), (None, None)],
        ),
        (b"x\n" * 3, ["-z", "zstd"], [(None, "x")] * 3),
        (b"", [], []),
    ],
)
async def test_each_line_becomes_a_record(
    kafka: KafkaHandle,
    cli: Running,
    stdin: Callable[[bytes], None],
    content: bytes,
    options: Sequence[str],
    expected: list[tuple[str | None, str | None]],
) -> None:
    topic, where = await kafka.create_topic(), ["-b", kafka.bootstrap_servers]
    stdin(content)
    ended = await cli("produce", topic, *options, *where)
    assert (ended.code, ended.out, ended.errors) == (0, b"", "")
    records = (await cli("cat", topic, "--json", *where)).objects
    assert [(each["key"], each["value"]) for each in records] == expected


async def test_copy_by_json_is_the_same_topic(
    kafka: KafkaHandle, cli: Running, stdin: Callable[[bytes], None]
) -> None:
    where = ["-b", kafka.bootstrap_servers]
    topic, copy = [await kafka.create_topic(partitions=2) for _ in range(2)]
    at_ms, headers = int(time.time() * 1000) - 60_000, [("h", b"1"), ("h", b"\xff")]
    await kafka.produce(topic, 1, [(b"\xff", None), (None, b"v")], timestamp_ms=at_ms)
    await kafka.produce(topic, 0, [(b"k", b"v")], timestamp_ms=at_ms, headers=headers)
    copied = await cli("cat", topic, "--json", *where)
    stdin(copied.out)
    assert (await cli("produce", copy, "--json", *where)).code == 0
    again = await cli("cat", copy, "--json", *where)
    assert sorted(again.lines) == sorted(line.replace(topic, copy) for line in copied.lines)


async def test_keys_choose_partitions_as_with_javas_producer(
    cli: Running, stdin: Callable[[bytes], None]
) -> None:
    async with Broker() as broker:
        broker.create_topic("t", 7)
        broker.create_topic("expected", 7)
        for number in range(50):
            broker.produce("expected", "v", key=f"key-{number}")
        stdin(b"".join(b"key-%d v\n" % number for number in range(50)))
        await cli("produce", "t", "-K", " ", "-b", broker.bootstrap_servers)
        for partition in range(7):
            keys, expected = (
                [each.key for each in broker.records(name, partition)] for name in ("t", "expected")
            )
            assert keys == expected


@pytest.mark.parametrize("is_carried_out", [False, True])
async def test_what_gets_lost_is_sent_again_and_there_once(
    cli: Running, stdin: Callable[[bytes], None], is_carried_out: bool
) -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 2)
        broker.on("Produce").disconnect(handled=is_carried_out)
        values = [f"value-{number}" for number in range(100)]
        stdin("\n".join(values).encode())
        ended = await cli("produce", "t", "-p", "1", "-b", broker.bootstrap_servers)
        assert (ended.code, ended.errors) == (0, "")
        assert [each.value for each in broker.records("t", 1)] == [v.encode() for v in values]


async def test_bad_line_is_named_and_those_ahead_of_it_are_produced(
    kafka: KafkaHandle, cli: Running, stdin: Callable[[bytes], None]
) -> None:
    topic, where = await kafka.create_topic(), ["-b", kafka.bootstrap_servers]
    stdin(b'{"value":"a"}\n{"value":}\n{"value":"c"}\n')
    ended = await cli("produce", topic, "--json", *where)
    assert ended.code == 1
    assert ended.errors.startswith("error: line 2: not JSON: Expecting value at column 10 (ahead")
    assert ended.errors.endswith("1 record was produced)\n")
    stdin(b"x\n")
    ended = await cli("produce", topic, "-p", "3", *where)
    assert ended.errors.startswith(f"error: line 1: topic {topic} has no partition 3")
    assert (await cli("cat", topic, *where)).lines == ["a"]


async def test_refusal_of_a_broker_is_told(
    kafka: KafkaHandle, cli: Running, stdin: Callable[[bytes], None]
) -> None:
    topic = await kafka.create_topic(configs={"max.message.bytes": "1000"})
    stdin(b"x" * 2_000)
    ended = await cli("produce", topic, "-b", kafka.bootstrap_servers)
    assert ended.code == 1
    assert ended.errors.startswith(f"error: partition 0 of {topic} refuses: ")


async def test_line_is_sent_at_once_where_no_other_is_there(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    program = [sys.executable, "-m", "aiokafka_lite"]
    where = ["-b", kafka.bootstrap_servers]
    producing = await asyncio.create_subprocess_exec(
        *program, "produce", topic, *where, stdin=asyncio.subprocess.PIPE
    )
    following = await asyncio.create_subprocess_exec(
        *program, "cat", topic, "-f", "-c", "2", "--json", *where, stdout=asyncio.subprocess.PIPE
    )
    assert producing.stdin is not None
    assert following.stdout is not None
    for offset, line in enumerate((b"first\n", b"second\n")):
        producing.stdin.write(line)
        seen = json.loads(await asyncio.wait_for(following.stdout.readline(), 30))
        assert (seen["offset"], seen["value"]) == (offset, line.decode().strip())
    producing.stdin.close()
    assert (await producing.wait(), await following.wait()) == (0, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--json", "-K:"], "--json says itself"),
        (["--key", "a", "-K:"], "leave one out"),
        (["-d", ""], "at least one character"),
        (["-H", "x"], "write NAME=VALUE"),
        (["-z", "brotli"], "invalid choice"),
    ],
)
async def test_wrong_usage_is_said(cli: Running, options: Sequence[str], said: str) -> None:
    ended = await cli("produce", "t", "-b", "127.0.0.1:1", *options)
    assert (ended.code, ended.out) == (2, b"")
    assert said in ended.errors
