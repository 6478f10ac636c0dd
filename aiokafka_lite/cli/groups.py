"""`aiokafka-lite groups`, `lag GROUP` and `reset GROUP`: consumer groups and their offsets."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, cast

from aiokafka_lite._settings import nearest
from aiokafka_lite.cli.arguments import (
    AS_JSON,
    NAMES_ONLY,
    Declaration,
    partition_numbers,
)
from aiokafka_lite.cli.asking import (
    FORMS,
    ask_for_topic,
    find,
    is_selected,
    offsets_at,
    partitions_of,
    place,
    reason_of,
    unknown_names,
    why,
)
from aiokafka_lite.cli.connecting import connecting
from aiokafka_lite.cli.output import (
    Row,
    columns,
    count_text,
    counted,
    print_listing,
    print_rows,
    screen,
)
from aiokafka_lite.cli.problems import CommandError, UsageError, plain_text
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offset_commits import commit_request, commit_results
from aiokafka_lite.client.offsets import LATEST, CommittedOffset
from aiokafka_lite.errors import (
    GroupIdNotFound,
    KafkaError,
    KafkaProtocolError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages import consumer_group_describe, groups
from aiokafka_lite.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from aiokafka_lite.protocol.messages.group_members import ConsumerProtocolAssignment
from aiokafka_lite.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from aiokafka_lite.structs import TopicPartition

T = TypeVar("T")

# --- Requests --------------------------------------------------------------------------------
DEAD: Final = "Dead"
# States without members, in which committed offsets may be changed.
WITHOUT_MEMBERS: Final = ("Empty", DEAD)


class GroupListing(NamedTuple):
    """A group in a broker's list. Old brokers have neither state nor type."""

    group_id: str
    state: str
    type: str
    protocol_type: str
    coordinator: int


class MemberDescription(NamedTuple):
    member_id: str
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    assignor: str
    members: tuple[MemberDescription, ...]


def list_groups(cluster: BlockingCluster) -> list[GroupListing]:
    """Wait while a node loads its groups. Each retry asks the nodes that the cluster has then."""

    def ask() -> list[GroupListing]:
        found: list[GroupListing] = []
        for node in sorted(cluster.look([]).nodes):
            response = cluster.request(node, ListGroupsRequest())
            if response.error_code:
                reason = reason_of(response.error_code)
                raise for_code(response.error_code)(f"broker {node} did not list groups: {reason}")
            found += [
                GroupListing(g.group_id, g.group_state, g.group_type, g.protocol_type, node)
                for g in response.groups
            ]
        return sorted(found)

    return cluster.retrying(ask)


def describe(
    cluster: BlockingCluster, node: int, group_ids: Iterable[str]
) -> list[GroupDescription]:
    """Return descriptions of groups. A group that does not exist has the state `DEAD`."""
    found: dict[str, GroupDescription] = {}
    left = list(group_ids)
    try:
        # Classic groups are not found by this request, as in Java's admin client.
        response = cluster.request(node, ConsumerGroupDescribeRequest(group_ids=left))
    except UnsupportedVersionError:
        pass  # the broker has no groups of KIP-848
    else:
        for group in response.groups:
            # The second is from Kafka 3.9, where the protocol is disabled.
            if group.error_code in (GroupIdNotFound.errno, UnsupportedVersionError.errno):
                continue
            _raise_for(group.group_id, group.error_code, group.error_message)
            found[group.group_id] = _of_consumer(group)
    left = [each for each in left if each not in found]
    if left:
        for classic in cluster.request(node, DescribeGroupsRequest(groups=left)).groups:
            if classic.error_code != GroupIdNotFound.errno:
                _raise_for(classic.group_id, classic.error_code, classic.error_message)
            found[classic.group_id] = _of_classic(classic)
    return list(found.values())


def at_coordinator(cluster: BlockingCluster, group_id: str, ask: Callable[[int], T]) -> T:
    """Call with the node id of the group's coordinator. Each retry looks it up again."""
    return cluster.retrying(lambda: ask(cluster.coordinator(group_id)))


def read_group(
    cluster: BlockingCluster, group_id: str
) -> tuple[GroupDescription, dict[TopicPartition, int]]:
    """Return a group's description and its committed offsets."""

    def ask(node: int) -> tuple[GroupDescription, dict[TopicPartition, int]]:
        described = describe(cluster, node, [group_id])
        if not described:
            raise KafkaProtocolError(
                f"the broker's DescribeGroups response does not contain group {group_id!r}"
            )
        return described[0], _committed(cluster, node, group_id)

    return at_coordinator(cluster, group_id, ask)


def _raise_for(group_id: str, error_code: int, message: str | None) -> None:
    if error_code:
        reason = reason_of(error_code, message)
        raise for_code(error_code)(f"group {group_id} cannot be described: {reason}")


