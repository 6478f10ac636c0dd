"""Says what an error of a group's coordinator means, whichever protocol the group speaks."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from aiokafka_lite import errors
from aiokafka_lite.errors import FencedInstanceIdError, KafkaError


class Recovery(enum.IntEnum):
    """Says what to do about a failed request to the coordinator, from the least to the gravest."""

    RETRY = 0  # the same again after a pause
    REDISCOVER = 1  # the same again, to whoever is the coordinator now
    NEW_EPOCH = 2  # the same again, under the epoch that the next heartbeat brings (KIP-848)
    REBALANCE = 3  # the group rebalances: take part, and then the same again
    LOST_GENERATION = 4  # join again under the same member id
    LOST_MEMBERSHIP = 5  # join again under a new member id
    FENCED = 6  # give up: somebody else is this member
    SURFACE = 7  # the application has to know, or to act

    @property
    def is_about_membership(self) -> bool:
        """Whether the group has something to say about the member, not about the request."""
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
# What keeps a member that asks for the consumer protocol out of a group that stays a classic one.
KEPT_CLASSIC: Final = (errors.GroupIdNotFound, errors.InconsistentGroupProtocolError)


def taken_over(group_id: str, group_instance_id: str | None) -> FencedInstanceIdError:
    """Return the error for who finds another consumer in its place; says what to do about it."""
    return FencedInstanceIdError(
        f"group {group_id}: another consumer uses group_instance_id {group_instance_id!r} and "
        "has replaced this one, which can no longer read or commit. Give each consumer a "
        "group_instance_id of its own"
    )


def recovery_for(error: KafkaError) -> Recovery:
    """Return what to do about an error; what is not in the table goes by its kind."""
    for kind in type(error).__mro__:
        if (recovery := RECOVERIES.get(kind)) is not None:
            return recovery
    if isinstance(error, errors.BrokerResponseError):
        return Recovery.RETRY if error.retriable else Recovery.SURFACE
    # A connection that broke or a request without an answer: the node may be gone for good.
    return Recovery.REDISCOVER if error.retriable else Recovery.SURFACE
