"""Maps errors of a group's coordinator to the way to recover from them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from aiokafka_lite import errors
from aiokafka_lite._compat import Self
from aiokafka_lite.errors import FencedInstanceIdError, KafkaError


class Recovery(enum.IntEnum):
    """The way to recover from a failed request, ordered by gravity."""

    RETRY = 0  # after a pause
    REDISCOVER = 1  # look up the coordinator, and retry
    NEW_EPOCH = 2  # retry with the epoch of the next heartbeat response (KIP-848)
    REBALANCE = 3  # rejoin, and retry
    LOST_GENERATION = 4  # join again with the same member id
    LOST_MEMBERSHIP = 5  # join again with a new member id
    FENCED = 6  # give up: another consumer has the group_instance_id
    SURFACE = 7  # raise the error

    @property
    def is_about_membership(self) -> bool:
        return Recovery.REBALANCE <= self <= Recovery.FENCED


RECOVERIES: Final[Mapping[type[KafkaError], Recovery]] = MappingProxyType(
    {
        errors.CoordinatorLoadInProgressError: Recovery.RETRY,
        errors.NotCoordinatorError: Recovery.REDISCOVER,
        errors.CoordinatorNotAvailableError: Recovery.REDISCOVER,
        errors.RequestTimedOutError: Recovery.REDISCOVER,
        errors.UnreleasedInstanceIdError: Recovery.RETRY,
        errors.StaleMemberEpochError: Recovery.NEW_EPOCH,
        errors.RebalanceInProgressError: Recovery.REBALANCE,
        errors.IllegalGenerationError: Recovery.LOST_GENERATION,
        errors.FencedMemberEpochError: Recovery.LOST_GENERATION,
        errors.UnknownMemberIdError: Recovery.LOST_MEMBERSHIP,
        errors.GroupIdNotFound: Recovery.LOST_MEMBERSHIP,
        errors.FencedInstanceIdError: Recovery.FENCED,
    }
)
# Errors of a KIP-848 heartbeat to a group that has to stay a classic one.
KEPT_CLASSIC: Final = (errors.GroupIdNotFound, errors.InconsistentGroupProtocolError)


def taken_over(group_id: str, group_instance_id: str | None) -> FencedInstanceIdError:
    return FencedInstanceIdError(
        f"group {group_id}: another consumer uses group_instance_id {group_instance_id!r} and "
        "has replaced this one, which can no longer read or commit. Give each consumer a "
        "group_instance_id of its own"
    )


def recovery_for(error: KafkaError) -> Recovery:
    for kind in type(error).__mro__:
        if (recovery := RECOVERIES.get(kind)) is not None:
            return recovery
    if isinstance(error, errors.BrokerResponseError):
        return Recovery.RETRY if error.retriable else Recovery.SURFACE
    # A connection that broke, or a request without an answer: the node may be down.
    return Recovery.REDISCOVER if error.retriable else Recovery.SURFACE


def is_about_the_group(error_code: int) -> bool:
    """Whether an error that a response repeats for each partition concerns the whole request."""
    kind = errors.for_code(error_code)
    return kind in RECOVERIES or kind is errors.GroupAuthorizationFailedError


class Interruption(enum.IntEnum):
    """The reason for a rebalance, or for the loss of the partitions, ordered by gravity.

    The text is the reason in JoinGroup (KIP-800).
    """

    SUBSCRIPTION_CHANGED = 0, "the subscription has changed"
    PARTITIONS_CHANGED = 1, "partitions of the group's topics were added, removed or moved"
    PARTITIONS_UNOWNED = 2, "partitions of the group's topics may have no owner"
    PARTITIONS_REVOKED = 3, "partitions were revoked so that other members can take them"
    GROUP_REBALANCES = 4, "the group rebalances"
    POLL_INTERVAL_EXCEEDED = 5, "the application requested no records within max_poll_interval_ms"
    LOST_GENERATION = 6, "the generation, or member epoch, is over"
    LOST_MEMBERSHIP = 7, "the coordinator no longer knows the member"
    FENCED = 8, "another member uses the same group_instance_id"

    text: str

    def __new__(cls, gravity: int, text: str) -> Self:
        member = int.__new__(cls, gravity)
        member._value_ = gravity
        member.text = text
        return member

    @property
    def is_loss(self) -> bool:
        return self >= Interruption.LOST_GENERATION


INTERRUPTION_BY_RECOVERY: Final[Mapping[Recovery, Interruption]] = MappingProxyType(
    {
        Recovery.REBALANCE: Interruption.GROUP_REBALANCES,
        Recovery.LOST_GENERATION: Interruption.LOST_GENERATION,
        Recovery.LOST_MEMBERSHIP: Interruption.LOST_MEMBERSHIP,
        Recovery.FENCED: Interruption.FENCED,
    }
)


def interruption_by(error: KafkaError) -> Interruption | None:
    return INTERRUPTION_BY_RECOVERY.get(recovery_for(error))


def loss_by(error: KafkaError) -> Interruption | None:
    interruption = interruption_by(error)
    return interruption if interruption is not None and interruption.is_loss else None
