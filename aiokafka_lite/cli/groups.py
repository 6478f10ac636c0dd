"""`aiokafka-lite groups`, `lag GROUP` and `reset GROUP`: groups and their offsets."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

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
    Column,
    Row,
    columns,
    count_text,
    counted,
    list_text,
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
from aiokafka_lite.protocol.messages import consumer_group_describe, groups, share_groups
from aiokafka_lite.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from aiokafka_lite.protocol.messages.group_members import ConsumerProtocolAssignment
from aiokafka_lite.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from aiokafka_lite.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    ShareGroupDescribeRequest,
)
from aiokafka_lite.structs import TopicPartition

T = TypeVar("T")
_Described: TypeAlias = consumer_group_describe.DescribedGroup | share_groups.DescribedGroup

# --- Requests --------------------------------------------------------------------------------
DEAD: Final = "Dead"
SHARE: Final = "share"
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
    type: str
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

    def groups_that_assign() -> Sequence[_Described]:
        return cluster.request(node, ConsumerGroupDescribeRequest(group_ids=left)).groups

    def groups_that_share() -> Sequence[_Described]:
        return cluster.request(node, ShareGroupDescribeRequest(group_ids=left)).groups

    # Groups of other types are not found by these requests, as in Java's admin client.
    for type_, ask in (("consumer", groups_that_assign), (SHARE, groups_that_share)):
        try:
            described = ask() if left else ()
        except UnsupportedVersionError:
            continue  # the broker has no groups of this type
        for group in described:
            # The second is from brokers where the protocol is disabled.
            if group.error_code in (GroupIdNotFound.errno, UnsupportedVersionError.errno):
                continue
            _raise_for(group.group_id, group.error_code, group.error_message)
            found[group.group_id] = _of_broker(type_, group)
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


class GroupOffsets(NamedTuple):
    """The offsets of a group: committed ones, or those from which a share group's records start."""

    at: dict[TopicPartition, int]
    #: Only of a share group, by its coordinator: of all its partitions, because each member
    #: finishes records out of order.
    lags: dict[TopicPartition, int | None]


def read_group(cluster: BlockingCluster, group_id: str) -> tuple[GroupDescription, GroupOffsets]:
    def ask(node: int) -> tuple[GroupDescription, GroupOffsets]:
        described = describe(cluster, node, [group_id])
        if not described:
            raise KafkaProtocolError(
                f"the broker's DescribeGroups response does not contain group {group_id!r}"
            )
        read = _start_offsets if described[0].type == SHARE else _committed
        return described[0], read(cluster, node, group_id)

    return at_coordinator(cluster, group_id, ask)


def _raise_for(group_id: str, error_code: int, message: str | None) -> None:
    if error_code:
        reason = reason_of(error_code, message)
        raise for_code(error_code)(f"group {group_id} cannot be described: {reason}")


def _member(
    member: consumer_group_describe.Member | share_groups.Member | groups.DescribedGroupMember,
    assigned: Iterable[tuple[str, Iterable[int]]],
) -> MemberDescription:
    host = member.client_host.lstrip("/")
    tps = (TopicPartition(topic, number) for topic, numbers in assigned for number in numbers)
    return MemberDescription(member.member_id, member.client_id, host, frozenset(tps))


def _of_broker(type_: str, group: _Described) -> GroupDescription:
    members = tuple(
        _member(
            each,
            [(topic.topic_name, topic.partitions) for topic in each.assignment.topic_partitions],
        )
        for each in group.members
    )
    return GroupDescription(group.group_id, type_, group.group_state, group.assignor_name, members)


def _of_classic(group: groups.DescribedGroup) -> GroupDescription:
    members = tuple(_member(each, _assigned(each.member_assignment)) for each in group.members)
    state = DEAD if group.error_code == GroupIdNotFound.errno else group.group_state
    return GroupDescription(group.group_id, "classic", state, group.protocol_data, members)


def _assigned(blob: bytes) -> list[tuple[str, list[int]]]:
    """Empty if the assignment is not a consumer's."""
    try:
        assignment = decode_versioned(ConsumerProtocolAssignment, blob) if blob else None
    except (KafkaProtocolError, UnsupportedVersionError):
        return []
    topics = () if assignment is None else assignment.assigned_partitions
    return [(each.topic, each.partitions) for each in topics]


def _committed(cluster: BlockingCluster, node: int, group_id: str) -> GroupOffsets:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)])
    offsets = GroupOffsets({}, {})
    for group in cluster.request(node, request).groups:
        if group.error_code != GroupIdNotFound.errno:
            _raise_for(group_id, group.error_code, None)
        for topic in group.topics:
            for each in topic.partitions:
                name = topic.name or cluster.view.topic_names.get(topic.topic_id, "")
                # A topic without a name was deleted.
                if name and not each.error_code and each.committed_offset >= 0:
                    offsets.at[TopicPartition(name, each.partition_index)] = each.committed_offset
    return offsets


