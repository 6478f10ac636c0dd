"""When a membership lets the heartbeat thread be silent, or end: on a scripted coordinator."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator

import pytest

from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.consumer.membership.classic.membership import ClassicMembership
from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership
from aiokafka_lite.consumer.membership.protocol import Surroundings
from aiokafka_lite.errors import KafkaConnectionError
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
)
from aiokafka_lite.protocol.schema import Message
from tests.support.scripted_group import ScriptedBroker
from tests.support.waiting import until
from tests.support.worker import EpochWorker, Worker

T = bytes([1]) * 16


class Speaking:
    """Counts how often the thread wants to speak, and refuses."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> BlockingCluster:
        self.count += 1
        raise KafkaConnectionError("there is no other connection")


class Classic(Worker):
    """A member of a classic group that has a heartbeat thread."""

    heartbeat: type[Message] = HeartbeatRequest
    broker: ScriptedBroker

    def _make_membership(self, around: Surroundings) -> ClassicMembership:
        self.speaking = Speaking()
        return super()._make_membership(around._replace(open_cluster=self.speaking))


class Epoch(EpochWorker):
    """A member of a group of KIP-848 that has a heartbeat thread."""

    heartbeat: type[Message] = ConsumerGroupHeartbeatRequest
    broker: ScriptedBroker

    def _make_membership(self, around: Surroundings) -> ConsumerMembership:
        self.speaking = Speaking()
        return super()._make_membership(around._replace(open_cluster=self.speaking))


@pytest.fixture(params=[Classic, Epoch])
async def worker(request: pytest.FixtureRequest) -> AsyncIterator[Classic | Epoch]:
    async with ScriptedBroker({"t": 2}) as broker:
        broker.target = {T: [0, 1]}
        settings = {"heartbeat_interval_ms": 10}
        worker = request.param(f"127.0.0.1:{broker.port}", "g", ["t"], settings)
        worker.broker = broker
        await worker.start()
        yield worker
        await worker.die()


def threads() -> int:
    return sum(each.name == "heartbeats of g" for each in threading.enumerate())


async def test_the_thread_has_ended_when_the_member_has_left(worker: Classic | Epoch) -> None:
    assert threads() == 1
    await worker.leave()
    assert threads() == 0


async def test_the_thread_is_silent_once_everything_is_unsubscribed(
    worker: Classic | Epoch,
) -> None:
    worker.state.unsubscribe()
    await until(lambda: worker.member.state.name == "UNJOINED", worker)
    worker.speaking.count = 0
    time.sleep(0.04)  # noqa: ASYNC251 -- the loop is blocked
    assert worker.speaking.count == 0
    await worker.leave()


async def test_the_thread_is_silent_while_the_member_leaves_beside_a_heartbeat(
    worker: Classic | Epoch,
) -> None:
    beat = worker.broker.hold(worker.heartbeat)
    await beat.came()
    worker.state.unsubscribe()
    await until(
        lambda: not worker.member.is_member or worker.member.state.name == "LEAVING", worker
    )
    worker.speaking.count = 0
    time.sleep(0.04)  # noqa: ASYNC251 -- the loop is blocked
    assert worker.speaking.count == 0
    beat.release()
    await worker.leave()
