"""Commits of a member whose epoch moves while it keeps its partitions, as by KIP-848."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from aiokafka_lite import errors
from aiokafka_lite._tasks import Event
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.errors import CommitFailedError, KafkaError
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from aiokafka_lite.protocol.schema import Message
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.scripted_group import ScriptedBroker, refused_commit
from tests.support.worker import Worker

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


class EpochMember:
    """A member that gets a new epoch as soon as it hears that its own is stale."""

    group_id = "g"
    group_instance_id = None
    is_fenced = is_rebalancing = False

    def __init__(self) -> None:
        self.identity = Identity("m", 5)
        self.refusals: list[KafkaError] = []
        self._changed = Event()

    @property
    def assigned_as(self) -> Identity | None:
        return self.identity

    @property
    def reads_as(self) -> Identity | None:
        return self.identity

    def takes_commits(self, *, was_put_off: bool = False, is_departed: bool = False) -> bool:
        return True

    def commits_as(
        self, made_as: Identity, *, has_waited: bool, is_departed: bool
    ) -> Identity | None:
        return self.identity if made_as.member_id == self.identity.member_id else None

    def has_kept(self, tp: TopicPartition, made_as: Identity) -> bool:
        return True

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> bool:
        self.refusals.append(error)
        self.identity = self.identity._replace(generation=sent_as.generation + 1)
        return isinstance(error, errors.UnknownMemberIdError)

    def why_lost(self) -> CommitFailedError:
        return CommitFailedError("the member is unknown")

    def notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    async def wait_for_change(self, until: float | None = None) -> None:
        await self._changed.wait()


class Member:
    """What commits need, around such a member; nobody takes part in the group."""

    def __init__(self, worker: Worker) -> None:
        self.member = EpochMember()
        self.state = worker.state
        self.commits = Commits(
            worker.state.core(worker.config, rng=random.Random(0)),
            worker.cluster,
            Coordinator(worker.cluster, "g", worker.state.events),
            cast("Any", self.member),
        )


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 2}) as broker:
        yield broker


@asynccontextmanager
async def member_of(broker: ScriptedBroker) -> AsyncIterator[Member]:
    worker = Worker(f"127.0.0.1:{broker.port}", "g", ["t"])
    await worker.cluster.start()
    worker.state.change((), [TP, OTHER])
    try:
        yield Member(worker)
    finally:
        await worker.die()


def epochs_of_commits(broker: ScriptedBroker) -> list[int]:
    return [r.generation_id_or_member_epoch for r in broker.asked(OffsetCommitRequest)]


async def test_a_commit_under_a_stale_epoch_is_sent_again_under_the_new_one(
    broker: ScriptedBroker,
) -> None:
    broker.script(OffsetCommitRequest, *[refused_commit(errors.StaleMemberEpochError)] * 2)
    async with member_of(broker) as it:
        await it.commits.commit({TP: 3})
    assert epochs_of_commits(broker) == [5, 6, 7]
    assert broker.offsets == {("t", 0): (3, "")}


async def test_so_is_what_is_committed_before_partitions_are_given_back(
    broker: ScriptedBroker,
) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.StaleMemberEpochError))
    async with member_of(broker) as it:
        deadline = asyncio.get_running_loop().time() + 5
        left = await it.commits.commit_last({TP: OffsetAndMetadata(3, "")}, deadline=deadline)
    assert left == {}
    assert epochs_of_commits(broker) == [5, 6]


async def test_a_commit_that_is_tried_again_leaves_out_nothing_and_fails_for_what_went(
    broker: ScriptedBroker,
) -> None:
    async with member_of(broker) as it:

        def take_it_away(request: Message) -> OffsetCommitResponse:
            it.state.change([TP], ())
            return refused_commit(errors.StaleMemberEpochError)(request)

        broker.script(OffsetCommitRequest, take_it_away)
        with pytest.raises(CommitFailedError, match="no longer assigned"):
            await it.commits.commit({TP: 3, OTHER: 4})
    assert epochs_of_commits(broker) == [5]


async def test_nothing_is_handed_out_once_a_commit_has_said_that_the_member_is_unknown(
    broker: ScriptedBroker,
) -> None:
    broker.script(OffsetCommitRequest, refused_commit(errors.UnknownMemberIdError))
    async with member_of(broker) as it:
        with pytest.raises(CommitFailedError):
            await it.commits.commit({TP: 3})
        assert Hold.LOST in it.state.gate.holds


async def test_a_read_under_a_stale_epoch_is_asked_again_and_is_not_nothing_committed(
    broker: ScriptedBroker,
) -> None:
    def refuse(request: Message) -> OffsetFetchResponse:
        code = errors.StaleMemberEpochError.errno
        it.member.identity = Identity("m", 6)
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", error_code=code)])

    broker.offsets[("t", 0)] = (7, "")
    broker.script(OffsetFetchRequest, refuse)
    async with member_of(broker) as it:
        assert await it.commits.committed([TP]) == {TP: OffsetAndMetadata(7, "")}
    readers = [
        (group.member_id, group.member_epoch)
        for request in broker.asked(OffsetFetchRequest)
        for group in request.groups
    ]
    assert readers == [("m", 5), ("m", 6)]
