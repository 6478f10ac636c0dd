"""Locks end after their duration, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.broker import Broker
from tests.broker.share.requests import RENEW, ShareGroup, produce, share_group
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator

pytestmark = pytest.mark.virtual_time

INVALID_STATE = 121


@pytest.fixture
async def group() -> AsyncIterator[ShareGroup]:
    """A group with locks of 30 s, of a topic with three records."""
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_coordinator(kafka)
        group = await share_group(kafka)
        await produce(group, 3)
        await group.start()
        yield group
        assert broker.failure is None


async def test_record_is_available_again_when_its_lock_ends(group: ShareGroup) -> None:
    loop = asyncio.get_running_loop()
    async with group.member() as member:
        begin = loop.time()
        assert (await member.fetch()).ranges == [(0, 2, 1)]
        # The end of a lock ends long polls.
        assert (await member.fetch(max_wait_ms=60_000)).ranges == [(0, 2, 2)]
        assert loop.time() - begin == pytest.approx(30, abs=1)


async def test_renewal_begins_the_duration_again(group: ShareGroup) -> None:
    loop = asyncio.get_running_loop()
    async with group.member() as member:
        begin = loop.time()
        await member.fetch()
        await asyncio.sleep(20)
        assert await member.acknowledge((0, 0, RENEW), is_renew=True) == 0
        assert (await member.fetch(max_wait_ms=60_000)).ranges == [(1, 2, 2)]
        assert loop.time() - begin == pytest.approx(30, abs=1)
        assert (await member.fetch(max_wait_ms=60_000)).ranges == [(0, 0, 2)]
        assert loop.time() - begin == pytest.approx(50, abs=1)


async def test_lock_that_has_ended_is_not_renewed(group: ShareGroup) -> None:
    async with group.member() as member:
        await member.fetch()
        await asyncio.sleep(31)
        assert await member.acknowledge((0, 0, RENEW), is_renew=True) == INVALID_STATE


async def test_record_is_archived_after_its_last_lock(group: ShareGroup) -> None:
    async with group.member() as member:
        counts = []
        while got := (await member.fetch(max_wait_ms=60_000)).ranges:
            counts += [count for first, last, count in got for _ in range(first, last + 1)]
        assert sorted(counts) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]


async def test_lock_that_begins_at_the_end_of_another_ends_once(group: ShareGroup) -> None:
    loop, failures = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    async with group.member() as member:
        await member.fetch()
        assert (await member.fetch(max_wait_ms=60_000)).ranges == [(0, 2, 2)]
        await asyncio.sleep(31)
    assert failures == []
