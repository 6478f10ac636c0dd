"""`replay`, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import Broker
from aiokafka_lite.cli import loops
from aiokafka_lite.errors import TopicAuthorizationFailedError
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.cli.running import Running
from tests.support.cluster import KafkaHandle, unique

OWN = ("own", b"\xff\x00")


def death(topic: str, partition: int, offset: int, exception: str) -> list[tuple[str, bytes]]:
    """The headers of a dead letter."""
    why = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "group": "g",
        "delivery.count": "5",
        "exception": exception,
        "message": "no\nsuch thing",
    }
    return [OWN, *((f"__dlq.errors.{name}", text.encode()) for name, text in why.items())]


class Letters:
    """A topic of dead letters, and two topics that they came from."""

    def __init__(self, kafka: KafkaHandle) -> None:
        self.kafka = kafka

    async def fill(self) -> None:
        kafka = self.kafka
        self.first, self.second = [await kafka.create_topic(partitions=3) for _ in range(2)]
        self.dead = await kafka.create_topic(partitions=1)
        rows = [
            (b"k0", b"v0", death(self.first, 2, 10, "builtins.ValueError")),
            (b"k1", None, death(self.second, 1, 11, "asyncpg.TimeoutError")),
            (None, b"v2", death(self.first, 0, 12, "builtins.ValueError")),
            (b"k3", b"v3", []),
            (b"k4", b"v4", death(self.first, 7, 13, "asyncpg.TimeoutError")),
        ]
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for n, (key, value, headers) in enumerate(rows):
                await producer.send_and_wait(
                    self.dead, value, key=key, headers=headers, timestamp_ms=1_700_000_000_000 + n
                )

    async def in_topic(
        self, topic: str, isolation_level: str = "read_uncommitted"
    ) -> list[ConsumerRecord[bytes | None, bytes | None]]:
        """What a topic has, in the order of keys."""
        found: list[ConsumerRecord[bytes | None, bytes | None]] = []
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=self.kafka.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level=isolation_level,
        ) as reader:
            ends = await reader.end_offsets(reader.assignment())
            while any([await reader.position(tp) < end for tp, end in ends.items()]):
                for records in (await reader.getmany(timeout_ms=200)).values():
                    found.extend(records)
        return sorted(found, key=lambda record: record.value or b"")


@pytest.fixture
async def letters(kafka: KafkaHandle) -> Letters:
    found = Letters(kafka)
    await found.fill()
    return found


async def test_dead_letters_go_back_as_they_were(cli: Running, letters: Letters) -> None:
    where = letters.kafka.bootstrap_servers
    ended = await cli("replay", letters.dead, "-b", where)
    assert ended.code == 0, ended.errors
    assert "4 dead letters replayed" in ended.errors
    assert f"3 to {letters.first}" in ended.errors
    assert "1 skipped, because no header contains their original topic (--to TOPIC" in ended.errors
    first, second = [await letters.in_topic(topic) for topic in (letters.first, letters.second)]
    assert [(r.key, r.value) for r in first] == [(b"k0", b"v0"), (None, b"v2"), (b"k4", b"v4")]
    assert all(abs(r.timestamp / 1000 - time.time()) < 100 for r in (*first, *second))
    assert [r.partition for r in first[:2]] == [2, 0]  # there is no partition 7: by its key
    assert [(r.key, r.value, r.partition) for r in second] == [(b"k1", None, 1)]
    assert all(list(r.headers) == [OWN] for r in (*first, *second))


async def test_a_dead_letter_without_a_timestamp_gets_one(cli: Running, kafka: KafkaHandle) -> None:
    topic, dead = await kafka.create_topic(), await kafka.create_topic()
    why = death(topic, 0, 10, "builtins.ValueError")
    await kafka.produce(dead, 0, [(b"k", b"v")], timestamp_ms=-1, headers=why)
    ended = await cli("replay", dead, "-b", kafka.bootstrap_servers)
    assert ended.code == 0, ended.errors
    letters = Letters(kafka)
    (record,) = await letters.in_topic(topic)
    assert record.timestamp > 1_700_000_000_000


async def test_only_those_that_match_and_to_another_topic(cli: Running, letters: Letters) -> None:
    where, other = letters.kafka.bootstrap_servers, await letters.kafka.create_topic()
    ended = await cli(
        "replay", letters.dead, "-b", where, "--to", other,
        "--where", "exception=*Timeout*", "--where", "key=k[0-9]",
    )  # fmt: skip
    assert ended.code == 0, ended.errors
    assert f"2 dead letters replayed: 2 to {other}; 3 did not match" in ended.errors
    assert [r.key for r in await letters.in_topic(other)] == [b"k1", b"k4"]


async def test_an_exception_is_found_by_the_name_of_its_class(
    cli: Running, letters: Letters
) -> None:
    where = ["-b", letters.kafka.bootstrap_servers, "--dry-run"]
    full = await cli("replay", letters.dead, *where, "--where", "exception=builtins.ValueError")
    short = await cli("replay", letters.dead, *where, "--where", "exception=ValueError")
    assert len(short.lines) == len(full.lines) > 0


async def test_a_dry_run_writes_nothing_and_says_what_it_would(
    cli: Running, letters: Letters
) -> None:
    ended = await cli(
        "replay", letters.dead, "-b", letters.kafka.bootstrap_servers, "--dry-run", "-c", "2"
    )
    assert ended.code == 0, ended.errors
    assert ended.lines == [
        f"0:0\t-> {letters.first}/2\tbuiltins.ValueError\tno such thing",
        f"0:1\t-> {letters.second}/1\tasyncpg.TimeoutError\tno such thing",
    ]
    assert "2 dead letters would be replayed" in ended.errors
    assert not await letters.in_topic(letters.first)


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_a_group_replays_nothing_twice(
    cli: Running, letters: Letters, *, is_transactional: bool
) -> None:
    where, group = letters.kafka.bootstrap_servers, unique("replay")
    more = ["--transactional-id", group] if is_transactional else []
    for count, said in ((["-c", "1"], "1 dead letter replayed"), ([], "3 dead letters"), ([], "0")):
        ended = await cli("replay", letters.dead, "-b", where, "--group", group, *count, *more)
        assert ended.code == 0, ended.errors
        assert ended.errors.startswith(said)
    assert len(await letters.in_topic(letters.first)) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--where", "cause=x"], "dead letters have no field cause: use one of key, topic"),
        (["--where", "x"], "NAME=VALUE"),
        (["--group", "g", "--from", "1h"], "leave one out"),
        (["--group", "g", "--dry-run"], "but --dry-run must not commit"),
        (["--transactional-id", "t"], "--transactional-id needs --group"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    cli: Running, arguments: list[str], said: str
) -> None:
    ended = await cli("replay", "dead", "-b", "127.0.0.1:1", *arguments)
    assert ended.code == 2
    assert said in ended.errors


async def test_what_cannot_be_written_is_said_and_not_committed(cli: Running) -> None:
    async with Broker() as broker:
        letters = Letters(KafkaHandle("embedded", broker.bootstrap_servers))
        await letters.fill()
        group = unique("replay")
        with broker.on("Produce").fail(TopicAuthorizationFailedError, times=None):
            ended = await asyncio.wait_for(
                cli("replay", letters.dead, "-b", broker.bootstrap_servers, "--group", group), 60
            )
        assert ended.code == 1
        assert "some dead letters were not written" in ended.errors
        ended = await cli("replay", letters.dead, "-b", broker.bootstrap_servers, "--group", group)
        assert ended.errors.startswith("4 dead letters replayed")


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_those_ahead_of_a_letter_without_a_topic_are_written(
    cli: Running, *, is_transactional: bool
) -> None:
    async with Broker() as broker:
        letters = Letters(KafkaHandle("embedded", broker.bootstrap_servers))
        await letters.fill()
        broker.delete_topic(letters.second)
        more = ["--transactional-id", "replay"] if is_transactional else []
        where = ["-b", broker.bootstrap_servers, "--group", "replay", *more]
        for count in (1, 0):
            ended = await cli("replay", letters.dead, *where)
            assert ended.code == 1
            assert ended.errors.startswith(f"{count} dead letter")
            assert (
                f"error: dead letter 0:1 was not written: there is no topic {letters.second}"
                in ended.errors
            )
        assert len(await letters.in_topic(letters.first)) == 1
        broker.create_topic(letters.second, 3)
        assert (await cli("replay", letters.dead, *where)).code == 0
        assert len(await letters.in_topic(letters.first)) == 3


async def committed(letters: Letters, group: str) -> int | None:
    async with AIOKafkaConsumer(
        bootstrap_servers=letters.kafka.bootstrap_servers, group_id=group, enable_auto_commit=False
    ) as reader:
        return await reader.committed(TopicPartition(letters.dead, 0))


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_what_was_written_before_one_that_is_refused_is_not_written_again(
    cli: Running, *, is_transactional: bool
) -> None:
    async with Broker() as broker:
        letters = Letters(KafkaHandle("embedded", broker.bootstrap_servers))
        await letters.fill()
        group = unique("replay")
        more = ["--transactional-id", group] if is_transactional else []
        arguments = [
            "replay",
            letters.dead,
            "-b",
            broker.bootstrap_servers,
            "--group",
            group,
            *more,
        ]
        refusal = broker.on("Produce", topic=letters.second)
        with refusal.fail(TopicAuthorizationFailedError, times=None):
            for said in (
                "replayed: 1 to",
                "0 dead letters" if is_transactional else "dead letters",
            ):
                ended = await cli(*arguments)
                assert ended.code == 1
                assert "some dead letters were not written" in ended.errors
                assert said in ended.errors or not is_transactional
            assert await committed(letters, group) == 1
        ended = await cli(*arguments)
        assert ended.code == 0, ended.errors
        assert await committed(letters, group) == 5
        values = [
            record.value
            for record in await letters.in_topic(letters.first, "read_committed")
            if is_transactional or record.value == b"v0"
        ]
        assert values == ([b"v0", b"v2", b"v4"] if is_transactional else [b"v0"])


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_what_is_written_while_ctrl_c_is_pressed_is_not_written_again(
    cli: Running, monkeypatch: pytest.MonkeyPatch, *, is_transactional: bool
) -> None:
    pressed = threading.Event()

    async def press(main: Coroutine[object, None, None]) -> None:
        task = asyncio.create_task(main)
        await asyncio.to_thread(pressed.wait)
        task.cancel()
        release()
        await asyncio.wait([task])

    async with Broker() as broker:
        letters = Letters(KafkaHandle("embedded", broker.bootstrap_servers))
        await letters.fill()
        group, loop = unique("replay"), asyncio.get_running_loop()
        more = ["--transactional-id", group] if is_transactional else []
        arguments = [
            "replay",
            letters.dead,
            "-b",
            broker.bootstrap_servers,
            "--group",
            group,
            *more,
        ]
        with broker.on("Produce").hold() as held, monkeypatch.context() as patched:

            def release() -> None:
                loop.call_soon_threadsafe(loop.call_later, 0.1, held.release)

            patched.setattr(loops, "run", lambda main: asyncio.run(press(main)))
            running = asyncio.create_task(cli(*arguments))
            await held.reached()
            pressed.set()
            await running
        ended = await cli(*arguments)
        assert ended.code == 0, ended.errors
        for topic, count in ((letters.first, 3), (letters.second, 1)):
            assert len(await letters.in_topic(topic, "read_committed")) == count


async def test_a_group_commits_what_did_not_match(cli: Running, letters: Letters) -> None:
    where, group = letters.kafka.bootstrap_servers, unique("replay")
    ended = await cli(
        "replay", letters.dead, "-b", where, "--group", group, "--where", "topic=nothing"
    )
    assert ended.code == 0, ended.errors
    assert "4 did not match" in ended.errors
    assert await committed(letters, group) == 5


async def test_a_group_begins_where_the_log_does_if_it_committed_less(cli: Running) -> None:
    async with Broker() as broker:
        letters = Letters(KafkaHandle("embedded", broker.bootstrap_servers))
        await letters.fill()
        where, group = broker.bootstrap_servers, unique("replay")
        ended = await cli("replay", letters.dead, "-b", where, "--group", group, "-c", "1")
        assert ended.errors.startswith("1 dead letter")
        await letters.kafka.delete_records(letters.dead, 0, 3)
        ended = await cli("replay", letters.dead, "-b", where, "--group", group)
        assert ended.code == 0, ended.errors
        assert ended.errors.startswith("1 dead letter replayed")
        assert await committed(letters, group) == 5


async def test_a_partition_that_is_not_there_any_more_is_left_to_the_key(
    cli: Running, kafka: KafkaHandle
) -> None:
    source, dead = await kafka.create_topic(partitions=3), await kafka.create_topic()
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number in (2, 3):
            await producer.send_and_wait(
                dead, b"%d" % number, key=b"same", headers=death(source, number, 1, "E")
            )
    ended = await cli("replay", dead, "-b", kafka.bootstrap_servers)
    assert ended.code == 0, ended.errors
    letters = Letters(kafka)
    first, second = await letters.in_topic(source)
    assert (first.value, first.partition, second.value) == (b"2", 2, b"3")