def _member(
    member: consumer_group_describe.Member | groups.DescribedGroupMember,
    assigned: Iterable[tuple[str, Iterable[int]]],
) -> MemberDescription:
    host = member.client_host.lstrip("/")
    tps = (TopicPartition(topic, number) for topic, numbers in assigned for number in numbers)
    return MemberDescription(member.member_id, member.client_id, host, frozenset(tps))


def _of_consumer(group: consumer_group_describe.DescribedGroup) -> GroupDescription:
    members = tuple(
        _member(
            each,
            [(topic.topic_name, topic.partitions) for topic in each.assignment.topic_partitions],
        )
        for each in group.members
    )
    return GroupDescription(group.group_id, group.group_state, group.assignor_name, members)


def _of_classic(group: groups.DescribedGroup) -> GroupDescription:
    members = tuple(_member(each, _assigned(each.member_assignment)) for each in group.members)
    state = DEAD if group.error_code == GroupIdNotFound.errno else group.group_state
    return GroupDescription(group.group_id, state, group.protocol_data, members)


def _assigned(blob: bytes) -> list[tuple[str, list[int]]]:
    """Empty if the assignment is not a consumer's."""
    try:
        assignment = decode_versioned(ConsumerProtocolAssignment, blob) if blob else None
    except (KafkaProtocolError, UnsupportedVersionError):
        return []
    topics = () if assignment is None else assignment.assigned_partitions
    return [(each.topic, each.partitions) for each in topics]


def _committed(cluster: BlockingCluster, node: int, group_id: str) -> dict[TopicPartition, int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)])
    offsets: dict[TopicPartition, int] = {}
    for group in cluster.request(node, request).groups:
        if group.error_code != GroupIdNotFound.errno:
            _raise_for(group_id, group.error_code, None)
        for topic in group.topics:
            for each in topic.partitions:
                name = topic.name or cluster.view.topic_names.get(topic.topic_id, "")
                # A topic without a name was deleted.
                if name and not each.error_code and each.committed_offset >= 0:
                    offsets[TopicPartition(name, each.partition_index)] = each.committed_offset
    return offsets


# --- groups ----------------------------------------------------------------------------------
_GROUP_COLUMNS: Final = columns("group, state, type, #members, assignor, #coordinator")
# The states of classic groups and of groups of KIP-848.
_STATES: Final = (
    "Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling",
    "Dead",
)  # fmt: skip
# The protocol types of consumers. Connect and others have their own.
_OF_CONSUMERS: Final = ("consumer", "")


_GROUPS: Final = f"""
List consumer groups of the classic protocol and of KIP-848, with their states.

arguments:
[PATTERN ...]  only these groups (* matches any text, ? any character)
--state STATE  only groups in this state: {", ".join(_STATES)}
{NAMES_ONLY}
{AS_JSON}

examples:
  aiokafka-lite groups                         all groups
  aiokafka-lite groups 'orders-*' --json       matching groups, as JSON
  aiokafka-lite groups --state Empty -q        only names of groups without members
"""


def run_groups(options: argparse.Namespace) -> int:
    with connecting(options).cluster() as cluster:
        known, rows = cluster.retrying(lambda: _known_and_selected(cluster, options.patterns))
    if options.state is not None:
        rows = [row for row in rows if row["state"] == options.state]
    problems = unknown_names("consumer group", options.patterns, known)
    print_listing("groups", rows, _GROUP_COLUMNS, options, problems)
    return 0


def _known_and_selected(
    cluster: BlockingCluster, patterns: Sequence[str]
) -> tuple[list[str], list[Row]]:
    """Return the names of all groups of consumers, and rows of those that are selected."""
    known = [each for each in list_groups(cluster) if each.protocol_type in _OF_CONSUMERS]
    selected = [each for each in known if is_selected(each.group_id, patterns)]
    by_node: dict[int, list[str]] = {}
    for each in selected:
        by_node.setdefault(each.coordinator, []).append(each.group_id)
    described = {
        each.group_id: each
        for node, group_ids in by_node.items()
        for each in describe(cluster, node, group_ids)
    }
    rows: list[Row] = []
    for each in selected:
        found = described.get(each.group_id)
        rows.append(
            {
                "group": each.group_id,
                "state": each.state or (found and found.state) or None,
                "type": each.type.lower() or None,
                "members": None if found is None else len(found.members),
                "assignor": (found and found.assignor) or None,
                "coordinator": each.coordinator,
            }
        )
    return [each.group_id for each in known], rows


# --- lag -------------------------------------------------------------------------------------
_LAG_COLUMNS: Final = columns(
    "topic, #partition, #committed, #end, #lag, client, host", lag=count_text
)


