"""`groups` and `lag`, on the embedded broker and on a real Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.cli import groups
from aiokafka_lite.cli.groups import GroupDescription, Lag
from aiokafka_lite.cli.main import main
from aiokafka_lite.consumer.assignors import RoundRobinPartitionAssignor
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaConnectionError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages.group_members import ConsumerGroupHeartbeatRequest
from tests.cli.running import Running
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import await_coordinator
from tests.support.programs import started
from tests.support.protocols import in_both_protocols


@asynccontextmanager
async def member(
    kafka: KafkaHandle, topic: str, group: str, protocol: str = "classic"
) -> AsyncIterator[AIOKafkaConsumer]:
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        client_id="the-client",
        group_id=group,
        group_protocol=protocol,
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        enable_auto_commit=False,
    ) as consumer:
        yield consumer


@pytest.fixture
async def topic(kafka: KafkaHandle) -> str:
    """Two partitions with five records and three."""
    name = await kafka.create_topic(partitions=2)
    await kafka.produce(name, 0, [(None, b"v")] * 5)
    await kafka.produce(name, 1, [(None, b"v")] * 3)
    return name


def usual_ctrl_c() -> None:
    """Be stopped by Ctrl-C, which programs that run in the background of a script ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("command", "apis"),
    [
        ("lag g", "FindCoordinator ConsumerGroupDescribe DescribeGroups OffsetFetch"),
        ("groups", "ListGroups ConsumerGroupDescribe DescribeGroups"),
        (
            "reset g --all-topics --by 0 --execute",
            "FindCoordinator ConsumerGroupDescribe DescribeGroups OffsetFetch OffsetCommit",
        ),
    ],
    ids=["lag", "groups", "reset"],
)
async def test_a_coordinator_that_loads_moves_or_hangs_up_is_asked_again(
    cli: Running, command: str, apis: str
) -> None:
    async with Broker(nodes=2) as broker:

        def move(*_: object) -> None:
            broker.move_coordinator("g")

        broker.create_topic("t")
        where = ["-b", broker.bootstrap_servers]
        done = await cli("reset", "g", "--topic", "t", "--to", "earliest", "--execute", *where)
        assert done.code == 0
        for api in apis.split():
            is_search = api == "FindCoordinator"
            error = CoordinatorNotAvailableError if is_search else CoordinatorLoadInProgressError
            requests = broker.on(api)
            rules = [
                requests.fail(error),
                requests.disconnect(),
                requests.answer(move),
            ]
            ended = await cli(*command.split(), "--json", *where)
            assert (ended.code, [rule.hits for rule in rules]) == (0, [1, 1, 1]), (api, ended)
            (row,) = ended.objects
            assert row["group" if command == "groups" else "committed"] in ("g", 0)


@in_both_protocols
async def test_lag_is_shown_with_members_and_without(
    kafka: KafkaHandle, topic: str, cli: Running, protocol: str
) -> None:
    group, where = unique("group"), ["-b", kafka.bootstrap_servers]
    async with member(kafka, topic, group, protocol) as consumer:
        lines = (await cli("lag", group, *where)).lines
        assert lines[0] == f"group {group}: Stable, 1 member, lag unknown for 2 partitions"
        await consumer.commit({TopicPartition(topic, 0): 2})
        rows = (await cli("lag", group, "--json", *where)).objects
        assert [row.pop("member") is not None for row in rows] == [True, True]
        common = {"group": group, "topic": topic, "client": "the-client", "host": "127.0.0.1"}
        assert rows == [
            {**common, "partition": 0, "committed": 2, "end": 5, "lag": 3},
            {**common, "partition": 1, "committed": None, "end": 3, "lag": None},
        ]
        lines = (await cli("lag", group, *where)).lines
        assert lines[0] == (
            f"group {group}: Stable, 1 member, lag 3 in 1 partition, unknown for 1 partition"
        )
        assert lines[1].split() == [
            "TOPIC",
            "PARTITION",
            "COMMITTED",
            "END",
            "LAG",
            "CLIENT",
            "HOST",
        ]
        assert lines[3].split() == [topic, "1", "-", "3", "-", "the-client", "127.0.0.1"]
    lines = (await cli("lag", group, *where)).lines
    assert lines[0] == f"group {group}: Empty, 0 members, lag 3 in 1 partition"
    assert lines[2].split() == [topic, "0", "2", "5", "3", "-", "-"]
    ended = await cli("lag", group, "--topic", "another", "--topic", topic, "--json", *where)
    assert (ended.code, ended.out) == (1, b"")
    assert ended.errors == (
        f"error: group {group} has no offsets and no members for topic another\n"
    )


