"""The rebalance listeners of members: plain, slow, raising, and ones that use the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.errors import IllegalStateError, KafkaError
from aiokafka_lite.structs import TopicPartition
from tests.model import actions
from tests.model.ledger import Callback
from tests.model.member import GRACE_S, STOP_S, Boom, Member


def make_listener(member: Member) -> ConsumerRebalanceListener | None:
    """Make the listener of a member's kind."""
    if member.habits.listener == "none":
        return None
    return _PlainListener(member) if member.habits.listener == "plain" else _Listener(member)


@contextmanager
def _calling(member: Member, name: str) -> Iterator[None]:
    member.write(Callback(name=name))
    member.listener_depth += 1
    try:
        yield
    finally:
        member.listener_depth -= 1
        member.write(Callback(name=name, is_over=True))


class _PlainListener(ConsumerRebalanceListener):
    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        with _calling(self._member, "assigned"):
            pass

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        with _calling(self._member, "revoked"):
            pass


class _Listener(ConsumerRebalanceListener):
    def __init__(self, member: Member) -> None:
        self._member = member

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._act("assigned", ON_ASSIGNED)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._act("revoked", ON_REVOKED)

    async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        await self._act("lost", ON_LOST)

    async def _act(self, name: str, choices: tuple[tuple[float, Action], ...]) -> None:
        member = self._member
        kind, rng = member.habits.listener, member.rng
        with _calling(member, name):
            if kind == "slow":
                await asyncio.sleep(rng.choice((0.1, 0.5, 1.5)))
            elif kind == "raising":
                await asyncio.sleep(0)
                if rng.random() < 0.5:
                    raise Boom(name)
            elif kind == "acting" and rng.random() < 0.7:
                weights = [weight for weight, _ in choices]
                _, action = rng.choices(choices, weights)[0]
                try:
                    await action(member)
                except (KafkaError, IllegalStateError) as error:
                    member.raised(f"in on_partitions_{name}", error)
            else:
                await asyncio.sleep(rng.choice((0.0, 0.02)))


async def _get(member: Member) -> None:
    wait_ms = member.rng.choice((0, 50))
    getting = member.consumer.getmany(timeout_ms=wait_ms)
    member.handed(await member.call("getmany in a callback", getting, wait_ms / 1000 + GRACE_S))


async def _stop(member: Member) -> None:
    member.finish("stop in a callback")
    await member.call("stop in a callback", member.consumer.stop(), STOP_S + GRACE_S)


async def _block(member: Member) -> None:
    await actions.ACTIONS["block"](member)


Action = Callable[[Member], Awaitable[None]]
ON_ASSIGNED: Final[tuple[tuple[float, Action], ...]] = (
    (3, actions.seek_back),
    (2, actions.seek_forward),
    (2, actions.ACTIONS["seek to committed"]),
    (2, actions.ACTIONS["ask for position"]),
    (2, actions.pause),
    (2, actions.commit_in_callback),
    (3, _get),
    (1, _block),
    (0.3, _stop),
)
ON_REVOKED: Final[tuple[tuple[float, Action], ...]] = (
    (4, actions.commit_in_callback),
    (4, actions.commit_some),
    (1, actions.seek_back),
    (1, actions.pause),
    (3, _get),
    (1, actions.ACTIONS["ask for committed"]),
    (1, _block),
    (0.3, _stop),
)
ON_LOST: Final[tuple[tuple[float, Action], ...]] = (
    (1, actions.commit_in_callback),
    (1, _get),
    (1, _block),
)