class Lag(NamedTuple):
    described: GroupDescription
    rows: list[Row]

    @property
    def known(self) -> list[int]:
        return [lag for row in self.rows if isinstance(lag := row["lag"], int)]

    @property
    def total(self) -> int:
        return sum(max(0, lag) for lag in self.known)

    @property
    def summary(self) -> str:
        members = counted(len(self.described.members), "member")
        lag = f"lag {self.total:,} in {counted(len(self.known), 'partition')}"
        if unknown_count := len(self.rows) - len(self.known):
            unknown = f"unknown for {counted(unknown_count, 'partition')}"
            lag = f"{lag}, {unknown}" if self.known else f"lag {unknown}"
        return f"group {self.described.group_id}: {self.described.state}, {members}, {lag}"


_LAG: Final = f"""
Show the committed offset, the end of the log, the lag and the owner of each partition. Without a
committed offset, the lag is unknown, because auto.offset.reset then determines where the group
starts. The lag is negative if the committed offset is beyond the end of the log, because the topic
was recreated or truncated. The group then starts according to auto.offset.reset.

arguments:
GROUP  the consumer group
--topic TOPIC ...  only this topic
-w, --watch [SECONDS=2]  show the lag again every SECONDS (default: 2), until Ctrl-C
{AS_JSON}

examples:
  aiokafka-lite lag billing                    once
  aiokafka-lite lag billing --watch            every two seconds, until Ctrl-C
  aiokafka-lite lag billing --json | jq -s 'map(.lag) | add'
"""


def run_lag(options: argparse.Namespace) -> int:
    if options.watch is not None and options.json:
        raise UsageError("--watch and --json cannot be combined: leave one out")
    with connecting(options).cluster() as cluster:
        lag = lag_of(cluster, options.group, options.topic)
        if missing := set(options.topic) - {row["topic"] for row in lag.rows}:
            raise CommandError(
                f"group {options.group} has no committed offsets and no members for topic "
                f"{', '.join(sorted(missing))}"
            )
        if options.watch is not None:
            _watch(cluster, options, lag)
    if not options.json:
        print(lag.summary)
    print_rows(lag.rows, _LAG_COLUMNS, as_json=options.json)
    return 0


def lag_of(cluster: BlockingCluster, group_id: str, topics: Collection[str] = ()) -> Lag:
    """Return the lags of a group, or raise CommandError with the most similar name."""
    # All topics, because committed offsets have topic ids.
    view = cluster.look(None)
    described, offsets = read_group(cluster, group_id)
    if described.state == DEAD and not offsets:
        others = [each.group_id for each in list_groups(cluster)]
        raise CommandError(f"there is no group {group_id}{nearest(group_id, others)}")
    members = {tp: member for member in described.members for tp in member.partitions}
    tps = sorted(tp for tp in offsets.keys() | members.keys() if not topics or tp.topic in topics)
    led = [tp for tp in tps if view.leader(tp) is not None]
    (ends,) = offsets_at(cluster, led, LATEST) if led else [{}]
    rows: list[Row] = []
    for tp in tps:
        at, end, member = offsets.get(tp), ends.get(tp), members.get(tp)
        rows.append(
            {
                "group": group_id,
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": at,
                "end": end,
                "lag": None if at is None or end is None else end - at,
                "client": None if member is None else member.client_id,
                "host": None if member is None else member.host,
                "member": None if member is None else member.member_id,
            }
        )
    return Lag(described, rows)


def _watch(cluster: BlockingCluster, options: argparse.Namespace, lag: Lag) -> None:
    """Show the lag after each interval, without end. Retriable errors are shown, too."""
    began, first, problem = time.monotonic(), lag.total, ""
    with screen() as show:
        while True:
            passed_s = max(time.monotonic() - began, options.watch)  # not of an instant
            change = f", {(lag.total - first) / passed_s:+,.1f} a second"
            # The rows that do not fit are the least important.
            rows = sorted(lag.rows, key=lambda row: -n if isinstance(n := row["lag"], int) else 1)
            text = problem or f"{lag.summary}{change}"
            show(f"{time.strftime('%H:%M:%S')} {text}", rows, _LAG_COLUMNS)
            time.sleep(options.watch)
            cluster.limit(cluster.config.request_timeout_s)
            try:
                lag, problem = lag_of(cluster, options.group, options.topic), ""
            except KafkaError as error:
                if not error.retriable:
                    raise
                problem = f"cannot repeat: {plain_text(error)}"


# --- reset -----------------------------------------------------------------------------------
_RESET_COLUMNS: Final = columns(
    "topic, #partition, #committed, #new, #change, #lag: lag then",
    change=lambda value: f"{value:+,}",
    lag=count_text,
)

