"""`cat` and `tail`, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.cli import cat, reading
from aiokafka_lite.cli.cat import replacing
from aiokafka_lite.cli.load import load_file
from aiokafka_lite.cli.main import main
from aiokafka_lite.errors import TopicAuthorizationFailedError
from aiokafka_lite.records.decoders import PLAIN_DECODER_NOTE
from tests.cli.running import Running
from tests.support.cluster import KafkaHandle, unique
from tests.support.extensions import but_for_plain_python
from tests.support.programs import started
from tests.support.waiting import until

MINUTE_MS = 60_000


def rows(*values: bytes) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"key-" + value, value) for value in values]


@pytest.fixture
def now_ms() -> int:
    """When the test began: what is "45 minutes ago" by then, the commands work out themselves."""
    return int(time.time() * 1000)


@pytest.fixture
async def topic(kafka: KafkaHandle, now_ms: int) -> str:
    """Two partitions: a0 to a4 with a timestamp an hour old and newer ones, and b0."""
    name = await kafka.create_topic(partitions=2)
    for minutes, values in ((60, (b"a0", b"a1")), (30, (b"a2", b"a3")), (0, (b"a4",))):
        at = now_ms - minutes * MINUTE_MS
        await kafka.produce(name, 0, rows(*values), timestamp_ms=at, headers=[("h", b"1")])
    await kafka.produce(name, 1, rows(b"b0"), timestamp_ms=now_ms)
    return name


def at(kafka: KafkaHandle, *arguments: object) -> list[object]:
    return [*arguments, "--bootstrap", kafka.bootstrap_servers]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "a0 a1 a2 a3 a4 b0"),
        (["-n", 2], "a3 a4 b0"),
        (["--last", 0], ""),
        (["-p", "1"], "b0"),
        (["-p", "0-1", "-n", 1], "a4 b0"),
        (["-n", 2, "--key", "a[01]"], "a0 a1"),
        (["-n", 1, "--key", "a[01]|b0"], "a1 b0"),
        (["-n", 9, "--grep", "none"], ""),
        (["--header", "h=^1$", "--grep", "[13]"], "a1 a3"),
        (["--header", "h=1", "-n", 1], "a4"),
        (["--header", "h=2"], ""),
        (["--header", "g=1"], ""),
        (["--header", "h=1", "-v"], "b0"),
        (["-p", 0, "--count", 2], "a0 a1"),
        (["-p", 0, "--from", 3], "a3 a4"),
        (["-p", 0, "--from", 1, "--until", 3], "a1 a2"),
        (["--from", "latest"], ""),
        (["--from", "45m"], "a2 a3 a4 b0"),
        (["--from", "45 minutes", "--until", "15m"], "a2 a3"),
        (["--from", "@{now_ms}"], "a4 b0"),
        (["--until", "45m", "-p", 0], "a0 a1"),
        (["-p", 0, "--until", "45m", "-n", 1], "a1"),
        (["--grep", "^a[13]$"], "a1 a3"),
        (["--grep", "A[13]", "-i"], "a1 a3"),
        (["--grep", ".", "-F"], ""),
        (["--key", "y-b", "-F"], "b0"),
        (["--key", "y-A", "-F", "-i", "-c", 2], "a0 a1"),
        (["--key", "a", "--grep", "[12]"], "a1 a2"),
        (["--key", "a", "-v"], "b0"),
    ],
)
async def test_those_records_are_printed_that_were_asked_for(
    kafka: KafkaHandle,
    topic: str,
    now_ms: int,
    cli: Running,
    options: Sequence[object],
    expected: str,
) -> None:
    filled_in = [str(option).replace("{now_ms}", str(now_ms)) for option in options]
    ended = await cli(*at(kafka, "cat", topic, *filled_in))
    assert (ended.code, ended.errors) == (0, "")
    assert sorted(ended.lines) == expected.split()


async def test_what_is_printed_of_headers_is_searched(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    for options, count in (([], 0), (["-H"], 5), (["-a"], 5), (["--json"], 5), (["-k"], 0)):
        ended = await cli(*at(kafka, "cat", topic, "--grep", "^h=1$", *options))
        assert len(ended.lines) == count, options


async def test_records_of_a_partition_come_in_order(kafka: KafkaHandle, cli: Running) -> None:
    topic = await kafka.create_topic()
    values = [b"%d" % number for number in range(5_000)]
    for first in range(0, 5_000, 1_000):
        await kafka.produce(topic, 0, rows(*values[first : first + 1_000]), codec="lz4")
    ended = await cli(*at(kafka, "cat", topic))
    assert ended.out == b"\n".join(values) + b"\n"
    ended = await cli(*at(kafka, "cat", topic, "--from", 10, "--until", 4_321))
    assert ended.out == b"\n".join(values[10:4_321]) + b"\n"


async def test_fields_are_printed_ahead_of_the_value(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    ended = await cli(*at(kafka, "cat", topic, "-p", 0, "--from", 4, "--all"))
    assert ended.lines[0].split("\t")[0] == "0:4"
    assert ended.lines[0].split("\t")[2:] == ["key-a4", "h=1", "a4"]
    ended = await cli(*at(kafka, "cat", topic, "-p", 0, "-c", 1, "-k", "-d", r"\0"))
    assert ended.out == b"key-a0\ta0\0"
    ended = await cli(*at(kafka, "cat", topic, "-p", 0, "-c", 1, "-k", "--format", "hex"))
    assert ended.out == f"{b'key-a0'.hex()}\t{b'a0'.hex()}\n".encode()
    ended = await cli(*at(kafka, "cat", topic, "-p", 0, "--format", "raw"))
    assert ended.out == b"a0a1a2a3a4"


async def test_json_says_all_there_is(kafka: KafkaHandle, now_ms: int, cli: Running) -> None:
    topic = await kafka.create_topic()
    twice = [("h", b"1"), ("h", b"\xff")]
    await kafka.produce(topic, 0, [(None, b'{"a": 1}')], timestamp_ms=now_ms)
    await kafka.produce(topic, 0, [(b"\xff", None)], timestamp_ms=now_ms, headers=twice)
    ended = await cli(*at(kafka, "cat", topic, "--json"))
    place = {"topic": topic, "partition": 0, "timestamp": now_ms}
    assert ended.objects == [
        {**place, "offset": 0, "key": None, "headers": {}, "value": '{"a": 1}'},
        {
            **place,
            "offset": 1,
            "key": {"base64": "/w=="},
            "headers": [["h", "1"], ["h", {"base64": "/w=="}]],
            "value": None,
        },
    ]
    ended = await cli(*at(kafka, "cat", topic, "-j", "--unpack", "-c", 1))
    assert ended.objects[0]["value"] == {"a": 1}


async def test_embedded_broker_loads_what_cat_printed(
    kafka: KafkaHandle, topic: str, cli: Running, tmp_path: Path
) -> None:
    path = tmp_path / "copy.jsonl"
    await cli(*at(kafka, "cat", topic, "--json", "--output", path))
    async with Broker() as broker:
        broker.create_topic(topic, 2)
        assert (await load_file(broker, path)).counts == {topic: 6}
        copied = broker.records(topic, 0)
    assert [(each.offset, each.key, each.value) for each in copied] == [
        (offset, b"key-a%d" % offset, b"a%d" % offset) for offset in range(5)
    ]
    assert {each.headers for each in copied} == {(("h", b"1"),)}


async def test_null_is_what_was_asked_for(kafka: KafkaHandle, cli: Running) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, b"x"), (b"k", None)])
    assert (await cli(*at(kafka, "cat", topic, "-k"))).out == b"\tx\nk\t\n"
    assert (await cli(*at(kafka, "cat", topic, "-k", "--null", "~"))).out == b"~\tx\nk\t~\n"


async def test_cat_ends_where_transactions_leave_offsets_without_records(
    kafka: KafkaHandle, cli: Running
) -> None:
    topic = await kafka.create_topic()
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("tx")
    ) as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted", partition=0)
        await producer.abort_transaction()
    ended = await cli(*at(kafka, "cat", topic))
    assert (ended.code, ended.lines) == (0, ["committed", "aborted"])
    ended = await cli(*at(kafka, "cat", topic, "--isolation-level", "read_committed"))
    assert (ended.code, ended.lines) == (0, ["committed"])


async def test_follow_goes_on_with_what_is_produced_later(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    following = asyncio.ensure_future(cli(*at(kafka, "cat", topic, "-f", "-c", 8)))
    await kafka.produce(topic, 1, rows(b"b1", b"b2", b"b3"))
    ended = await asyncio.wait_for(following, 20)
    assert (ended.code, len(ended.lines)) == (0, 8)
    for count, values in ((1, ["a3"]), (2, ["a3", "a4"])):
        options = ["-f", "-n", 2, "--grep", "a", "-c", count]
        ended = await asyncio.wait_for(cli(*at(kafka, "cat", topic, *options)), 20)
        assert (ended.code, ended.lines) == (0, values)


async def test_what_was_deleted_is_told_of(kafka: KafkaHandle, topic: str, cli: Running) -> None:
    await kafka.delete_records(topic, 0, 2)
    ended = await cli(*at(kafka, "cat", topic, "-p", 0, "--from", 1))
    assert ended.lines == ["a2", "a3", "a4"]
    assert ended.errors == (
        f"warning: partition 0 of {topic} has only offsets 2 to 5, "
        "so reading starts at the nearest offset instead of 1\n"
    )


async def test_what_is_deleted_while_it_is_read_is_told_of(cli: Running) -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic()
        await kafka.produce(topic, 0, rows(b"a", b"b"))
        with broker.on("Fetch").hold() as held:
            running = asyncio.ensure_future(cli(*at(kafka, "cat", topic)))
            await until(lambda: held.hits > 0)
            await kafka.delete_records(topic, 0, 1)
        ended = await running
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors.splitlines()[-1] == (
        f"error: offset 0 of partition 0 of topic {topic} was deleted during the command, for "
        "example because of retention.ms: run the command again"
    )


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
async def test_a_topic_becomes_a_table(
    kafka: KafkaHandle, topic: str, cli: Running, tmp_path: Path, suffix: str
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"orders{suffix}"
    ended = await cli(*at(kafka, "cat", topic, "-p", 0, "--grep", "[24]", "--output", path))
    assert (ended.code, ended.out, ended.errors) == (0, b"", "")
    table = pq.read_table(path) if suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    assert table.select(["topic", "partition", "offset", "key", "value"]).to_pylist() == [
        {"topic": topic, "partition": 0, "offset": offset, "key": b"key-" + value, "value": value}
        for offset, value in ((2, b"a2"), (4, b"a4"))
    ]


async def test_other_files_hold_what_would_have_been_printed(
    kafka: KafkaHandle, topic: str, cli: Running, tmp_path: Path
) -> None:
    path = tmp_path / "orders.jsonl"
    await cli(*at(kafka, "cat", topic, "--output", path, "--json", "-n", 1))
    lines = path.read_text().splitlines()
    assert sorted(json.loads(line)["value"] for line in lines) == ["a4", "b0"]
    nowhere = tmp_path / "nowhere" / "orders"
    ended = await cli(*at(kafka, "cat", topic, "--output", nowhere))
    assert (ended.code, ended.errors) == (
        1, f"error: cannot write {nowhere}: No such file or directory\n",
    )  # fmt: skip


async def test_an_output_that_is_not_whole_takes_the_place_of_no_file(
    kafka: KafkaHandle, topic: str, cli: Running, tmp_path: Path
) -> None:
    for name in ("orders.jsonl", "orders.parquet"):
        path = tmp_path / name
        path.write_text("before")
        gone = ("--bootstrap", "127.0.0.1:1", "--timeout", "1")
        assert (await cli("cat", topic, "--output", path, *gone)).code == 1
        assert path.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["orders.jsonl", "orders.parquet"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
@pytest.mark.parametrize("end", ["SIGINT", "error"])
def test_the_output_of_follow_is_whole_whatever_ends_it(
    tmp_path: Path, name: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "t.parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    with BrokerThread() as broker:
        broker.create_topic("t")
        broker.produce("t", "v", timestamp_ms=1)
        follow = reading.follow

        async def ended(*arguments: Any) -> AsyncGenerator[Any, None]:
            async for records in follow(*arguments):
                yield records
                if end == "SIGINT":
                    os.kill(os.getpid(), signal.SIGINT)
                else:
                    raise TopicAuthorizationFailedError("not allowed any more")

        monkeypatch.setattr(cat, "follow", ended)
        command_line = ["cat", "t", "-f", "-b", broker.bootstrap_servers, "--output", str(path)]
        format_ = [] if name == "t.parquet" else ["--json"]
        assert main([*command_line, *format_]) == (130 if end == "SIGINT" else 1)
    if name == "t.parquet":
        import pyarrow.parquet as pq

        assert pq.read_table(path)["value"].to_pylist() == [b"v"]
    else:
        assert json.loads(path.read_text())["value"] == "v"
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_a_file_is_replaced_at_the_end_only(tmp_path: Path, kind: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def write(*, fails: bool) -> None:
        with replacing(path) as aside:
            aside.write_text("after")
            assert path.read_text() == "before"
            if fails:
                raise kind

    with pytest.raises(kind):
        write(fails=True)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("before", [path])
    write(fails=False)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("after", [path])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
@pytest.mark.real_if_long
async def test_a_full_disk_is_one_line(kafka: KafkaHandle, topic: str, cli: Running) -> None:
    ended = await cli(*at(kafka, "cat", topic, "--output", "/dev/full"))
    assert ended.code == 1
    assert ended.errors == "error: cannot write /dev/full: No space left on device\n"
    command = [sys.executable, "-m", "aiokafka_lite", *map(str, at(kafka, "cat", topic))]
    with open("/dev/full", "wb") as full:  # noqa: ASYNC230 -- a device
        async with started(*command, stdout=full, stderr=asyncio.subprocess.PIPE) as process:
            _, errors = await process.communicate()
    assert process.returncode == 1
    told = [line for line in errors.decode().splitlines() if PLAIN_DECODER_NOTE not in line]
    assert told == ["error: cannot write the output: No space left on device"]


async def test_missing_topic_is_named_with_the_one_that_may_be_meant(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    ended = await cli(*at(kafka, "cat", f"{topic}s"))
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors == f"error: there is no topic {topic}s; did you mean {topic}?\n"
    ended = await cli(*at(kafka, "cat", topic, "-p", "7"))
    assert ended.errors == f"error: topic {topic} has no partition 7: its partitions are 0 to 1\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "yesterday"], "is not a position in a topic: write earliest, latest"),
        (["-f", "--until", "5"], "--until sets an end"),
        (["-n", "5", "--from", "5"], "leave one out"),
        (["-c", "0"], "'0' is not a whole number above 0"),
        (["-p", "x"], "is not a list of partitions"),
        (["-p", "0,7-4"], "ends before it begins: write 4-7"),
        (["--from", "10", "--until", "5"], "--until 5 is before --from 10"),
        (["--from", "1h", "--until", "2h"], "--until 2h is before --from 1h"),
        (["--json", "--format", "hex"], "not allowed with argument"),
        (["--grep", "("], "is not a regular expression"),
        (["-v"], "-v needs --grep, --key or --header"),
        (["--unpack"], "--unpack needs --json"),
        (["--json", "-d", ","], "--delimiter applies only to --format text, not to json"),
        (["--format", "raw", "-k"], "raw prints only values"),
        (["--json", "--output", "x.parquet"], "is written as a table, so leave out --format"),
    ],
)
async def test_wrong_usage_is_said_before_anything_is_done(
    cli: Running, options: Sequence[str], said: str
) -> None:
    ended = await cli("cat", "t", "-b", "127.0.0.1:1", *options)
    assert (ended.code, ended.out) == (2, b"")
    assert said in ended.errors
    assert "Traceback" not in ended.errors


async def test_no_broker_is_one_line(cli: Running) -> None:
    ended = await cli("cat", "t", "-b", "127.0.0.1:1")
    assert ended.code == 1
    assert ended.errors.startswith("error: no broker can be used: cannot connect to 127.0.0.1:1")
    assert ended.errors.count("\n") == 1


async def test_tail_reads_partitions_that_the_topic_is_given_meanwhile(
    kafka: KafkaHandle, topic: str
) -> None:
    async with started(
        *[sys.executable, "-m", "aiokafka_lite", "tail", topic, "-b", kafka.bootstrap_servers],
        *["-o", "-n", "1", "-c", "4", "-X", "metadata.max.age.ms=100"],
        stdout=asyncio.subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        seen = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(2)]
        assert sorted(seen) == [b"0:4\ta4\n", b"1:0\tb0\n"]
        await kafka.add_partitions(topic, 3)
        await kafka.produce(topic, 2, rows(b"c0", b"c1"))
        rest, _ = await asyncio.wait_for(process.communicate(), 30)
    assert rest == b"2:0\tc0\n2:1\tc1\n"
    assert process.returncode == 0


@pytest.mark.real_if_long
async def test_ctrl_c_ends_tail_quietly_with_130(kafka: KafkaHandle, topic: str) -> None:
    async with started(
        *[sys.executable, "-m", "aiokafka_lite", "tail", topic, "-b", kafka.bootstrap_servers],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = [await asyncio.wait_for(process.stdout.readline(), 30) for _ in range(6)]
        process.send_signal(signal.SIGINT)
        errors = await process.stderr.read()
        assert await process.wait() == 130
    assert sorted(seen) == [b"a0\n", b"a1\n", b"a2\n", b"a3\n", b"a4\n", b"b0\n"]
    assert but_for_plain_python(errors.decode()) == "\nended by SIGINT\n"


@pytest.mark.real_if_long
async def test_reader_that_goes_away_ends_cat_quietly(kafka: KafkaHandle, topic: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    async with started(
        *[sys.executable, "-m", "aiokafka_lite", "cat", topic, "-b", kafka.bootstrap_servers],
        stdout=writer,
        stderr=asyncio.subprocess.PIPE,
    ) as process:
        os.close(writer)
        _, errors = await process.communicate()
    assert (process.returncode, but_for_plain_python(errors.decode())) == (141, "")
