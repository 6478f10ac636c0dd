"""The requests of KIP-848 groups, without I/O. See `ModernMachine` for the steps of a heartbeat.

A classic group becomes a KIP-848 group when the first member of the consumer protocol joins, and a
classic group again when the last one leaves (Kafka: ConsumerGroup.fromClassicGroup,
ClassicGroup.fromConsumerGroup)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.configs import INT_MAX, GroupSettings
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.members import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroupMember,
    GroupClient,
    Members,
    Protocols,
)
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848 import re2
from aiokafka_lite.broker.groups.kip848.assignors import (
    ASSIGNORS,
    DEFAULT_ASSIGNOR,
    GroupSpec,
    MemberSpec,
)
from aiokafka_lite.broker.groups.kip848.group import (
    LEAVING_FOR_NOW,
    UNREVOKED,
    ClassicSide,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberTarget,
    Owned,
    ResolvedRegex,
    reconcile,
)
from aiokafka_lite.broker.groups.modern import group as modern
from aiokafka_lite.broker.groups.modern.group import JOINING, MemberTimer, assignment_of, fenced
from aiokafka_lite.broker.groups.modern.machine import GroupChange, ModernMachine
from aiokafka_lite.errors import (
    FencedInstanceIdError,
    GroupIdNotFound,
    InvalidRegularExpressionError,
    KafkaError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from aiokafka_lite.protocol.codec import decode_versioned, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    GroupMetadataKey,
    GroupMetadataValue,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

REGEX_REFRESH_AT_MOST_EVERY_MS: Final = 10_000


@dataclass(frozen=True)
class ConsumerGroupSettings(GroupSettings):
    """The broker's settings for KIP-848 groups, without Kafka's prefix `group.consumer`."""

    regex_refresh_interval_ms: int = 600_000
    can_upgrade: bool = True  # classic groups with members may become KIP-848 groups
    can_downgrade: bool = True  # the reverse
    classic_max_size: int = INT_MAX  # group.max.size, for groups that become classic


ConsumerGroupChange: TypeAlias = GroupChange[ConsumerGroup]


@dataclass(eq=False)
class ConsumerMachine(ModernMachine[ConsumerGroup, ConsumerGroupMember, ConsumerGroupSettings]):
    new_id: Callable[[], str]

    # -- requests ------------------------------------------------------------------------------

    def heartbeat(
        self, change: ConsumerGroupChange, beat: ConsumerGroupHeartbeatRequest, client: GroupClient
    ) -> ConsumerGroupHeartbeatResponse:
        """Answer a member that joins (epoch 0) or stays. Raises the error of its response."""
        self.check_room(change.group, beat.member_id)
        member_id = beat.member_id or self.new_id()
        member = self._member_of(change, beat, member_id)
        names, timeout_ms = beat.subscribed_topic_names, beat.rebalance_timeout_ms
        given = {
            "instance_id": beat.instance_id,
            "rack_id": beat.rack_id,
            "rebalance_timeout_ms": None if timeout_ms == -1 else timeout_ms,
            "server_assignor": beat.server_assignor,
            "topic_names": None if names is None else frozenset(names),
            "topic_regex": beat.subscribed_topic_regex,
            "client_id": client.client_id,
            "client_host": client.host,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        updated = member.changed_to(**changed, classic=None)
        updated = self.advance(change, member, updated, _owned(beat))
        self.start_session(change, member_id)
        is_new = beat.member_epoch == JOINING or member.assigned != updated.assigned
        return ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self.settings_of(change.group.group_id).heartbeat_interval_ms,
            assignment=assignment_of(updated.assigned) if is_new or _is_full(beat) else None,
        )

    def leave(
        self, change: ConsumerGroupChange, beat: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """Remove a member. A static member with epoch -2 keeps its place for a session."""
        member = self.identify(change.group, beat.member_id, beat.instance_id)
        if beat.instance_id is not None and beat.member_epoch == LEAVING_FOR_NOW:
            left = member.left_for_now()
            change.records.append(change.group.assignment_record(left))
        else:
            self.fence(change, [member.member_id])
        return ConsumerGroupHeartbeatResponse(
            member_id=beat.member_id, member_epoch=beat.member_epoch
        )

    def fence(self, change: ConsumerGroupChange, member_ids: Sequence[str]) -> None:
        """Remove members. If only classic members remain, the group becomes a classic group."""
        group = change.group
        if self.can_downgrade(group, member_ids):
            change.records += downgraded(group, member_ids, self.catalog, self.clock)
            change.must_rebalance = True
            return
        if not member_ids:
            return
        self.remove(change, member_ids)
        left = [m for m in group.members.values() if m.member_id not in member_ids]
        unused = group.regex_users().keys() - {member.topic_regex for member in left}
        change.records += [group.regex_record(regex, None) for regex in sorted(unused)]
        names = group.topics_of_all(without=member_ids)
        self.follow_topics(change, names, must_bump=True)

    def can_downgrade(
        self, group: ConsumerGroup, leaving: Sequence[str], *, joining: int = 0
    ) -> bool:
        """Return whether only classic members remain, at least one, and the settings allow it."""
        left = [member for member in group.members.values() if member.member_id not in leaving]
        settings = self.settings_of(group.group_id)
        return (
            settings.can_downgrade
            and 0 < len(left) + joining <= settings.classic_max_size
            and all(member.is_classic for member in left)
        )

    def restored(self, change: ConsumerGroupChange) -> None:
        super().restored(change)
        for member in change.group.members.values():
            self._time_revocation(change, member)

    def resolve(self, change: ConsumerGroupChange) -> None:
        group = change.group
        resolved = dict(group.regexes)
        found_at_ms, version = self.clock(), self.catalog.version
        has_changed = False
        for regex in sorted(group.regex_users()):
            pattern = re2.compile(regex)
            topics = frozenset(name for name in self.catalog.topics if pattern.matches(name))
            known = group.regexes.get(regex)
            has_changed |= topics != (known.topics if known is not None else frozenset())
            resolved[regex] = ResolvedRegex(topics, version, found_at_ms)
            change.records.append(group.regex_record(regex, resolved[regex]))
        names = group.topics_of_all(regexes=resolved)
        self.follow_topics(change, names, must_bump=has_changed)

    # -- the steps of a heartbeat --------------------------------------------------------------

    def advance(
        self,
        change: ConsumerGroupChange,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        owned: Owned,
    ) -> ConsumerGroupMember:
        group = change.group
        group_epoch, has_new_subscription = self._subscribe(change, member, updated)
        former = group.static_member(updated.instance_id)
        replaced = former.member_id if former and former.member_id != updated.member_id else ""
        target_epoch, partitions = self.compute_target(
            change, group_epoch, updated, without=replaced
        )
        target = MemberTarget(
            target_epoch,
            partitions,
            self.catalog.topic_ids(group.topics_of(updated)),
            group.held_in,
        )
        reconciled = reconcile(updated, target, owned, has_new_subscription=has_new_subscription)
        if reconciled is not updated and reconciled != updated:
            change.records.append(group.assignment_record(reconciled))
            self._time_revocation(change, reconciled)
        return reconciled

    def _subscribe(
        self, change: ConsumerGroupChange, member: ConsumerGroupMember, updated: ConsumerGroupMember
    ) -> tuple[int, bool]:
        """Store the member's subscription. Return the group's epoch, and whether topics changed."""
        group = change.group
        if updated is not member and updated != member:
            change.records.append(group.member_record(updated))
        has_new_names = updated.topic_names != member.topic_names
        has_new_regex = updated.topic_regex != member.topic_regex
        is_resolved = self._subscribe_to_regex(change, member, updated)
        epoch = group.epoch
        must_bump = has_new_names or (has_new_regex and is_resolved)
        if must_bump or group.metadata_version != self.catalog.version:
            former = group.static_member(updated.instance_id)
            names = group.topics_of_all(
                without=() if former is None else [former.member_id], changed=updated
            )
            epoch = self.follow_topics(change, names, must_bump=must_bump)
            if group.has_partition_metadata_record:
                change.records.append(group.partition_metadata_tombstone())
        return epoch, has_new_names or has_new_regex

    def _subscribe_to_regex(
        self, change: ConsumerGroupChange, member: ConsumerGroupMember, updated: ConsumerGroupMember
    ) -> bool:
        """Update the group's regular expressions. Return whether the member's matches are known."""
        group = change.group
        users = group.regex_users()
        old, new = member.topic_regex or "", updated.topic_regex or ""
        is_resolved = must_refresh = False
        if updated.topic_regex != member.topic_regex:
            if old and users[old] == 1:
                change.records.append(group.regex_record(old, None))
            if new and not users[new]:
                _check_regex(new)
            else:
                is_resolved = new in group.regexes if new else bool(old)
        resolved = next(iter(group.regexes.values()), None)
        if resolved is not None:
            now_ms = self.clock()
            if now_ms <= resolved.timestamp_ms + REGEX_REFRESH_AT_MOST_EVERY_MS:
                return is_resolved
            # Versions count from the broker's start: a later one was stored before the restart.
            is_recent = self.catalog.created_version <= resolved.version <= self.catalog.version
            age_ms = now_ms - resolved.timestamp_ms
            settings = self.settings_of(group.group_id)
            must_refresh = not is_recent or age_ms > settings.regex_refresh_interval_ms
        are_all_resolved = group.regexes.keys() >= {*users, new} - {""}
        change.must_resolve = must_refresh or not are_all_resolved
        return is_resolved

    def _assign(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerGroupMember]
    ) -> Mapping[str, modern.Assignment]:
        specs = {
            member_id: MemberSpec(
                self.catalog.topic_ids(group.topics_of(member)),
                group.target_of(member),
                member.instance_id,
            )
            for member_id, member in members.items()
        }
        counts = {}
        for topic_id in frozenset[bytes]().union(*(spec.topic_ids for spec in specs.values())):
            topic = self.catalog.by_id(topic_id)
            if topic is not None:
                counts[topic_id] = topic.partition_count
        return ASSIGNORS[preferred_assignor(members.values())](GroupSpec(specs, counts))

    # -- members -------------------------------------------------------------------------------

    def identify(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> ConsumerGroupMember:
        """Return a member. A static member must be the latest of its instance id."""
        if instance_id is None:
            return self.known_member(group, member_id)
        member = group.static_member(instance_id)
        if member is None:
            raise UnknownMemberIdError(f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise FencedInstanceIdError(
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}."
            )
        return member

    def replace_static(
        self, change: ConsumerGroupChange, former: ConsumerGroupMember, member_id: str
    ) -> ConsumerGroupMember:
        group = change.group
        member = former.under_new_id(member_id)
        self.remove(change, [former.member_id])
        change.records += [
            group.member_record(member),
            group.target_record(member_id, group.targets.get(former.member_id, {})),
            group.assignment_record(member),
        ]
        return member

    def _member_of(
        self, change: ConsumerGroupChange, beat: ConsumerGroupHeartbeatRequest, member_id: str
    ) -> ConsumerGroupMember:
        group = change.group
        if beat.member_epoch != JOINING:
            member = self.identify(group, member_id, beat.instance_id)
            _check_epoch(member, beat)
            return member
        former = group.static_member(beat.instance_id)
        if former is None:
            return group.members.get(member_id, ConsumerGroupMember(member_id))
        if not former.is_classic and former.epoch != LEAVING_FOR_NOW:
            raise UnreleasedInstanceIdError(
                f"Static member {member_id} with instance id {beat.instance_id} cannot join the "
                f"group because the instance id is owned by {former.member_id} member."
            )
        return self.replace_static(change, former, member_id)

    def _time_revocation(self, change: ConsumerGroupChange, member: ConsumerGroupMember) -> None:
        """Start the rebalance timeout of a member that must revoke partitions, or stop it."""
        if member.is_classic:
            return
        timer, timeout_ms = MemberTimer.REBALANCE, member.rebalance_timeout_ms
        if member.state is UNREVOKED:
            change.start(timer, member.member_id, timeout_ms, member.epoch)
        else:
            change.stop(member.member_id, timer)


def _is_full(beat: ConsumerGroupHeartbeatRequest) -> bool:
    return (
        beat.rebalance_timeout_ms != -1
        and not (beat.subscribed_topic_names is None and beat.subscribed_topic_regex is None)
        and beat.topic_partitions is not None
    )


def _owned(beat: ConsumerGroupHeartbeatRequest) -> Owned:
    owned = beat.topic_partitions
    return None if owned is None else {item.topic_id: item.partitions for item in owned}


def preferred_assignor(members: Iterable[ConsumerGroupMember]) -> str:
    votes = Counter(m.server_assignor for m in members if m.server_assignor)
    return max(votes, key=votes.__getitem__, default=DEFAULT_ASSIGNOR)


def _check_epoch(member: ConsumerGroupMember, beat: ConsumerGroupHeartbeatRequest) -> None:
    """Accept the member's epoch, and the previous one if the last response may have been lost."""
    epoch = beat.member_epoch
    is_before = member.previous_epoch == epoch < member.epoch
    if epoch != member.epoch and not (is_before and _is_subset(_owned(beat), member)):
        raise fenced("consumer", member, epoch)


