"""`broker --load FILE.jsonl`: what a line may be, and that a bad one leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.cli.load import BadLineError, Loaded, load_file
from aiokafka_lite.cli.problems import CommandError
from tests.support.rounds import LONG

LINES = 20_000 if LONG else 5_000


def write(path: Path, lines: Iterable[object]) -> int:
    """Write lines, as JSON unless they are bytes; return how many bytes that makes."""
    return path.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    )


async def load(broker: Broker, path: Path, *lines: object) -> Loaded:
    """Load a file of these lines."""
    write(path, lines)
    return await load_file(broker, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", b"text"),
        ("ä€", "ä€".encode()),
        ("", b""),
        (None, None),
        ({"base64": "AP8="}, b"\x00\xff"),
        ({"base64": ""}, b""),
        ({"amount": 3, "of": ["ä", None]}, '{"amount":3,"of":["ä",null]}'.encode()),
        ({"base64": "AP8=", "more": 1}, b'{"base64":"AP8=","more":1}'),
        ([1, 2], b"[1,2]"),
        (7, b"7"),
        (False, b"false"),
    ],
)
async def test_keys_values_and_headers_may_be_text_bytes_or_json(
    path: Path, value: object, expected: bytes | None
) -> None:
    async with Broker() as broker:
        line = {"topic": "t", "key": value, "value": value, "headers": {"h": value}}
        assert await load(broker, path, line) == Loaded({"t": 1}, [])
        (record,) = broker.records("t")
        assert (record.key, record.value, record.headers) == (
            expected, expected, (("h", expected),),
        )  # fmt: skip


async def test_records_go_where_their_lines_say(path: Path) -> None:
    async with Broker(num_partitions=2, auto_create_topics=False) as broker:
        broker.create_topic("there", 3)
        loaded = await load(
            broker,
            path,
            b"\xef\xbb\xbf" + b'{"topic": "there", "partition": 2, "timestamp": 5, "value": "a"}',
            b"",
            {"topic": "new", "headers": [["h", "1"], ["h", None]]},
            {"topic": "there", "partition": 2, "value": "b", "timestamp": None},
            b"  \r",
        )
        assert loaded == Loaded({"there": 2, "new": 1}, [])
        first, second = broker.records("there", 2)
        assert (first.value, first.timestamp, second.value) == (b"a", 5, b"b")
        assert second.timestamp > 1_500_000_000_000
        assert broker.topics["new"].partition_count == 2
        assert broker.records("new")[0].headers == (("h", b"1"), ("h", None))


BAD_LINES = [
    (b"{", "not JSON: "),
    (b"[]", "each line must be a JSON object"),
    (b'{"value": "x"}', 'the field "topic" must be a string'),
    (b'{"topic": "t", "values": "x"}', "unknown field 'values'"),
    (b'{"topic": "t", "value": NaN}', "NaN is not JSON"),
    (b'{"topic": "t", "value": "\xff"}', "byte 26 is not UTF-8"),
    (
        b'{"topic": "t", "value": "\\ud800"}',
        "value contains half a surrogate pair, which UTF-8 cannot encode",
    ),
    (b'{"topic": "t", "headers": {"\\ud800": "x"}}', "a header's name contains half"),
    (b'{"topic": "t", "value": {"base64": "?"}}', "value is not base64"),
    (b'{"topic": "t", "key": {"base64": 1}}', 'key: the value of "base64"'),
    (b'{"topic": "t", "headers": "x"}', '"headers" must be'),
    (b'{"topic": "t", "headers": [["x"]]}', '"headers" must be'),
    (b'{"topic": "t", "partition": 1.0}', "partition must be an integer"),
    (b'{"topic": "t", "partition": -1}', "partition must be an integer"),
    (
        b'{"topic": "t", "partition": 1}',
        "there is no partition t-1: the topic's partition count is 1",
    ),
    (b'{"topic": "t", "timestamp": 9223372036854775808}', "timestamp must be"),
    (b'{"topic": "t", "timestamp": 9223372036854775807}', "ahead of the broker's clock"),
    (b'{"topic": "t", "value": "' + b"x" * 2_000_000 + b'"}', "max.message.bytes is"),
    (b'{"topic": "compacted", "value": "x"}', "has no key"),
    (b'{"topic": "a b"}', "'a b'"),
    (b'{"topic": "__consumer_offsets"}', "only brokers can write to the internal topic"),
    (b"[" * 100_000, "nested too deep"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
async def test_bad_line_is_named_and_leaves_nothing_behind(
    path: Path, line: bytes, reason: str
) -> None:
    async with Broker() as broker:
        broker.create_topic("compacted", 1, {"cleanup.policy": "compact"})
        good = {"topic": "t", "key": "k", "value": "good"}
        with pytest.raises(BadLineError) as caught:
            await load(broker, path, good, {**good, "topic": "compacted"}, good, line, good)
        assert caught.value.line_number == 4
        assert str(caught.value).startswith(f"{path}, line 4: ")
        assert reason in str(caught.value)
        assert str(caught.value).endswith("(no records were loaded)")
        assert list(broker.topics) == ["compacted"]
        assert broker.end_offsets("compacted") == [0]


async def test_topic_that_holds_records_is_left_alone(path: Path) -> None:
    async with Broker() as broker:
        broker.produce("old", "x")
        loaded = await load(broker, path, *({"topic": topic} for topic in ("old", "new", "old")))
        assert loaded == Loaded({"new": 1}, ["old"])
        assert broker.end_offsets("old") == [1]


async def test_large_file_lets_the_loop_run(path: Path) -> None:
    write(path, ({"topic": "t", "key": str(n), "value": {"n": n}} for n in range(LINES)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Broker(num_partitions=4) as broker:
        counting = asyncio.create_task(count_turns())
        await load_file(broker, path)
        counting.cancel()
        assert turns > 10
        found = [json.loads(record.value or b"") for record in broker.records("t")]
        assert sorted(each["n"] for each in found) == list(range(LINES))


async def test_stopping_half_way_leaves_nothing_behind(path: Path) -> None:
    write(path, ({"topic": "t", "value": str(n)} for n in range(50_000)))
    async with Broker() as broker:
        loading = asyncio.create_task(load_file(broker, path))
        await broker.wait_until(lambda: broker.has_topic("t"))
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert not broker.has_topic("t")


async def test_file_that_is_not_there_is_named(path: Path) -> None:
    async with Broker() as broker:
        with pytest.raises(CommandError, match=r"cannot read .*records.jsonl: No such file"):
            await load_file(broker, path)
