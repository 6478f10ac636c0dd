"""The rebalance listeners of members: plain ones, slow ones, ones that raise or act."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.simulation.history import Kind
from aiokafka_lite.structs import TopicPartition
from tests.simulation.plan import ACKS, RUNS, SEEKING

if TYPE_CHECKING:
    from tests.simulation.member import Member

# How many records a seek goes back.
BACK: Final = 5
PAUSES_S: Final = (0.0, 0.1, 0.5, 1.5)


class BoomError(KafkaError):
    """What a listener raises. One read raises it, too."""


class Listener(ConsumerRebalanceListener):
    def __init__(self, member: Member) -> None:
        self._member = member

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._note(Kind.ASSIGNED, assigned)
        await self._act()
        if self._member.plan.listener == "acts" and assigned:
            await self._move(self._member.rng.choice(sorted(assigned)))

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._note(Kind.REVOKED, revoked)
        await self._act()
        if self._member.plan.listener == "acts" and revoked:
            await self._commit()

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._note(Kind.LOST, lost)
        await self._act()

    def _note(self, kind: Kind, tps: Collection[TopicPartition]) -> None:
        member = self._member
        member.history.note_partitions(kind, member.name, tps)
        for tp in tps:
            member.forget(tp)

    async def _act(self) -> None:
        member = self._member
        if member.plan.listener == "slow":
            await asyncio.sleep(member.rng.choice(PAUSES_S))
        elif member.plan.listener == "raises" and member.is_wild and member.rng.random() < 0.3:
            raise BoomError("the listener fails")

    async def _move(self, tp: TopicPartition) -> None:
        """Ask for a position, and go back by some records, if the way of reading can."""
        member, consumer = self._member, self._member.consumer
        assert consumer is not None
        with suppress(KafkaError):
            position = await consumer.position(tp)
            may_seek = member.plan.way in SEEKING and member.rng.random() < 0.5
            if may_seek and member.is_wild and tp in consumer.assignment():
                goal = max(0, position - member.rng.randrange(BACK))
                member.history.note(Kind.SOUGHT, member.name, tp, goal)
                consumer.seek(tp, goal)

    async def _commit(self) -> None:
        """Commit what handlers have finished, whatever others are being processed."""
        consumer = self._member.consumer
        assert consumer is not None
        if self._member.plan.way in (*RUNS, *ACKS):
            with suppress(KafkaError):
                await consumer.commit()
