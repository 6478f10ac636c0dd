"""Does what the leader of a group does by itself: reads what members said, shares out, answers.

For a large group that takes longer than the event loop should be held for: a tenth of a second for
a hundred members with a thousand partitions, if they subscribe to different topics. Then another
thread does it, and the heartbeat, other consumers and the application go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from aiokafka_lite._threads import compute
from aiokafka_lite.client import ClusterView, TopicsOfCluster
from aiokafka_lite.consumer.assignors import Assignor, ConsumerProtocolMemberMetadata
from aiokafka_lite.consumer.assignors.blobs import decode_subscriptions, encode_assignments
from aiokafka_lite.protocol.messages.classic_group import JoinGroupResponseMember

# About what it takes for each partition that is shared out, more where members are in racks, and
# for each byte that members said.
PARTITION_S: Final = 5e-6
PARTITION_IN_RACKS_S: Final = 20e-6
BYTE_S: Final = 0.5e-6
# What the loop may be held for: less than a thread that computes holds it for, if it has to.
ON_LOOP_S: Final = 5e-3

T = TypeVar("T")


async def read_members(
    members: Sequence[JoinGroupResponseMember],
) -> dict[str, ConsumerProtocolMemberMetadata]:
    """Decode what the members of a group told their leader, by member id."""
    return await _done(lambda: decode_subscriptions(members), _reading_s(members))


async def share_out(
    assignor: Assignor,
    view: ClusterView,
    members: Mapping[str, ConsumerProtocolMemberMetadata],
    *,
    said: Sequence[JoinGroupResponseMember],
    partition_count: int,
) -> Mapping[str, bytes]:
    """Return what each member is given, encoded.

    An assignor that does not say that it may run in a thread runs on the loop: it may be one that
    was written for aiokafka, which knows no threads.

    Args:
        assignor: The rule.
        view: The topics of all members.
        members: What they said, decoded.
        said: The same as it came.
        partition_count: How many partitions are shared out.
    """

    def work() -> Mapping[str, bytes]:
        return encode_assignments(assignor.assign(TopicsOfCluster(view), members))

    if not getattr(assignor, "may_assign_in_thread", False):
        return work()
    each_s = PARTITION_IN_RACKS_S if do_racks_count(assignor, members) else PARTITION_S
    return await _done(work, _reading_s(said) + partition_count * each_s)


def do_racks_count(
    assignor: Assignor, members: Mapping[str, ConsumerProtocolMemberMetadata]
) -> bool:
    """Whether it may make a difference to the shares where replicas are."""
    is_rack_aware = getattr(assignor, "is_rack_aware", False)
    return is_rack_aware and any(member.rack_id is not None for member in members.values())


def _reading_s(members: Sequence[JoinGroupResponseMember]) -> float:
    return BYTE_S * sum(len(member.metadata) for member in members)


async def _done(work: Callable[[], T], estimate_s: float) -> T:
    """Do it here, or in a thread if it takes long; cancelling leaves the thread to itself."""
    if estimate_s <= ON_LOOP_S:
        return work()
    return await compute(work)