def _start_offsets(cluster: BlockingCluster, node: int, group_id: str) -> GroupOffsets:
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)]
    )
    offsets = GroupOffsets({}, {})
    for group in cluster.request(node, request).groups:
        _raise_for(group_id, group.error_code, group.error_message)
        for topic in group.topics:
            for each in topic.partitions:
                tp = TopicPartition(topic.topic_name, each.partition_index)
                # Both are -1 until the first acknowledgement.
                if not each.error_code and each.start_offset >= 0:
                    offsets.at[tp] = each.start_offset
                offsets.lags[tp] = each.lag if each.lag != -1 else None
    return offsets


# --- groups ----------------------------------------------------------------------------------
_GROUP_COLUMNS: Final = columns("group, state, type, #members, assignor, #coordinator")
# The states of classic groups and of groups of KIP-848.
_STATES: Final = (
    "Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling",
    "Dead",
)  # fmt: skip
# The protocol types of consumers. Connect and others have their own.
_OF_CONSUMERS: Final = ("consumer", SHARE, "")


_GROUPS: Final = f"""
List groups with their states: consumer groups of the classic protocol and of KIP-848, and share
groups.

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
    problems = unknown_names("group", options.patterns, known)
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


# All members of a share group may have records of a partition.
_SHARE_COLUMNS: Final = columns(
    "topic, #partition, #start, #end, #lag, #members, clients", lag=count_text, clients=list_text
)


class Lag(NamedTuple):
    described: GroupDescription
    rows: list[Row]

    @property
    def columns(self) -> Sequence[Column]:
        return _SHARE_COLUMNS if self.described.type == SHARE else _LAG_COLUMNS

    def check_topics(self, topics: Collection[str]) -> None:
        if missing := set(topics) - {row["topic"] for row in self.rows}:
            raise CommandError(
                f"group {self.described.group_id} has no offsets and no members for topic "
                f"{', '.join(sorted(missing))}"
            )

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
        kind = "share group" if self.described.type == SHARE else "group"
        return f"{kind} {self.described.group_id}: {self.described.state}, {members}, {lag}"


_LAG: Final = f"""
Show the committed offset, the end of the log, the lag and the owner of each partition. Without a
committed offset, the lag is unknown, because auto.offset.reset then determines where the group
starts. The lag is negative if the committed offset is beyond the end of the log, because the topic
was recreated or truncated. The group then starts according to auto.offset.reset.

For a share group, show the offset before which all records are finished, and how many records after
it are not. Both are unknown until the first acknowledgement.

arguments:
GROUP  the group
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
        lag.check_topics(options.topic)
        if options.watch is not None:
            _watch(cluster, options, lag)
    if not options.json:
        print(lag.summary)
    print_rows(lag.rows, lag.columns, as_json=options.json)
    return 0


def lag_of(cluster: BlockingCluster, group_id: str, topics: Collection[str] = ()) -> Lag:
    """Return the lags of a group, or raise CommandError, with the most similar name."""
    # All topics, because committed offsets have topic ids.
    view = cluster.look(None)
    described, offsets = read_group(cluster, group_id)
    is_share = described.type == SHARE
    if described.state == DEAD and not offsets.at:
        others = [each.group_id for each in list_groups(cluster)]
        raise CommandError(f"there is no group {group_id}{nearest(group_id, others)}")
    owners: dict[TopicPartition, list[MemberDescription]] = {}
    for member in described.members:
        for tp in member.partitions:
            owners.setdefault(tp, []).append(member)
    found = offsets.at.keys() | offsets.lags.keys() | owners.keys()
    tps = sorted(tp for tp in found if not topics or tp.topic in topics)
    led = [tp for tp in tps if view.leader(tp) is not None]
    (ends,) = offsets_at(cluster, led, LATEST) if led else [{}]
    rows: list[Row] = []
    for tp in tps:
        at, end = offsets.at.get(tp), ends.get(tp)
        lag = None if at is None or end is None else end - at
        rows.append(
            {
                "group": group_id,
                "topic": tp.topic,
                "partition": tp.partition,
                "start" if is_share else "committed": at,
                "end": end,
                "lag": offsets.lags.get(tp) if is_share else lag,
                **(_clients if is_share else _owner)(owners.get(tp, ())),
            }
        )
    return Lag(described, rows)


def _owner(members: Sequence[MemberDescription]) -> Row:
    owner = members[-1] if members else None
    return {
        "client": None if owner is None else owner.client_id,
        "host": None if owner is None else owner.host,
        "member": None if owner is None else owner.member_id,
    }


def _clients(members: Sequence[MemberDescription]) -> Row:
    return {"members": len(members), "clients": sorted({each.client_id for each in members})}


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
            show(f"{time.strftime('%H:%M:%S')} {text}", rows, lag.columns)
            time.sleep(options.watch)
            cluster.limit(cluster.config.request_timeout_s)
            try:
                lag, problem = lag_of(cluster, options.group, options.topic), ""
            except KafkaError as error:
                if not error.retriable:
                    raise
                problem = f"cannot repeat: {plain_text(error)}"


