"""`dlq`, on the embedded broker and on a real Kafka. `replay` is another name of `dlq replay`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import Broker
from aiokafka_lite.cli import dlq, loops
from aiokafka_lite.cli.reading import Span, records_of
from aiokafka_lite.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError
from aiokafka_lite.processing import DROP, Retry
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.cli.running import Running, Terminal
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import until

Change = Callable[[], Coroutine[None, None, None]]
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
    ended = await cli("dlq", "replay", letters.dead, "-b", where)
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


async def test_offsets_that_are_not_committed_are_no_letters_that_are_not_written(
    cli: Running,
) -> None:
    async with Broker() as broker:
        letters = Letters(KafkaHandle("embedded", broker.bootstrap_servers))
        await letters.fill()
        more = ["--group", "g", "--transactional-id", "t", "--where", "key=none"]
        with broker.on("TxnOffsetCommit").fail(GroupAuthorizationFailedError, times=None):
            ended = await cli("replay", letters.dead, "-b", broker.bootstrap_servers, *more)
        assert ended.code == 1
        assert "error: offsets were not committed: " in ended.errors


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


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_a_group_with_members_is_refused_before_a_letter_is_written(
    cli: Running, *, is_transactional: bool
) -> None:
    async with Broker() as broker:
        letters = Letters(KafkaHandle("embedded", broker.bootstrap_servers))
        await letters.fill()
        more = ["--transactional-id", "replay"] if is_transactional else []
        async with AIOKafkaConsumer(
            letters.first, bootstrap_servers=broker.bootstrap_servers, group_id="live"
        ) as live:
            await until(live.assignment)
            ended = await cli(
                "replay", letters.dead, "-b", broker.bootstrap_servers, "--group", "live", *more
            )
        assert ended.code == 1
        assert ended.errors.startswith("0 dead letters replayed")
        assert "group live has members" in ended.errors
        assert not await letters.in_topic(letters.first)


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


# What Kafka's brokers add for a share group, which copies keys and values only if it is told to.
OF_A_SHARE_GROUP = [
    (f"__dlq.errors.{name}", text.encode())
    for name, text in {
        "topic": "orders", "partition": "1", "offset": "7", "group": "share",
        "delivery.count": "5", "message": "The delivery count limit was reached.",
    }.items()
]  # fmt: skip


async def test_letters_are_counted_by_error_and_topic(cli: Running, letters: Letters) -> None:
    kafka, dead = letters.kafka, letters.dead
    await kafka.produce(dead, 0, [(None, None)] * 2, headers=OF_A_SHARE_GROUP, timestamp_ms=1)
    command = ["dlq", "list", dead, "-b", kafka.bootstrap_servers]
    ended = await cli(*command, "--json")
    assert ended.code == 0, ended.errors
    assert ended.errors == "6 dead letters; 1 without headers of a dead letter, the first at 0:3\n"
    first = 1_700_000_000_000
    assert sorted(ended.objects, key=lambda row: str(row["newest_at"])) == [
        {"error": "asyncpg.TimeoutError", "topic": letters.second, "letters": 1, "attempts": 5,
         "oldest": first + 1, "newest": first + 1, "newest_at": "0:1"},
        {"error": "builtins.ValueError", "topic": letters.first, "letters": 2, "attempts": 5,
         "oldest": first, "newest": first + 2, "newest_at": "0:2"},
        {"error": "asyncpg.TimeoutError", "topic": letters.first, "letters": 1, "attempts": 5,
         "oldest": first + 4, "newest": first + 4, "newest_at": "0:4"},
        {"error": "The delivery count limit was reached.", "topic": "orders", "letters": 2,
         "attempts": 5, "oldest": 1, "newest": 1, "newest_at": "0:6"},
    ]  # fmt: skip
    ended = await cli(*command, "--error", "TimeoutError", "--topic", letters.first)
    heading, row = ended.lines
    assert heading.split() == [
        "ERROR",
        "TOPIC",
        "LETTERS",
        "ATTEMPTS",
        "OLDEST",
        "NEWEST",
        "NEWEST",
        "AT",
    ]
    at = "2023-11-14T22:13:20.004Z"
    assert row.split() == ["asyncpg.TimeoutError", letters.first, "1", "5", at, at, "0:4"]
    assert ended.errors.startswith("1 dead letter; 5 did not match; 1 without headers")
    assert (await cli(*command, "--error", "The delivery*", "-j")).objects[0]["letters"] == 2
    assert (await cli(*command, "--since", "5", "-j")).objects[0]["letters"] == 2


def test_many_errors_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq, "MOST_KINDS", 2)
    kinds = dlq._Kinds()
    for n in range(10):
        error = [("__dlq.errors.exception", b"E%d" % min(n, 8))]
        kinds.take(ConsumerRecord("t", 0, n, n, 0, b"", b"", None, 0, 0, tuple(error)))
    assert {row["error"]: row["letters"] for row in kinds.rows()} == {
        "E0": 1, "E1": 1, "(other errors)": 8
    }  # fmt: skip


async def test_a_letter_is_shown(cli: Running, letters: Letters) -> None:
    kafka, dead = letters.kafka, letters.dead
    await kafka.produce(dead, 0, [(None, None)], headers=OF_A_SHARE_GROUP, timestamp_ms=1)
    show = ["dlq", "show", dead, "-b", kafka.bootstrap_servers]
    ended = await cli(*show, "0:0")
    assert (ended.code, ended.errors) == (0, "")
    assert [" ".join(line.split()) for line in ended.lines] == [
        f"topic {letters.first}", "partition 2", "offset 10", "group g", "delivery.count 5",
        "exception builtins.ValueError", "message no", "such thing",
        "written 2023-11-14T22:13:20.000Z", "header own=\\xff\\x00", "key k0", "value v0",
    ]  # fmt: skip
    ended = await cli(*show, "0:5")
    assert ended.lines[-2].split() == ["key", "null"]
    assert "not in the dead letter: see the record" in ended.lines[-1]
    ended = await cli(*show, "0:3")
    assert "it is not a dead letter" in ended.errors
    assert ended.lines[-1].split() == ["value", "v3"]
    for place, code, said in (
        ("0:6", 1, f"there is no record 0:6 in {dead}: it has offsets 0 to 5"),
        ("1:0", 1, f"topic {dead} has no partition 1"),
        ("7", 2, "'7' is not a place: write PARTITION:OFFSET"),
    ):
        ended = await cli(*show, place)
        assert (ended.code, ended.out) == (code, b"")
        assert said in ended.errors


async def test_letters_without_their_records_are_not_replayed(
    cli: Running, kafka: KafkaHandle
) -> None:
    topic, dead = await kafka.create_topic(), await kafka.create_topic()
    why = death(topic, 0, 10, "builtins.ValueError")
    await kafka.produce(dead, 0, [(b"k", None)], headers=[*why, ("__dlq.errors.value.size", b"9")])
    await kafka.produce(dead, 0, [(None, None)], headers=OF_A_SHARE_GROUP)
    await kafka.produce(dead, 0, [(b"tombstone", None)], headers=why)
    ended = await cli("dlq", "replay", dead, "-b", kafka.bootstrap_servers)
    assert ended.errors == (
        f"1 dead letter replayed: 1 to {topic}; 2 skipped, because they do not contain the "
        "record's value\n"
    )
    assert [each.key for each in await Letters(kafka).in_topic(topic)] == [b"tombstone"]


@pytest.mark.parametrize("more", [[], ["--transactional-id"]])
async def test_a_rate_paces_a_replay_and_keeps_its_place(
    cli: Running, letters: Letters, more: list[str]
) -> None:
    group = unique("replay")
    command = ["dlq", "replay", letters.dead, "-b", letters.kafka.bootstrap_servers]
    command += ["--group", group, "--rate", "10", *more, *[group for _ in more]]
    began = time.monotonic()
    ended = await cli(*command, "--limit", "3")
    assert ended.errors.startswith("3 dead letters replayed")
    assert time.monotonic() - began >= 0.2
    assert (await cli(*command)).errors.startswith("1 dead letter replayed")
    assert len(await letters.in_topic(letters.first)) == 3


async def test_a_pause_between_records_is_not_the_silence_of_brokers(kafka: KafkaHandle) -> None:
    """A paced replay takes long, and then waits for a fetch like any other reader."""
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, b"v")] * 3)
    read = 0
    async with AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, fetch_max_wait_ms=5000
    ) as consumer:
        async for records in records_of(
            consumer, {TopicPartition(topic, 0): Span(0, 4)}, patience_s=0.5
        ):
            read += len(records)
            if not records:
                break
            await asyncio.sleep(0.7)
    assert read == 3


async def test_letters_are_purged_after_a_confirmation(
    cli: Running, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, dead = letters.kafka, letters.dead
    purge = ["dlq", "purge", dead, "-b", kafka.bootstrap_servers]
    for more, said in (
        ([], "one of the arguments --until --all is required"),
        (["--all", "--until", "1d"], "--until: not allowed with argument --all"),
        (["--all"], "add --yes"),
    ):
        ended = await cli(*purge, *more)
        assert ended.code == 2
        assert said in ended.errors
    monkeypatch.setattr(sys, "stdin", Terminal("n"))
    ended = await cli(*purge, "--until", "2")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors == (
        f"{dead}: 2 dead letters in 1 partition\nDelete 2 dead letters? [y/N] "
        "error: the deletion was not confirmed\n"
    )
    ended = await cli(*purge, "--all", "--yes")
    assert ended.errors == (
        f"error: 1 record of {dead} is not a dead letter, the first at 0:3, so no records were "
        "deleted: add --force to delete such records, too\n"
    )
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    ended = await cli(*purge, "--until", "@1700000000002")
    assert (ended.code, ended.lines) == (0, ["deleted 2 dead letters"])
    assert [each.offset for each in await letters.in_topic(dead)] == [2, 3, 4]
    ended = await cli(*purge, "--all", "--yes", "--force")
    assert (ended.code, ended.lines) == (0, ["deleted at most 3 records"])
    assert await letters.in_topic(dead) == []
    ended = await cli(*purge, "--all", "--yes")
    assert (ended.code, ended.errors) == (0, f"{dead} has no dead letters to delete\n")


async def test_what_is_lost_before_the_confirmation_is_not_said_to_be_deleted(
    cli: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with Broker(nodes=2) as broker:
        for topic in ("dlq", "gone"):
            broker.create_topic(topic, 2, replication_factor=1)
            for partition in range(2):
                broker.produce(topic, "v", partition=partition)

        async def lose_leader() -> None:
            await broker.stop_node(broker.leader_of(TopicPartition("dlq", 0)))

        async def delete() -> None:
            broker.delete_topic("gone")

        for topic, change, said in (
            ("gone", delete, "there is no topic gone"),
            ("dlq", lose_leader, "partition 0 of dlq was not purged: it has no leader"),
        ):

            def confirm(*_: object, change: Change = change) -> None:
                asyncio.run_coroutine_threadsafe(change(), loop).result()

            monkeypatch.setattr(dlq, "confirm", confirm)
            where = "-b", broker.bootstrap_servers
            ended = await cli("dlq", "purge", topic, *where, "--all", "--force", "--yes")
            assert (ended.code, ended.out) == (1, b"")
            assert f"error: {said}\n" in ended.errors


async def test_delayed_records_are_no_dead_letters(cli: Running) -> None:
    async with Broker() as broker:
        for topic in ("orders", "late.600"):
            broker.create_topic(topic, 1)
        for _ in range(3):
            broker.produce("orders", "v")
        retry = Retry(after=1, topic="late", delays=[600])
        async with AIOKafkaConsumer(
            "orders", bootstrap_servers=broker.bootstrap_servers, group_id="g",
            auto_offset_reset="earliest",
        ) as consumer:  # fmt: skip
            running = asyncio.create_task(
                consumer.run(fail, retry=retry, breaker=None, dead_letter=DROP)
            )
            await until(lambda: broker.end_offsets("late.600") == [3])
            await consumer.stop()
            await running
        rest = ["late.600", "-b", broker.bootstrap_servers]
        ended = await cli("dlq", "purge", *rest, "--all", "--yes")
        assert (ended.code, ended.out) == (1, b"")
        assert "3 records of late.600 are not dead letters (3 wait for a retry)" in ended.errors
        for more in ([], ["--to", "orders"]):
            ended = await cli("dlq", "replay", *rest, *more)
            assert ended.errors == (
                "0 dead letters replayed; 3 skipped, because they are delayed records\n"
            )
        ended = await cli("dlq", "list", *rest)
        assert (ended.code, ended.out) == (1, b"")
        assert "no dead letters: 3 of its 3 records are delayed records" in ended.errors
        ended = await cli("dlq", "show", *rest, "0:0")
        assert ended.errors == "this is a delayed record, and not a dead letter\n"


async def fail(record: ConsumerRecord) -> None:
    raise ValueError


async def test_what_is_no_topic_of_dead_letters_or_not_allowed_is_said(cli: Running) -> None:
    async with Broker() as broker:
        letters = Letters(KafkaHandle("embedded", broker.bootstrap_servers))
        await letters.fill()
        where = ["-b", broker.bootstrap_servers]
        await cli("dlq", "replay", letters.dead, *where)
        ended = await cli("dlq", "list", letters.first, *where)
        assert (ended.code, ended.out) == (1, b"")
        assert f"topic {letters.first} has no dead letters: none of its 3 records" in ended.errors
        with broker.on("DeleteRecords").fail(TopicAuthorizationFailedError):
            ended = await cli("dlq", "purge", letters.dead, "--until", "3", "--yes", *where)
        assert (ended.code, ended.out) == (1, b"")
        assert f"partition 0 of {letters.dead} was not purged: " in ended.errors
        with broker.on("Fetch").fail(TopicAuthorizationFailedError, times=None):
            ended = await cli("dlq", "list", letters.dead, *where)
        assert (ended.code, ended.out) == (1, b"")
        assert letters.dead in ended.errors
