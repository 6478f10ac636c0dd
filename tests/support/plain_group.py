"""The commits of a consumer without a group, a coordinator and a cluster.

These are plain objects that do what a test says. Time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, cast

from aiokafka_lite._tasks import Event
from aiokafka_lite.client.view import ClusterView, TopicView
from aiokafka_lite.consumer.commits.commits import Commits
from aiokafka_lite.consumer.commits.pending import CommitKind, PendingCommit
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.errors import ClientClosedError, CommitFailedError, KafkaError
from aiokafka_lite.protocol.messages.metadata import MetadataResponse
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.scripted_group import commit_answer
from tests.support.states import NotedGate, State

A: Final = TopicPartition("t", 0)
B: Final = TopicPartition("t", 1)
FIRST: Final = Identity("m", 1)
NEXT: Final = Identity("m", 2)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, "")


class Member:
    """A member whose group does what a test says."""

    group_id = "g"
    group_instance_id = None
    is_fenced = False

    def __init__(self) -> None:
        self.identity = FIRST
        self.assigned_as: Identity | None = FIRST
        self.reads_as: Identity | None = None
        self.is_taking = True
        self.takes_put_off = True
        self.is_lost_by_refusals = False
        self.lost: set[TopicPartition] = set()
        self.refusals: list[type[KafkaError]] = []
        self._changed = Event()

    @property
    def is_rebalancing(self) -> bool:
        return not self.is_taking

    def takes_commits(self, *, was_put_off: bool = False, is_departed: bool = False) -> bool:
        return self.is_taking and (self.takes_put_off or not was_put_off)

    def commits_as(
        self, made_as: Identity, *, has_waited: bool, is_departed: bool
    ) -> Identity | None:
        is_next = made_as.generation + has_waited >= self.identity.generation
        return self.identity if is_departed or is_next else None

    def has_kept(self, tp: TopicPartition, made_as: Identity) -> bool:
        return tp not in self.lost

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> bool:
        self.refusals.append(type(error))
        return self.is_lost_by_refusals

    def why_lost(self) -> CommitFailedError:
        return CommitFailedError("lost")

    def notify(self) -> None:
        self._changed.pulse()

    async def wait_for_change(self, until: float | None = None) -> bool:
        return await self._changed.wait(until)


class Transaction:
    """A transaction of some producer."""

    is_over = is_settled = False

    def hold(self, block: object) -> None: ...


class Cluster:
    """What is known of topics, and whether the client is closed."""

    def __init__(self) -> None:
        self.view = ClusterView(topics={"t": TopicView("t", b"t" * 16)})
        self.is_closed = False
        self.calls: list[str] = []
        self.answers: list[Exception | MetadataResponse] = []
        self.asked_at: list[float] = []

    def raise_if_closed(self) -> None:
        if self.is_closed:
            raise ClientClosedError("closed")

    def invalidate(self) -> None:
        self.calls.append("invalidate")

    async def refresh(self) -> ClusterView:
        self.calls.append("refresh")
        return self.view

    async def request_any(self, request: object) -> MetadataResponse:
        self.asked_at.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Coordinator:
    """Answers as a test says, and otherwise well; keeps the offsets of what it takes."""

    def __init__(self) -> None:
        self.commits: list[dict[TopicPartition, int]] = []
        # In whose names these came.
        self.senders: list[Identity] = []
        self.fetches: list[list[int]] = []
        self.errors: list[type[KafkaError] | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        # Error codes of partitions, by number.
        self.codes: list[dict[int, int]] = []

    async def request(self, request: Any, *, error_code: object, **_: object) -> object:
        if isinstance(request, OffsetFetchRequest):
            return self.fetch(request)
        assert isinstance(request, OffsetCommitRequest)
        (topic,) = request.topics
        found = {
            TopicPartition("t", each.partition_index): each.committed_offset
            for each in topic.partitions
        }
        self.commits.append(found)
        self.senders.append(Identity(request.member_id, request.generation_id_or_member_epoch))
        await self.gate.wait()
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error("refused")
        return commit_answer(request)

    def fetch(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        (group,) = request.groups
        assert group.topics is not None
        (topic,) = group.topics
        self.fetches.append(list(topic.partition_indexes))
        codes = self.codes.pop(0) if self.codes else {}
        partitions = [
            OffsetFetchResponsePartitions(
                partition_index=number,
                committed_offset=7 + number,
                metadata="",
                error_code=codes.get(number, 0),
            )
            for number in topic.partition_indexes
            if codes.get(number) != -1
        ]
        answer = OffsetFetchResponseTopics(
            name=topic.name, topic_id=topic.topic_id, partitions=partitions
        )
        return OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup(group_id=group.group_id, topics=[answer])]
        )


class Group:
    """The commits of a consumer that has two partitions of a topic, with ten records each."""

    def __init__(self, **settings: Any) -> None:
        self.member, self.cluster, self.coordinator = Member(), Cluster(), Coordinator()
        self.state = State()
        self.state.subscribe(["t"])
        self.give(A, B)
        self.state.gate = gate = NotedGate()
        self.posted = gate.posted
        self.commits = Commits(
            self.state.core(ConsumerConfig(retry_backoff_ms=20, **settings)),
            cast("Any", self.cluster),
            cast("Any", self.coordinator),
            cast("Any", self.member),
        )

    def give(self, *tps: TopicPartition) -> None:
        self.state.change(tps, tps)
        for tp in tps:
            cursor = self.state.partition(tp)
            cursor.topic_id = b"t" * 16
            self.state.seek(cursor, 0)
            self.state.reads.begin_get()
            self.state.reads.hand_out(cursor, 0, 10, ())

    def departed(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> PendingCommit:
        return self.commits.make(offsets, CommitKind.DEPARTED)

    def rebalance(self, *tps: TopicPartition) -> None:
        """End a rebalance that gives partitions back."""
        self.member.identity = self.member.assigned_as = NEXT
        self.give(*tps)
        self.member.is_taking = True
        self.member.notify()


async def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Begin something that has to wait."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.001)
    assert not task.done()
    return task


def in_s(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def took_s(work: Awaitable[object]) -> float:
    began_at = in_s(0)
    await work
    return in_s(0) - began_at
