"""`produce`, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import CoordinatorLoadInProgressError
from tests.cli.running import Running
from tests.support.cluster import KafkaHandle
from tests.support.programs import started
from tests.support.rounds import LONG
from tests.support.waiting import until

LINES = 500_000 if LONG else 50_000


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
            b'\xef\xbb\xbf{"key":"k","value":{"a":1}}\n\n{"value":null}',
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


async def test_an_input_that_cannot_be_read_is_told_of_with_what_is_written(
    cli: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        def __init__(self) -> None:
            self.pieces = [b"a\nb\nc"]

        def fileno(self) -> int:
            raise OSError

        def read(self, _: int) -> bytes:
            if not self.pieces:
                raise OSError(errno.EIO, "Input/output error")
            return self.pieces.pop()

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Stream()))
    async with Broker() as broker:
        broker.create_topic("t")
        ended = await cli("produce", "t", "-b", broker.bootstrap_servers)
    assert (ended.code, ended.errors) == (
        1, "error: cannot read the standard input: Input/output error; 2 lines were written\n",
    )  # fmt: skip


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
    stdin(b'{"value":"a"}\n\n{"value":}\n{"value":"c"}\n')
    ended = await cli("produce", topic, "--json", *where)
    said = "error: line 3: not JSON: Expecting value at column 10; 1 line was written\n"
    assert (ended.code, ended.errors) == (1, said)
    stdin(b"x\n")
    ended = await cli("produce", topic, "-p", "3", *where)
    assert ended.errors == (
        f"error: line 1: topic {topic!r} has no partition 3: its highest partition number is 0; 0 "
        "lines were written\n"
    )
    assert (await cli("cat", topic, *where)).lines == ["a"]


async def test_lines_that_fit_one_by_one_are_taken_however_small_the_topics_limit(
    kafka: KafkaHandle, cli: Running, stdin: Callable[[bytes], None]
) -> None:
    topic, where = (
        await kafka.create_topic(configs={"max.message.bytes": "1000"}),
        ["-b", kafka.bootstrap_servers],
    )
    lines = [b"%d" % number * 50 for number in range(300)]
    stdin(b"\n".join(lines))
    ended = await cli("produce", topic, *where)
    assert (ended.code, ended.errors) == (0, "")
    assert (await cli("cat", topic, *where)).out.splitlines() == lines


async def test_the_line_that_is_refused_is_named_and_the_others_are_written(
    kafka: KafkaHandle, cli: Running, stdin: Callable[[bytes], None]
) -> None:
    topic, where = (
        await kafka.create_topic(configs={"max.message.bytes": "1000"}),
        ["-b", kafka.bootstrap_servers],
    )
    lines = [b'{"value":"%d"}' % number for number in range(20)]
    lines[13:13] = [b"", b'{"value":"%s"}' % (b"x" * 2_000)]  # line 15
    stdin(b"\n".join(lines))
    ended = await cli("produce", topic, "--json", *where)
    assert ended.code == 1
    assert ended.errors.startswith("error: line 15: ")
    assert ended.errors.endswith(f" ({topic}-0, 1 records); 20 of 21 lines were written\n")
    assert (await cli("cat", topic, *where)).lines == [str(number) for number in range(20)]


async def test_lines_that_share_the_fate_of_one_are_named(
    kafka: KafkaHandle, cli: Running, stdin: Callable[[bytes], None]
) -> None:
    topic = await kafka.create_topic(configs={"cleanup.policy": "compact"})
    stdin(b"k:1\nwithout\nk:3\n")
    ended = await cli("produce", topic, "-K:", "-b", kafka.bootstrap_servers)
    assert ended.code == 1
    at_fault = "line 2" if kafka.kind == "real" else "lines 1 to 3"
    assert ended.errors.startswith(f"error: {at_fault}: ")
    others = ", not lines 1 to 3" if kafka.kind == "real" else ""
    assert ended.errors.endswith(f"; 0 of 3 lines were written{others}\n")


async def test_lines_without_keys_go_where_there_is_a_leader(
    cli: Running, stdin: Callable[[bytes], None]
) -> None:
    async with Broker(nodes=3) as broker:
        topic = broker.create_topic("t", 3, replication_factor=1)
        await broker.stop_node(topic.partitions[2].leader_id)
        stdin(b"".join(b"%d\n" % number * 100 for number in range(LINES // 100)))
        ended = await cli("produce", "t", "-b", broker.bootstrap_servers)
        assert (ended.code, ended.errors) == (0, "")
        counts = [len(broker.records("t", partition)) for partition in range(2)]
        assert sum(counts) == LINES
        assert all(counts)
        stdin(b"1\n2\n")
        where = ["-b", broker.bootstrap_servers, "--timeout", 1]
        ended = await cli("produce", "t", "-p", 2, *where)
        assert ended.code == 1
        said = "error: lines 1 to 2: 2 records for t-2 were not acknowledged within --timeout: "
        assert ended.errors.startswith(said)
        assert ended.errors.endswith("the partition has no leader; 0 of 2 lines were written\n")


@pytest.mark.parametrize("is_answered", [True, False])
async def test_ctrl_c_ends_at_once_and_says_what_is_written(is_answered: bool) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        async with started(
            *[sys.executable, "-m", "aiokafka_lite"],
            *["produce", "t", "-b", broker.bootstrap_servers],
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        ) as producing:
            assert producing.stdin is not None
            producing.stdin.write(b"first\n")
            await until(lambda: broker.records("t"))
            if not is_answered:
                rule = broker.on("Produce").silence()
                producing.stdin.write(b"second\nthird\n")
                await until(lambda: rule.hits)
            began_at = time.monotonic()
            producing.send_signal(signal.SIGINT)
            _, errors = await producing.communicate()
        assert (producing.returncode, time.monotonic() - began_at < 10) == (130, True)
        written = "1 line was" if is_answered else "1 of 3 lines were"
        others = "" if is_answered else ", not lines 2 to 3"
        assert errors.decode() == f"\n{written} written{others}\n\nended by SIGINT\n"


@pytest.mark.real_if_long
async def test_line_is_sent_at_once_where_no_other_is_there(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    program = [sys.executable, "-m", "aiokafka_lite"]
    where = ["-b", kafka.bootstrap_servers]
    produce = [*program, "produce", topic, *where]
    follow = [*program, "cat", topic, "-f", "-c", "2", "--json", *where]
    async with (
        started(*produce, stdin=asyncio.subprocess.PIPE) as producing,
        started(*follow, stdout=asyncio.subprocess.PIPE) as following,
    ):
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
        (["--json", "-K:"], "--json takes keys and nulls"),
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
