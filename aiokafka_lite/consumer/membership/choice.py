"""Chooses the group protocol: classic, KIP-848 ("consumer"), or "auto".

"auto" first tries to join with KIP-848. If the coordinator does not support it, has it switched
off, or keeps this group classic, a new classic member takes over before any assignment. Custom
assignors require the classic protocol, because the coordinator cannot run them.

References: KIP-848, KIP-1274 (the default of Java's client).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiokafka_lite._chance import UNSEEDED, Chance
from aiokafka_lite.consumer.assignors import RebalanceProtocol
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.protocol import Membership, Surroundings
from aiokafka_lite.consumer.membership.recovery import KEPT_CLASSIC
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.events import GroupProtocolChanged

log = logging.getLogger(__name__)

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

    def make(around: Surroundings) -> Membership:
        def fall_back(error: KafkaError) -> None:
            membership.stop_trying()
            around.replace(_classic_instead(around, group_id, error))

        membership = ConsumerMembership(around, first, fall_back=fall_back)
        return membership

    return first, make


def _classic_instead(around: Surroundings, group_id: str, error: KafkaError) -> Membership:
    reason = str(error)
    log.info(
        "group %s is joined with the classic protocol, because KIP-848 cannot be used: %s",
        group_id,
        reason,
    )
    around.core.events.publish(GroupProtocolChanged("classic", reason))
    kept_classic_by = reason if isinstance(error, KEPT_CLASSIC) else ""
    second, make_second = _classic(around.core.config, group_id, kept_classic_by=kept_classic_by)
    around.commits.become(second)
    return make_second(around)


def _classic(
    config: ConsumerConfig, group_id: str, *, known_as: str = "", kept_classic_by: str = ""
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
        return ClassicMembership(around, member, kept_classic_by=kept_classic_by)

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