def _is_subset(owned: Owned, member: ConsumerGroupMember) -> bool:
    return owned is not None and all(
        partition in member.assigned.get(topic_id, {})
        for topic_id, partitions in owned.items()
        for partition in partitions
    )


def _check_regex(regex: str) -> None:
    try:
        re2.compile(regex)
    except re2.RegexError as error:
        raise InvalidRegularExpressionError(
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
        ) from None


def owned_by(
    subscription: ConsumerProtocolSubscription, catalog: TopicCatalog
) -> dict[bytes, Collection[int]]:
    owned = (
        (catalog.by_name(item.topic), item.partitions) for item in subscription.owned_partitions
    )
    return {topic.topic_id: partitions for topic, partitions in owned if topic is not None}


def encode_assignment(
    partitions: Mapping[bytes, Collection[int]], catalog: TopicCatalog, protocols: Protocols
) -> bytes:
    """Encode an assignment in the version that the member itself uses."""
    found = ((catalog.by_id(topic_id), held) for topic_id, held in partitions.items())
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=topic.name, partitions=sorted(held))
            for topic, held in found
            if topic is not None
        ],
        user_data=None,
    )
    version = int.from_bytes(protocols[0][1][:2], "big")
    newest = ConsumerProtocolAssignment.versions.last
    return encode_versioned(assignment, min(version, newest))


