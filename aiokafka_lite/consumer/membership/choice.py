"""Chooses the group protocol: classic, KIP-848 ("consumer"), or "auto".

"auto" first tries to join with KIP-848. If the coordinator does not support it, has it switched
off, or keeps this group classic, a new classic member takes over before any assignment. Custom
assignors require the classic protocol, because the coordinator cannot run them.

References: KIP-848, KIP-1274 (the default of Java's client).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from aiokafka_lite._chance import UNSEEDED, Chance
from aiokafka_lite.consumer.assignors import RebalanceProtocol
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.protocol import GroupStatus, Membership
from aiokafka_lite.consumer.membership.recovery import KEPT_CLASSIC
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.consumer.membership.surroundings import Surroundings
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    KafkaError,
)
from aiokafka_lite.events import GroupProtocolChanged

if TYPE_CHECKING:
    from aiokafka_lite.consumer.membership.kip848.member import ConsumerMember
    from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership

log = logging.getLogger(__name__)


class EitherMembership:
    """A Membership that begins with KIP-848, and may change to the classic protocol."""

    def __init__(self, around: Surroundings, first: ConsumerMember) -> None:
        self._around = around
        self._group_id = first.group_id
        self._first = self._begin(first)
        self.now: Membership = self._first
        self._kept_classic_by = ""
        self._starting: asyncio.Task[None] | None = None

    def _begin(self, first: ConsumerMember) -> ConsumerMembership:
        from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership

        return ConsumerMembership(self._around, first, fall_back=self.fall_back)

    def _take_over(self) -> Membership:
        second, make_second = _classic(self._around.core.config, self._group_id)
        self._around.commits.become(second)
        return make_second(self._around)

    def fall_back(self, error: KafkaError) -> None:
        """Called by a task of the first membership, which this ends."""
        reason = str(error)
        if isinstance(error, KEPT_CLASSIC):
            self._kept_classic_by = reason
        log.info(
            "group %s is joined with the classic protocol, because KIP-848 cannot be used: %s",
            self._group_id,
            reason,
        )
        self._around.core.events.publish(GroupProtocolChanged("classic", reason))
        self.now = self._take_over()
        self._first.stop_trying()
        self._starting = self._around.scope.spawn(self.now.start(), name="group protocol")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    @property
    def status(self) -> GroupStatus | None:
        status = self.now.status
        return status and status._replace(kept_classic_by=self._kept_classic_by)

    async def wait_assigned(self) -> None:
        while True:
            if self._starting is not None:
                await asyncio.wait({self._starting})
            now = self.now
            try:
                await now.wait_assigned()
            except ConsumerStoppedError:
                if now is self.now:
                    raise
            if now is self.now:
                return


# --- The choice -------------------------------------------------------------------------------
MakeMembership = Callable[[Surroundings], Membership]


def member_of(
    config: ConsumerConfig, group_id: str, *, known_as: str = "", chance: Chance = UNSEEDED
) -> tuple[GroupMember, MakeMembership]:
    """Return a member, with the id of an earlier start if known, and what makes its membership."""
    if config.joins_as == "classic":
        return _classic(config, group_id, known_as=known_as)
    _tell_of_unused_settings(config)
    # Imported here, because most consumers need one of the two.
    from aiokafka_lite.consumer.membership.kip848.member import ConsumerMember
    from aiokafka_lite.consumer.membership.kip848.membership import ConsumerMembership

    first = ConsumerMember(group_id, config.group_instance_id, member_id=known_as, chance=chance)
    if config.joins_as == "consumer":
        return first, lambda around: ConsumerMembership(around, first)
    return first, lambda around: cast("Membership", EitherMembership(around, first))


def _classic(
    config: ConsumerConfig, group_id: str, *, known_as: str = ""
) -> tuple[GroupMember, MakeMembership]:
    from aiokafka_lite.consumer.membership.classic.member import Member
    from aiokafka_lite.consumer.membership.classic.membership import ClassicMembership
    from aiokafka_lite.consumer.membership.classic.rebalance import common_protocol

    protocol = common_protocol(config.partition_assignment_strategy)
    is_cooperative = protocol is RebalanceProtocol.COOPERATIVE
    member = Member(
        group_id, config.group_instance_id, is_cooperative=is_cooperative, member_id=known_as
    )

    def make(around: Surroundings) -> Membership:
        return ClassicMembership(around, member)

    return member, make


def _tell_of_unused_settings(config: ConsumerConfig) -> None:
    if unused := config.unused_by_consumer_protocol:
        log.warning(
            "group %s: with the consumer protocol (KIP-848), the broker's configuration replaces "
            "%s of this consumer. A given session_timeout_ms is only the consumer's estimate of "
            "the broker's session timeout",
            config.group_id,
            " and ".join(unused),
        )
