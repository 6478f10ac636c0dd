"""The leader's computation of a group's assignment, in a thread if it is expected to take long.

For a hundred members with a thousand partitions it takes a tenth of a second, if they subscribe to
different topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from aiokafka_lite._threads import compute
from aiokafka_lite.client import ClusterView, TopicsOfCluster
from aiokafka_lite.consumer.assignors import Assignor, ConsumerProtocolMemberMetadata
from aiokafka_lite.consumer.assignors.blobs import decode_subscriptions, encode_assignments
from aiokafka_lite.protocol.messages.classic_group import JoinGroupResponseMember

# Estimated times for each partition, for a partition if members have racks, and for each byte of
# the subscriptions.
PARTITION_S: Final = 5e-6
PARTITION_IN_RACKS_S: Final = 20e-6
BYTE_S: Final = 0.5e-6
# The loop may be blocked for this long: a computing thread can block it for longer.
ON_LOOP_S: Final = 5e-3

T = TypeVar("T")


async def read_members(
    members: Sequence[JoinGroupResponseMember],
) -> dict[str, ConsumerProtocolMemberMetadata]:
    """Decode the subscriptions of a group's members, by member id."""
    return await _done(lambda: decode_subscriptions(members), _reading_s(members))


async def share_out(
    assignor: Assignor,
    view: ClusterView,
    members: Mapping[str, ConsumerProtocolMemberMetadata],
    *,
    said: Sequence[JoinGroupResponseMember],
    partition_count: int,
) -> Mapping[str, bytes]:
    """Return each member's encoded assignment.

    Only an assignor with `may_assign_in_thread` runs in a thread. Those written for aiokafka do not
    expect one.
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
    """Whether the racks of replicas may affect the assignment."""
    is_rack_aware = getattr(assignor, "is_rack_aware", False)
    return is_rack_aware and any(member.rack_id is not None for member in members.values())


def _reading_s(members: Sequence[JoinGroupResponseMember]) -> float:
    return BYTE_S * sum(len(member.metadata) for member in members)


async def _done(work: Callable[[], T], estimate_s: float) -> T:
    """Call `work` here, or in a thread if it takes long. A cancelled thread runs to its end."""
    if estimate_s <= ON_LOOP_S:
        return work()
    return await compute(work)