async def test_a_commit_beyond_the_end_is_a_negative_lag_and_no_part_of_the_sum(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    group, where = unique("group"), ["-b", kafka.bootstrap_servers]
    async with member(kafka, topic, group, "classic") as consumer:
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        await consumer.commit({first: 2, second: 1_000})
    rows = (await cli("lag", group, "--json", *where)).objects
    assert [row["lag"] for row in rows] == [3, -997]
    lines = (await cli("lag", group, *where)).lines
    assert "lag 3 in 2 partitions" in lines[0]


@pytest.mark.parametrize(
    ("protocol", "assignor"), [("classic", "roundrobin"), ("consumer", "uniform")]
)
async def test_groups_are_listed_with_their_states(
    kafka: KafkaHandle, topic: str, cli: Running, protocol: str, assignor: str
) -> None:
    group, where = unique("group"), ["-b", kafka.bootstrap_servers]
    async with member(kafka, topic, group, protocol) as consumer:
        await consumer.commit({TopicPartition(topic, 0): 2})
        (row,) = (await cli("groups", f"{group[:-1]}*", "--json", *where)).objects
        assert isinstance(row.pop("coordinator"), int)
        assert row == {
            "group": group, "state": "Stable", "type": protocol, "members": 1,
            "assignor": assignor,
        }  # fmt: skip
    assert (await cli("groups", group, "--state", "empty", "-q", *where)).lines == [group]
    ended = await cli("groups", group, "--state", "stable", *where)
    assert (ended.code, ended.out, ended.errors) == (0, b"", "no groups\n")
    ended = await cli("groups", group, "--state", "typo", *where)
    assert (ended.code, ended.out) == (2, b"")
    assert "argument --state: invalid choice: 'typo' (choose from Stable, Empty," in ended.errors


async def test_group_of_the_newer_protocol_is_seen_too(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    group, where = unique("group"), ["-b", kafka.bootstrap_servers]
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="AAAAAAAAAAAAAAAAAAAAAQ",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    await await_coordinator(kafka)
    async with kafka.raw() as client:
        answer = await client.request(request)
        assert not answer.error_code, answer.error_message
    (row,) = (await cli("groups", group, "--json", *where)).objects
    assert (row["type"], row["members"]) == ("consumer", 1)
    rows = (await cli("lag", group, "--json", *where)).objects
    assert [(row["partition"], row["end"]) for row in rows] == [(0, 5), (1, 3)]
    assert {row["member"] for row in rows} == {"AAAAAAAAAAAAAAAAAAAAAQ"}


async def test_groups_are_seen_where_brokers_have_the_newer_protocol_switched_off(
    cli: Running,
) -> None:
    async with Broker() as broker:
        kafka, where = (
            KafkaHandle("embedded", broker.bootstrap_servers),
            ["-b", broker.bootstrap_servers],
        )
        broker.create_topic("t")
        broker.on("ConsumerGroupDescribe").fail(UnsupportedVersionError, times=None)
        async with member(kafka, "t", "g"):
            (row,) = (await cli("groups", "--json", *where)).objects
            (lag,) = (await cli("lag", "g", "--json", *where)).objects
    assert (row["state"], row["type"], row["members"]) == ("Stable", "classic", 1)
    assert lag["client"] == "the-client"


async def test_missing_group_is_named_with_the_one_that_may_be_meant(
    kafka: KafkaHandle, topic: str, cli: Running
) -> None:
    group = unique("group-of-orders")
    async with member(kafka, topic, group):
        ended = await cli("lag", f"{group}s", "-b", kafka.bootstrap_servers)
        assert (ended.code, ended.out) == (1, b"")
        assert ended.errors == f"error: there is no group {group}s; did you mean {group}?\n"
        ended = await cli("groups", f"{group}s", group, "-q", "-b", kafka.bootstrap_servers)
    assert (ended.code, ended.lines) == (1, [group])
    assert ended.errors == f"error: there is no group {group}s; did you mean {group}?\n"


def test_watch_goes_on_after_an_error_that_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lag = Lag(GroupDescription("g", "classic", "Empty", "", ()), [])
    answers: list[Lag | BaseException] = [
        lag, KafkaConnectionError("no broker"), lag, KeyboardInterrupt(),
    ]  # fmt: skip

    def next_answer(*_: object) -> Lag:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(groups, "lag_of", next_answer)
    assert main(["lag", "g", "--watch", "0.001"]) == 130
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines() if " " in line]
    shown = "group g: Empty, 0 members, lag 0 in 0 partitions, +0.0 a second"
    assert [line for line in lines if "PARTITION" not in line] == [
        shown, "cannot repeat: no broker", shown,
    ]  # fmt: skip


@pytest.mark.real_if_long
async def test_watch_draws_on_a_terminal(kafka: KafkaHandle, topic: str) -> None:
    pytest.importorskip("rich")
    group = unique("group")
    async with member(kafka, topic, group) as consumer:
        await consumer.commit({TopicPartition(topic, 0): 5})
        ours, terminal = os.openpty()
        async with started(
            *[sys.executable, "-m", "aiokafka_lite", "lag", group, "--watch", "0.05"],
            *["-b", kafka.bootstrap_servers],
            preexec_fn=usual_ctrl_c,
            stdout=terminal,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "PYTHONWARNINGS": "error"},
        ) as process:
            os.close(terminal)
            seen = b""
            while seen.count(b"a second") < 2:
                seen += await asyncio.wait_for(asyncio.to_thread(os.read, ours, 65_536), 30)
            process.send_signal(signal.SIGINT)
            _, errors = await process.communicate()
        os.close(ours)
    assert b"lag 0 in 1 partition, unknown for 1 partition, +0.0 a second" in seen
    assert topic.encode() in seen
    assert (process.returncode, errors) == (130, b"")


@pytest.mark.real_if_long
async def test_watch_goes_on_until_ctrl_c(kafka: KafkaHandle, topic: str) -> None:
    group = unique("group")
    async with member(kafka, topic, group) as consumer:
        await consumer.commit({TopicPartition(topic, 0): 5})
        async with started(
            *[sys.executable, "-m", "aiokafka_lite", "lag", group, "--watch", "0.05"],
            *["-b", kafka.bootstrap_servers],
            preexec_fn=usual_ctrl_c,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        ) as process:
            assert process.stdout is not None
            seen = b""
            while seen.count(b"lag 0 in 1 partition, unknown for 1 partition") < 2:
                seen += await asyncio.wait_for(process.stdout.readline(), 30)
            process.send_signal(signal.SIGINT)
            _, errors = await process.communicate()
    assert (process.returncode, errors) == (130, b"")