_RESET: Final = f"""
Change the committed offsets of a group. Its consumers then start at the new offsets. Without
--execute, the changes are only shown. The command fails if the group has members, because members
would overwrite the new offsets with their own positions. A group that does not exist is created.

arguments:
GROUP  the consumer group
--topic TOPIC[:N,N-N…] ...  this topic, or some of its partitions (repeatable)
|| --all-topics  all topics for which the group has committed offsets
--to WHERE  the new position: {FORMS}
|| --by N  move the committed offsets by N, backwards if N is negative
--execute  make the changes (default: only show them)
{AS_JSON}

examples:
  aiokafka-lite reset billing --topic orders --to 2h            show the changes
  aiokafka-lite reset billing --topic orders --to 2h --execute  make the changes
  aiokafka-lite reset billing --topic orders:3 --to 1234        only one partition
  aiokafka-lite reset billing --topic orders --by -100          100 offsets back
  aiokafka-lite reset billing --all-topics --to latest          all topics with committed offsets
"""


def run_reset(options: argparse.Namespace) -> int:
    with connecting(options).cluster() as cluster:
        cluster.look(None)
        described, before = read_group(cluster, options.group)
        _check_members(described)
        tps = _partitions(cluster, options.topic) if options.topic else sorted(before)
        if not tps:
            raise CommandError(
                f"group {options.group} has no committed offsets, so --all-topics selects no "
                "topics: name the topics with --topic"
            )
        rows = _rows(cluster, options, tps, before)
        if options.execute:
            new = {tp: cast("int", row["new"]) for tp, row in zip(tps, rows, strict=True)}
            _commit(cluster, options.group, new)
    print_rows(rows, _RESET_COLUMNS, as_json=options.json)
    if not options.execute:
        print("no offsets were changed: add --execute to change them", file=sys.stderr)
    elif not options.json:
        made = " (newly created)" if described.state == DEAD and not before else ""
        done = counted(len(rows), "partition")
        print(f"group {options.group}{made}: offsets of {done} were committed", file=sys.stderr)
    return 0


def _topic_and_partitions(text: str) -> tuple[str, tuple[int, ...] | None]:
    name, colon, numbers = text.partition(":")
    return name, partition_numbers(numbers) if colon else None


def _check_members(described: GroupDescription) -> None:
    if described.state in WITHOUT_MEMBERS:
        return
    clients = sorted({f"{each.client_id} at {each.host}" for each in described.members})
    raise CommandError(
        f"group {described.group_id} is in use (state {described.state}, "
        f"{counted(len(described.members), 'member')}: "
        f"{', '.join(clients) or 'no clients yet'}): stop its members, because they would "
        "overwrite the new offsets with their own positions"
    )


def _partitions(
    cluster: BlockingCluster, wanted: Sequence[tuple[str, tuple[int, ...] | None]]
) -> list[TopicPartition]:
    found: dict[TopicPartition, None] = {}
    for name, numbers in wanted:
        topic = ask_for_topic(cluster, name)
        found.update(dict.fromkeys(partitions_of(topic, numbers, action="reset")))
    cluster.look(None)
    return sorted(found)


def _rows(
    cluster: BlockingCluster,
    options: argparse.Namespace,
    tps: Sequence[TopicPartition],
    before: Mapping[TopicPartition, int],
) -> list[Row]:
    if gone := [tp for tp in tps if cluster.view.leader(tp) is None]:
        names = ", ".join(f"{tp.topic}:{tp.partition}" for tp in gone)
        raise CommandError(f"these partitions do not exist or have no leader: {names}")
    found = find(cluster, tps, options.to)
    rows: list[Row] = []
    for tp in tps:
        at, new = before.get(tp), found.starts[tp]
        if options.by is not None:
            if at is None:
                raise CommandError(
                    f"{tp.topic}:{tp.partition} has no committed offset, so --by cannot move it: "
                    "use --to"
                )
            new = min(max(at + options.by, found.begins[tp]), found.ends[tp])
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": at,
                "new": new,
                "change": None if at is None else new - at,
                "lag": found.ends[tp] - new,
            }
        )
    return rows


def _commit(cluster: BlockingCluster, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    request = commit_request(group_id, {tp: CommittedOffset(at) for tp, at in offsets.items()})

    def ask(node: int) -> None:
        results = commit_results(cluster.request(node, request))
        if refused := {tp: for_code(code) for tp, code in results.items() if code}:
            reasons = (f"{tp.topic}:{tp.partition}: {why(each)}" for tp, each in refused.items())
            # Retriable only if all are.
            error = min(refused.values(), key=lambda each: each.retriable)
            raise error(
                f"the broker did not commit the offsets of some partitions: {'; '.join(reasons)}"
            )

    at_coordinator(cluster, group_id, ask)


COMMANDS: Final = {
    "groups": Declaration(run_groups, _GROUPS, {"state": _STATES}),
    "lag": Declaration(run_lag, _LAG),
    "reset": Declaration(
        run_reset, _RESET, {"to": place, "by": int, "topic": _topic_and_partitions}
    ),
}
