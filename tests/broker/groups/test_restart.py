"""Groups and offsets outlive a broker that keeps its data in a directory, killed or stopped."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests, MemberOf, await_coordinator
from tests.support.programs import started

FENCED_INSTANCE_ID = 82
COMMITS_BEFORE_KILL = 20


@asynccontextmanager
async def broker_on(data_dir: Path) -> AsyncIterator[KafkaHandle]:
    async with Broker(data_dir=data_dir) as broker:
        await broker.node.groups.until_loaded()
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_coordinator(handle)
        yield handle


@pytest.fixture(params=["stopped", "killed"])
def how(request: pytest.FixtureRequest) -> str:
    """Whether the broker stops, or is gone with what it has written so far."""
    ended: str = request.param
    return ended


@asynccontextmanager
async def first_life(tmp_path: Path, how: str) -> AsyncIterator[KafkaHandle]:
    """A broker whose directory ``tmp_path / "left"`` holds afterwards what it left behind."""
    async with broker_on(tmp_path / "live") as kafka:
        yield kafka
        if how == "killed":
            # What a process has written is in the files even when it gets no further.
            shutil.copytree(tmp_path / "live", tmp_path / "left")
    if how == "stopped":
        shutil.copytree(tmp_path / "live", tmp_path / "left")


async def test_commits_survive(tmp_path: Path, how: str) -> None:
    async with first_life(tmp_path, how) as kafka:
        topic = await kafka.create_topic("t", partitions=2)
        groups = {f"g{number}": number for number in range(20)}
        for group_id, offset in groups.items():
            assert await GroupRequests(kafka, group_id).commit(topic, offset) == 0
        assert await GroupRequests(kafka, "g7").commit(topic, 77, metadata="again") == 0
    async with broker_on(tmp_path / "left") as kafka:
        for group_id, offset in groups.items():
            found = await GroupRequests(kafka, group_id).fetch("t")
            assert found.committed_offset == (77 if group_id == "g7" else offset)
        assert (await GroupRequests(kafka, "g7").fetch("t")).metadata == "again"
        assert (await GroupRequests(kafka, "g7").fetch("t", 1)).committed_offset == -1


async def test_members_survive(tmp_path: Path, how: str) -> None:
    async with first_life(tmp_path, how) as kafka:
        static = await GroupRequests(kafka, "static").member("one")
        dynamic = await GroupRequests(kafka, "dynamic").member()
        await kafka.create_topic("t")
    async with broker_on(tmp_path / "left") as kafka:
        group = GroupRequests(kafka, "dynamic")
        assert await group.heartbeat(dynamic) == 0
        assert bytes((await group.sync(dynamic)).assignment) == b"all"
        assert await group.commit("t", 5, member=dynamic) == 0
        group = GroupRequests(kafka, "static")
        back = await group.join(instance_id="one")
        assert (back.error_code, back.generation_id) == (0, static.generation)
        assert bytes((await group.sync(MemberOf(back.member_id, 1, "one"))).assignment) == b"all"
        assert await group.heartbeat(static) == FENCED_INSTANCE_ID


async def test_static_member_is_fenced_by_its_heir_after_a_restart(
    tmp_path: Path, how: str
) -> None:
    async with first_life(tmp_path, how) as kafka:
        group = GroupRequests(kafka, "g")
        old = await group.member("one")
        new = await group.join(instance_id="one")
    async with broker_on(tmp_path / "left") as kafka:
        group = GroupRequests(kafka, "g")
        assert await group.heartbeat(old) == FENCED_INSTANCE_ID
        assert await group.heartbeat(MemberOf(new.member_id, 1, "one")) == 0


async def test_generations_go_on_from_where_they_were(tmp_path: Path, how: str) -> None:
    async with first_life(tmp_path, how) as kafka:
        group = GroupRequests(kafka, "g")
        member = await group.member()
        await group.leave((member.member_id, None))
    async with broker_on(tmp_path / "left") as kafka:
        group = GroupRequests(kafka, "g")
        listed = await group.listed()
        assert listed is not None
        assert (listed.group_state, listed.protocol_type) == ("Empty", "consumer")
        assert (await group.member()).generation == 3


async def test_deleted_groups_stay_deleted(tmp_path: Path, how: str) -> None:
    async with first_life(tmp_path, how) as kafka:
        topic = await kafka.create_topic("t")
        group = GroupRequests(kafka, "g")
        await group.commit(topic, 5)
        assert await group.delete() == 0
    async with broker_on(tmp_path / "left") as kafka:
        group = GroupRequests(kafka, "g")
        assert await group.listed() is None
        assert (await group.fetch("t")).committed_offset == -1


async def test_acknowledged_commits_survive_kill_9(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aiokafka_lite", "broker", "--listen", "127.0.0.1:0"]
    acknowledged = -1
    async with started(
        *command, "--data", str(tmp_path), stdout=asyncio.subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        banner = (await process.stdout.readline()).decode()
        found = re.search(r"127\.0\.0\.1:\d+", banner)
        assert found is not None, banner
        kafka = KafkaHandle("embedded", found.group())
        await await_coordinator(kafka)
        topic = await kafka.create_topic("t")
        group = GroupRequests(kafka, "g")
        for offset in itertools.count():
            try:
                if await group.commit(topic, offset) == 0:
                    acknowledged = offset
            except (OSError, asyncio.IncompleteReadError):
                break  # it is dead
            if acknowledged == COMMITS_BEFORE_KILL:
                # While the next ones are on their way, however slow the machine is.
                asyncio.get_running_loop().call_later(0.01, process.kill)
    assert acknowledged >= COMMITS_BEFORE_KILL
    async with broker_on(tmp_path) as kafka:
        committed = (await GroupRequests(kafka, "g").fetch("t")).committed_offset
    # The last one may have been stored without its answer getting out.
    assert committed in (acknowledged, acknowledged + 1)


async def test_torn_last_write_costs_only_itself(tmp_path: Path) -> None:
    async with first_life(tmp_path, "killed") as kafka:
        topic = await kafka.create_topic("t")
        group = GroupRequests(kafka, "g")
        await group.commit(topic, 5)
        await group.commit(topic, 6)
    (log,) = [
        path
        for path in (tmp_path / "left").rglob("*")
        if path.is_file() and b"\x00\x01\x00\x01g\x00\x01t" in path.read_bytes()
    ]
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 3)
    async with broker_on(tmp_path / "left") as kafka:
        assert (await GroupRequests(kafka, "g").fetch("t")).committed_offset == 5