def upgraded(
    group: ClassicGroup, catalog: TopicCatalog
) -> tuple[ConsumerGroup, list[CoordinatorRecord]]:
    try:
        members = [_upgraded_member(group, member, catalog) for member in group.members.values()]
    except GroupIdNotFound:
        raise
    except (KafkaError, ValueError) as error:
        raise GroupIdNotFound(
            f"Cannot upgrade classic group {group.group_id} to consumer group because the embedded "
            f"consumer protocol is malformed."
        ) from error
    upgrade, epoch = ConsumerGroup(group.group_id), group.generation
    names = frozenset().union(*(member.topic_names for member in members))
    new = [
        *(upgrade.member_record(member) for member in members),
        upgrade.epoch_record(epoch, catalog.metadata_hash(names)),
        *(
            upgrade.target_record(m.member_id, {t: frozenset(p) for t, p in m.assigned.items()})
            for m in members
        ),
        upgrade.target_epoch_record(epoch, 0),
        *(upgrade.assignment_record(member) for member in members),
    ]
    replay(upgrade, new)
    return upgrade, [*group.tombstones(), *new]


def _upgraded_member(
    group: ClassicGroup, member: ClassicGroupMember, catalog: TopicCatalog
) -> ConsumerGroupMember:
    metadata = dict(member.protocols).get(group.protocol or "", member.protocols[0][1])
    subscription = decode_versioned(ConsumerProtocolSubscription, metadata)
    assigned: dict[bytes, Mapping[int, int]] = {}
    if member.assignment:
        assignment = decode_versioned(ConsumerProtocolAssignment, member.assignment)
        if assignment.user_data:
            raise GroupIdNotFound(
                f"Cannot upgrade classic group {group.group_id} to consumer group because an "
                f"unsupported custom assignor is in use. Please refer to the documentation or "
                f"switch to a default assignor before re-attempting the upgrade."
            )
        for item in assignment.assigned_partitions:
            topic = catalog.by_name(item.topic)
            if topic is not None:
                assigned[topic.topic_id] = dict.fromkeys(item.partitions, group.generation)
    return ConsumerGroupMember(
        member.member_id,
        epoch=group.generation,
        previous_epoch=group.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=frozenset(subscription.topics),
        assigned=assigned,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
    )


def downgraded(
    group: ConsumerGroup, leaving: Collection[str], catalog: TopicCatalog, clock: Callable[[], int]
) -> list[CoordinatorRecord]:
    """All remaining members must be classic."""
    members = Members()
    for member in group.members.values():
        if member.member_id not in leaving and member.classic is not None:
            members.add(
                ClassicGroupMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.classic.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    member.classic.protocols,
                    assignment=encode_assignment(
                        group.target_of(member), catalog, member.classic.protocols
                    ),
                )
            )
    protocol = members.select_protocol()
    value = GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.epoch,
        protocol=protocol,
        leader=members.leader_id,
        current_state_timestamp=clock(),
        members=[member.stored(protocol, member.assignment) for member in members.values()],
    )
    record = CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)
    return [*group.tombstones(), record]


def replay(group: ConsumerGroup, records: Collection[CoordinatorRecord]) -> None:
    """Apply records to a group that is not the stored one, to see its next state."""
    for key, value, _ in records:
        group.replay(cast("ConsumerGroupKey", key), cast("ConsumerGroupValue | None", value))