# --- reset -----------------------------------------------------------------------------------
# Why a group must have no members.
NEEDS_NONE: Final = "a share group is only changed without members"
WOULD_OVERWRITE: Final = "they would overwrite the new offsets with their own positions"

RESET_OPTIONS: Final = f"""\
GROUP  the group
--topic TOPIC[:N,N-N…] ...  this topic, or some of its partitions (repeatable)
|| --all-topics  all topics of which the group has offsets
--to WHERE  the new position: {FORMS}
|| --by N  move the offsets by N, backwards if N is negative
--execute  make the changes (default: only show them)
{AS_JSON}"""

_RESET: Final = f"""
Change the committed offsets of a group. Its consumers then start at the new offsets. Without
--execute, the changes are only shown. The command fails if the group has members, because members
would overwrite the new offsets with their own positions. A group that does not exist is created.

arguments:
{RESET_OPTIONS}

examples:
  aiokafka-lite reset billing --topic orders --to 2h            show the changes
  aiokafka-lite reset billing --topic orders --to 2h --execute  make the changes
  aiokafka-lite reset billing --topic orders:3 --to 1234        only one partition
  aiokafka-lite reset billing --topic orders --by -100          100 offsets back
  aiokafka-lite reset billing --all-topics --to latest          all topics with committed offsets
"""


def run_reset(options: argparse.Namespace) -> int:
    return reset(options, "committed", _commit)


def reset(
    options: argparse.Namespace,
    word: str,
    change: Callable[[BlockingCluster, str, Mapping[TopicPartition, int]], None],
) -> int:
    """Show or change offsets, which are `word` offsets: those of share groups are "start"."""
    is_share = word == "start"
    with connecting(options).cluster() as cluster:
        cluster.look(None)
        described, (before, _) = read_group(cluster, options.group)
        is_new = described.state == DEAD and not before
        if not is_new:
            check_type(described, is_share=is_share)
        check_members(described, NEEDS_NONE if is_share else WOULD_OVERWRITE)
        tps = _partitions(cluster, options.topic) if options.topic else sorted(before)
        if not tps:
            raise CommandError(
                f"group {options.group} has no {word} offsets, so --all-topics selects no "
                "topics: name the topics with --topic"
            )
        rows = _rows(cluster, options, tps, before, word)
        if options.execute:
            new = {tp: cast("int", row["new"]) for tp, row in zip(tps, rows, strict=True)}
            change(cluster, options.group, new)
    shown = columns(
        f"topic, #partition, #{word}, #new, #change, #lag: lag then",
        change=lambda value: f"{value:+,}",
        lag=count_text,
    )
    print_rows(rows, shown, as_json=options.json)
    if not options.execute:
        print("no offsets were changed: add --execute to change them", file=sys.stderr)
    elif not options.json:
        made = " (newly created)" if is_new else ""
        done = counted(len(rows), "partition")
        print(f"group {options.group}{made}: offsets of {done} were changed", file=sys.stderr)
    return 0


def topic_and_partitions(text: str) -> tuple[str, tuple[int, ...] | None]:
    name, colon, numbers = text.partition(":")
    return name, partition_numbers(numbers) if colon else None


def check_type(described: GroupDescription, *, is_share: bool) -> None:
    group_id, type_ = described.group_id, described.type
    if is_share and type_ != SHARE:
        raise CommandError(f"group {group_id} is not a share group (type {type_})")
    if not is_share and type_ == SHARE:
        raise CommandError(f"group {group_id} is a share group: use `share reset`")


def check_members(described: GroupDescription, reason: str) -> None:
    if described.state in WITHOUT_MEMBERS:
        return
    clients = sorted({f"{each.client_id} at {each.host}" for each in described.members})
    raise CommandError(
        f"group {described.group_id} is in use (state {described.state}, "
        f"{counted(len(described.members), 'member')}: "
        f"{', '.join(clients) or 'no clients yet'}): stop its members, because {reason}"
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
    word: str,
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
                    f"{tp.topic}:{tp.partition} has no {word} offset, so --by cannot move it: "
                    "use --to"
                )
            new = min(max(at + options.by, found.begins[tp]), found.ends[tp])
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                word: at,
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
        refusals = [(f"{tp.topic}:{tp.partition}", code, None) for tp, code in results.items()]
        raise_if_refused("commit the offsets of some partitions", refusals)

    at_coordinator(cluster, group_id, ask)


def raise_if_refused(action: str, results: Iterable[tuple[str, int, str | None]]) -> None:
    """Raise for the error codes of things that have names. Retriable only if all are."""
    refused = [(name, for_code(code), message) for name, code, message in results if code]
    if refused:
        reasons = "; ".join(f"{name}: {message or why(error)}" for name, error, message in refused)
        error = min((error for _, error, _ in refused), key=lambda each: each.retriable)
        raise error(f"the broker did not {action}: {reasons}")


COMMANDS: Final = {
    "groups": Declaration(run_groups, _GROUPS, {"state": _STATES}),
    "lag": Declaration(run_lag, _LAG),
    "reset": Declaration(
        run_reset, _RESET, {"to": place, "by": int, "topic": topic_and_partitions}
    ),
}
