"""Which committed offsets go after a minute, and which stay: here and on Kafka alike.

For the long form: Kafka counts in minutes of its own clock.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite._virtual import wall_ms
from aiokafka_lite.broker import Broker
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import (
    GroupRequests,
    MemberOf,
    await_coordinator,
    subscription,
)
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

RETENTION_S = 60.0
NOTHING = -1
HEARTBEAT_S = 5.0


class Aging(ABC):
    """A cluster that keeps offsets for a minute, and looks for expired ones every second."""

    kafka: KafkaHandle

    @abstractmethod
    async def age(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""


class Simulated(Aging):
    def __init__(self, broker: Broker, elapsed_ms: list[int]) -> None:
        self.kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        self._elapsed_ms = elapsed_ms

    async def age(self, seconds: float) -> None:
        self._elapsed_ms[0] += int(seconds * 1000)
        await asyncio.sleep(0.5)  # of the loop's time: some checks


class Real(Aging):
    def __init__(self, kafka: RealKafka) -> None:
        self.kafka = KafkaHandle("real", kafka.bootstrap_servers)

    async def age(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture(params=["simulated", "real"])
async def aging(request: pytest.FixtureRequest) -> AsyncIterator[Aging]:
    if request.param == "simulated":
        elapsed_ms = [0]
        async with Broker(
            offsets_retention_minutes=1,
            offsets_retention_check_interval_ms=20,
            clock=lambda: wall_ms() + elapsed_ms[0],
        ) as broker:
            yield Simulated(broker, elapsed_ms)
            assert broker.failure is None
        return
    try:
        kafka = RealKafka(
            properties={
                "offsets.retention.minutes": "1",
                "offsets.retention.check.interval.ms": "1000",
            }
        )
    except KafkaUnavailableError as error:
        unavailable(error)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, kafka.__enter__)
    try:
        yield Real(kafka)
    finally:
        await loop.run_in_executor(None, kafka.close)


async def keep_alive(*members: tuple[GroupRequests, MemberOf]) -> None:
    while True:
        for requests, member in members:
            assert await requests.heartbeat(member) == 0
        await asyncio.sleep(HEARTBEAT_S)


async def test_offsets_go_when_nobody_needs_them_any_more(aging: Aging) -> None:
    kafka = aging.kafka
    await await_coordinator(kafka)
    topic = await kafka.create_topic("t")
    other = await kafka.create_topic("other")

    unmanaged, busy, left, moved_on = (
        GroupRequests(kafka, name) for name in ("unmanaged", "busy", "left", "moved-on")
    )
    assert await unmanaged.commit(topic, 1) == 0
    wants_topic = [("range", subscription(topic))]
    # Static members join at once. A group that only waits for one to come back with its new id is
    # empty, and goes with the next check: here and on Kafka.
    at_work = await busy.member("i", protocols=wants_topic)
    assert await busy.commit(topic, 2, member=at_work) == 0
    leaving = await left.member("i", protocols=wants_topic)
    assert await left.commit(topic, 3, member=leaving) == 0
    elsewhere = await moved_on.member("i", protocols=[("range", subscription(other))])
    assert await moved_on.commit(topic, 4, member=elsewhere) == 0
    assert await moved_on.commit(other, 5, member=elsewhere) == 0

    members = asyncio.ensure_future(keep_alive((busy, at_work), (moved_on, elsewhere)))
    try:
        # Half of the time is over for all, when one group becomes empty.
        await aging.age(RETENTION_S / 2)
        await left.leave((leaving.member_id, None))
        await aging.age(RETENTION_S / 2 + 3)

        async def committed(requests: GroupRequests, name: str) -> int:
            return (await requests.fetch(name)).committed_offset

        assert await committed(unmanaged, topic) == NOTHING
        assert await unmanaged.listed() is None
        assert await committed(busy, topic) == 2
        # An empty group's offsets count from when it became empty.
        assert await committed(left, topic) == 3
        assert await committed(moved_on, topic) == NOTHING
        assert await committed(moved_on, other) == 5

        await aging.age(RETENTION_S / 2)
        assert await committed(left, topic) == NOTHING
        assert await left.listed() is None
        assert await committed(busy, topic) == 2
        listed = await busy.listed()
        assert listed is not None
        assert listed.group_state == "Stable"
    finally:
        members.cancel()
        await asyncio.gather(members, return_exceptions=True)
