"""The requests of one rebalance: JoinGroup, and SyncGroup with the leader's assignment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import isabstract
from typing import Final, NamedTuple, TypeVar, cast

from aiokafka_lite._compat import timeout
from aiokafka_lite._threads import compute
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.view import ClusterView, TopicsOfCluster
from aiokafka_lite.consumer.assignment.assignment import SharedOut, known_of
from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    Assignor,
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
    LearnsGeneration,
    RebalanceProtocol,
)
from aiokafka_lite.consumer.assignors.blobs import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscriptions,
    encode_assignments,
    encode_subscription,
)
from aiokafka_lite.consumer.membership.classic.heartbeat import Heartbeat
from aiokafka_lite.consumer.membership.classic.member import Member
from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, Identity, Surroundings
from aiokafka_lite.consumer.membership.recovery import loss_by
from aiokafka_lite.errors import InconsistentGroupProtocolError, KafkaError, MemberIdRequired
from aiokafka_lite.protocol.messages.group_members import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from aiokafka_lite.structs import TopicPartition

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
    return await _done(lambda: decode_subscriptions(members), _reading_s(members))


async def share_out(
    assignor: Assignor,
    view: ClusterView,
    members: Mapping[str, ConsumerProtocolMemberMetadata],
    *,
    said: Sequence[JoinGroupResponseMember],
    counts: Mapping[str, int],
) -> tuple[Mapping[str, bytes], bool]:
    """Return each member's encoded assignment, and whether static members have to revoke some.

    `counts` are the numbers of partitions of the group's topics.

    That may take a tenth of a second. Only an assignor with `may_assign_in_thread` runs in a
    thread: those written for aiokafka do not expect one.
    """

    def work() -> tuple[Mapping[str, bytes], bool]:
        shares = assignor.assign(TopicsOfCluster(view), members)
        return encode_assignments(shares), _must_static_ones_revoke(members, shares, counts)

    if not getattr(assignor, "may_assign_in_thread", False):
        return work()
    each_s = PARTITION_IN_RACKS_S if do_racks_count(assignor, members) else PARTITION_S
    return await _done(work, _reading_s(said) + sum(counts.values()) * each_s)


def _must_static_ones_revoke(
    members: Mapping[str, ConsumerProtocolMemberMetadata],
    shares: Mapping[str, ConsumerProtocolMemberAssignment],
    counts: Mapping[str, int],
) -> bool:
    """Whether a static member has to revoke partitions before another one gets them."""
    left = {
        (topic, n)
        for metadata in members.values()
        if metadata.group_instance_id is not None
        for topic, n in metadata.owned_partitions
        if n < counts.get(topic, 0)
    }
    for share in shares.values() if left else ():
        left.difference_update((topic, n) for topic, numbers in share.assignment for n in numbers)
    return bool(left)


def do_racks_count(
    assignor: Assignor, members: Mapping[str, ConsumerProtocolMemberMetadata]
) -> bool:
    is_rack_aware = getattr(assignor, "is_rack_aware", False)
    return is_rack_aware and any(member.rack_id is not None for member in members.values())


def _reading_s(members: Sequence[JoinGroupResponseMember]) -> float:
    return BYTE_S * sum(len(member.metadata) for member in members)


async def _done(work: Callable[[], T], estimate_s: float) -> T:
    """Call `work` here, or in a thread if it takes long. A cancelled thread runs to its end."""
    if estimate_s <= ON_LOOP_S:
        return work()
    return await compute(work)


log = logging.getLogger(__name__)

# The leader's key for Cluster.watch.
LEADER: Final = "group leader"
# Beyond the time that the coordinator may delay JoinGroup and SyncGroup (as Kafka's client).
ANSWER_MARGIN_S: Final = 5.0


class AssignedPartitions(NamedTuple):
    partitions: frozenset[TopicPartition]
    # For the leader: its metadata of the group's topics.
    shared_out: SharedOut
    # For the leader: unless the group rebalances by then, partitions may stay without an owner.
    next_within_s: float | None = None


class Rebalance:
    """Sends the requests of a rebalance for one member.

    They have their own connection: the coordinator delays JoinGroup and SyncGroup until all members
    are there, and reads no other request from the connection during that time.
    """

    def __init__(self, around: Surroundings, member: Member, heartbeat: Heartbeat) -> None:
        self._config = config = around.core.config
        self._cluster, self._coordinator = around.cluster, around.coordinator
        self._member = member
        self._heartbeat = heartbeat
        self._assignors = own_assignors(config.partition_assignment_strategy)
        # Loop time at which JoinGroup was sent.
        self.joining_since: float | None = None

    async def join_and_sync(
        self, topics: frozenset[str], owned: Collection[TopicPartition], *, reason: str
    ) -> AssignedPartitions:
        """Take part in a rebalance. `owned` are the partitions that the member keeps."""
        member = self._member
        member.begin_rebalance()
        self._heartbeat.thread.rest()
        try:
            assigned = await self._take_part(topics, owned, reason)
        except KafkaError as error:
            member.end_rebalance(owned if loss_by(error) is None else ())
            raise
        member.end_rebalance({*owned, *assigned.partitions})
        return assigned

    async def _take_part(
        self, topics: frozenset[str], owned: Collection[TopicPartition], reason: str
    ) -> AssignedPartitions:
        member = self._member
        try:
            joined = await self._join(topics, owned, reason)
        finally:
            self.joining_since = None
        self._heartbeat.note_counted_in()
        member.take_generation(
            Identity(joined.member_id, joined.generation_id),
            protocol_name=joined.protocol_name,
            leader_id=joined.leader,
        )
        log.info(
            "group %s: joined generation %d as member %s%s",
            member.group_id,
            joined.generation_id,
            joined.member_id,
            " (leader)" if member.is_leader else "",
        )
        assignor = self._assignor(joined)
        if not member.is_leader:
            self.watch_for_the_group(())
        assignments: Mapping[str, bytes] = {}
        shared_out, next_within_s = SharedOut(), None
        if member.is_leader:
            assignments, shared_out, next_within_s = await self._share_out(assignor, joined)
        # This does not renew the lease: SyncGroup after the leader's starts no new session.
        blob = await self._sync(joined, assignments)
        assignment = decode_assignment(blob, topics)
        assignor.on_assignment(assignment)
        if isinstance(assignor, LearnsGeneration):
            assignor.on_generation_assignment(joined.generation_id)
        return AssignedPartitions(frozenset(assignment.partitions()), shared_out, next_within_s)

    def watch_for_the_group(self, topics: Iterable[str]) -> None:
        self._cluster.watch(LEADER, topics)

    def leave_request(self, reason: str) -> LeaveGroupRequest:
        member = self._member
        # The instance id alone would remove a successor.
        leaver = MemberIdentity(
            member_id=member.identity.member_id,
            group_instance_id=member.group_instance_id,
            reason=reason,
        )
        return LeaveGroupRequest(group_id=member.group_id, members=[leaver])

    # --- Steps ----------------------------------------------------------------------------
    @property
    def _held_s(self) -> float:
        """How long the coordinator may delay a response to wait for other members."""
        held_s = max(self._config.group_timeout_s, self._config.session_timeout_s)
        return held_s + ANSWER_MARGIN_S

    def _answer_by(self) -> float:
        return asyncio.get_running_loop().time() + self._config.request_timeout_s + self._held_s

    async def _join(
        self, topics: frozenset[str], owned: Collection[TopicPartition], reason: str
    ) -> JoinGroupResponse:
        while True:
            self.joining_since = asked_at = asyncio.get_running_loop().time()
            response = await self._coordinator.request(
                self._join_request(topics, owned, reason),
                error_code=_join_error_code,
                deadline=self._answer_by(),
                answer_s=self._held_s,
                lane=Lane.GROUP,
            )
            if response.error_code != MemberIdRequired.errno:
                # An unchanged follower's JoinGroup starts no new session.
                if response.generation_id != self._member.identity.generation:
                    self._heartbeat.note_contact(asked_at)
                return response
            self._member.take_member_id(response.member_id)

    def _join_request(
        self, topics: frozenset[str], owned: Collection[TopicPartition], reason: str
    ) -> JoinGroupRequest:
        member, config = self._member, self._config
        # Without a generation, an unchanged follower gets its assignment without a rebalance.
        held_as = member.assigned_as if member.is_cooperative else None
        generation = NO_GENERATION if held_as is None else held_as.generation
        rack_id = config.client_rack or None
        return JoinGroupRequest(
            group_id=member.group_id,
            session_timeout_ms=round(config.session_timeout_s * 1000),
            rebalance_timeout_ms=round(config.group_timeout_s * 1000),
            member_id=member.identity.member_id,
            group_instance_id=member.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=assignor.name,
                    metadata=encode_subscription(
                        assignor.metadata(sorted(topics)), owned, generation, rack_id
                    ),
                )
                for assignor in self._assignors
            ],
            reason=reason,
        )

    def _assignor(self, joined: JoinGroupResponse) -> Assignor:
        for assignor in self._assignors:
            if assignor.name == joined.protocol_name:
                return assignor
        raise InconsistentGroupProtocolError(
            f"group {self._member.group_id} uses the assignor {joined.protocol_name!r}, which "
            "is not in this consumer's partition_assignment_strategy"
        )

    async def _share_out(
        self, assignor: Assignor, joined: JoinGroupResponse
    ) -> tuple[Mapping[str, bytes], SharedOut, float | None]:
        """Return the assignments, the metadata, and `AssignedPartitions.next_within_s`.

        Members that have revoked partitions join again. A static member may restart before that.
        It then gets its place without a rebalance, and the partitions have no owner. The leader
        learns neither that nor, if it is the one that restarts, what it has withheld. So another
        rebalance follows after as long as this member may take to revoke.
        """
        members = await read_members(joined.members)
        topics = {topic for metadata in members.values() for topic in metadata.subscription}
        view = await self._view_of(topics)
        with_racks = do_racks_count(assignor, members)
        shared_out = known_of(view, topics, with_racks=with_racks)
        if joined.skip_assignment:
            # A static leader has restarted: the members keep their partitions (KIP-814).
            blobs: Mapping[str, bytes] = {}
            may_be_unowned = self._member.is_cooperative
        else:
            blobs, may_be_unowned = await share_out(
                assignor, view, members, said=joined.members, counts=shared_out.counts
            )
        return blobs, shared_out, self._config.group_timeout_s if may_be_unowned else None

    async def _view_of(self, topics: set[str]) -> ClusterView:
        """Return metadata of all the group's topics, including those of other members only."""
        self.watch_for_the_group(topics)
        view = self._cluster.view
        if all(view.partitions_for_topic(topic) is not None for topic in topics):
            return view
        try:
            async with timeout(self._config.rebalance_timeout_s / 2):
                return await self._cluster.refresh()
        except (asyncio.TimeoutError, KafkaError) as error:
            log.warning(
                "group %s: the metadata could not be refreshed, so the assignment is computed "
                "from older metadata: %r",
                self._member.group_id,
                error,
            )
            return view

    async def _sync(self, joined: JoinGroupResponse, assignments: Mapping[str, bytes]) -> bytes:
        member = self._member
        request = SyncGroupRequest(
            group_id=member.group_id,
            generation_id=member.identity.generation,
            member_id=member.identity.member_id,
            group_instance_id=member.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=blob)
                for member_id, blob in assignments.items()
            ],
        )
        response = await self._coordinator.request(
            request,
            error_code=lambda response: response.error_code,
            deadline=self._answer_by(),
            answer_s=self._held_s,
            lane=Lane.GROUP,
        )
        return response.assignment


def _join_error_code(response: JoinGroupResponse) -> int:
    code = response.error_code
    return 0 if code == MemberIdRequired.errno and response.member_id else code


def own_assignors(strategy: Sequence[type[AbstractPartitionAssignor]]) -> list[Assignor]:
    """Make instances, except of classes with abstract methods: aiokafka never makes any."""
    return [_own(assignor) for assignor in strategy]


def _own(assignor: type[AbstractPartitionAssignor] | Assignor) -> Assignor:
    if isinstance(assignor, type) and not isabstract(assignor):
        return assignor()
    return cast("Assignor", assignor)


def common_protocol(
    assignors: Iterable[type[AbstractPartitionAssignor] | Assignor],
) -> RebalanceProtocol:
    """Return the newest protocol that all assignors support, as Java: an eager one prevails."""
    eager = frozenset({RebalanceProtocol.EAGER})
    protocols = [getattr(each, "rebalance_protocols", eager) for each in assignors]
    return max(frozenset(RebalanceProtocol).intersection(*protocols))
