"""How a revocation divides its time, and which partitions of a block it counts as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import cast

import pytest

from aiokafka_lite.consumer.assignment.batches import OpenBatch
from aiokafka_lite.consumer.config import HOLD_MARGIN, ConsumerConfig
from aiokafka_lite.consumer.membership.listener import ListenerCalls
from aiokafka_lite.consumer.membership.protocol import GroupMember, LastCommits, Offsets
from aiokafka_lite.consumer.membership.revocation import Revocation
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support.buffers import A, B, Buffers, batch

pytestmark = pytest.mark.virtual_time
TIMEOUT_S = 10.0


class Member:
    """A member of which nothing is heard."""

    group_id = "g"

    def notify(self) -> None: ...

    async def wait_for_change(self) -> None:
        await asyncio.Event().wait()


class Commits:
    """Notes when a commit is made, and by when it has to be done."""

    def __init__(self) -> None:
        self.began_at = self.deadline = -1.0

    def is_committing(self, partitions: Collection[TopicPartition]) -> bool:
        return False

    async def settle_departed(self, deadline: float) -> None: ...

    async def commit_last(self, offsets: Offsets, *, deadline: float) -> Offsets:
        self.began_at, self.deadline = asyncio.get_running_loop().time(), deadline
        return {}


@pytest.mark.parametrize("is_batch", [False, True])
async def test_an_application_that_hangs_leaves_time_for_the_commit_and_the_listener(
    is_batch: bool,
) -> None:
    buffers, commits = Buffers(A), Commits()
    buffers.put({A: batch(0, 10)})
    block = OpenBatch(buffers.state, 60)
    found = await buffers.gets.many((), 0, 5)
    if is_batch:
        block.open(found)
    config = ConsumerConfig(
        group_id="g", rebalance_timeout_ms=int(TIMEOUT_S * 1000), rebalance_hold_ms=60_000
    )
    revocation = Revocation(
        config,
        buffers.state,
        cast(GroupMember, Member()),
        cast(LastCommits, commits),
        cast(ListenerCalls, None),
    )
    now = asyncio.get_running_loop().time()
    deadline = now + TIMEOUT_S
    await revocation.give_back({A}, "a test", deadline=deadline, why_lost=lambda: None)
    latest = deadline - HOLD_MARGIN * TIMEOUT_S
    assert now < commits.began_at <= latest < deadline
    assert commits.deadline == pytest.approx((commits.began_at + deadline) / 2)


async def test_a_block_has_lost_only_what_it_had_not_finished() -> None:
    buffers = Buffers(A, B)
    for tp in (A, B):
        buffers.put({tp: batch(0, 3)}, node_id=tp.partition)
    block = OpenBatch(buffers.state)
    block.open(await buffers.gets.many((), 0, None))
    buffers.state.note_finished({A: OffsetAndMetadata(3, "")})
    buffers.state.give_up_work({A, B}, 0)
    assert block.held() == {A}
    buffers.state.change({A, B}, ())
    assert block.lost() == {B}
    assert block.held() == frozenset()
