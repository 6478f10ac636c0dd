"""`aiokafka-lite reset GROUP`: commit other offsets for a group without members."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Final, cast

from aiokafka_lite.cli.arguments import Subparsers, new_parser, partition_numbers
from aiokafka_lite.cli.asking import ask_for_topic, partitions_of, why
from aiokafka_lite.cli.connecting import add_options, connecting
from aiokafka_lite.cli.groups.requests import (
    DEAD,
    WITHOUT_MEMBERS,
    GroupDescription,
    at_coordinator,
    read_group,
)
from aiokafka_lite.cli.output import (
    Column,
    Row,
    add_json_option,
    count_text,
    counted,
    print_rows,
)
from aiokafka_lite.cli.positions import FORMS, Found, TopicPosition, find, place
from aiokafka_lite.cli.problems import CommandError, UsageError
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offset_commits import OffsetToCommit, commit_request, commit_results
from aiokafka_lite.errors import for_code
from aiokafka_lite.structs import TopicPartition

_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("partition", "partition", is_number=True),
    Column("committed", "committed", is_number=True),
    Column("new", "new", is_number=True),
    Column("change", "change", is_number=True, show=lambda value: f"{value:+,}"),
    Column("lag", "lag then", is_number=True, show=count_text),
)

_DESCRIPTION: Final = """\
Change the committed offsets of a group. Its consumers then start at the new offsets. Without
--execute, the changes are only shown. The command fails if the group has members, because members
would overwrite the new offsets with their own positions. A group that does not exist is created."""
_EXAMPLES: Final = """\
examples:
  aiokafka-lite reset billing --topic orders --to 2h            show the changes
  aiokafka-lite reset billing --topic orders --to 2h --execute  make the changes
  aiokafka-lite reset billing --topic orders:3 --to 1234        only one partition
  aiokafka-lite reset billing --topic orders --by -100          100 offsets back
  aiokafka-lite reset billing --all-topics --to latest          all topics with committed offsets
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "reset", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("group", metavar="GROUP", help="the consumer group")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--topic",
        action="append",
        metavar="TOPIC[:N,N-N…]",
        help="this topic, or some of its partitions (repeatable)",
    )
    which.add_argument(
        "--all-topics",
        action="store_true",
        help="all topics for which the group has committed offsets",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=place, metavar="WHERE", help=f"the new position: {FORMS}")
    where.add_argument(
        "--by",
        type=int,
        metavar="N",
        help="move the committed offsets by N, backwards if N is negative",
    )
    parser.add_argument(
        "--execute", action="store_true", help=("make the changes (default: only show them)")
    )
    add_json_option(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    wanted = [_topic_and_partitions(each) for each in options.topic or ()]
    with connecting(options).cluster() as cluster:
        cluster.look(None)
        described, before = read_group(cluster, options.group)
        _check_members(described)
        tps = _partitions(cluster, wanted) if wanted else sorted(before)
        if not tps:
            raise CommandError(
                f"group {options.group} has no committed offsets, so --all-topics selects no "
                "topics: name the topics with --topic"
            )
        rows = _rows(cluster, tps, before, options.to, options.by)
        if options.execute:
            new = {tp: cast("int", row["new"]) for tp, row in zip(tps, rows, strict=True)}
            _commit(cluster, options.group, new)
    print_rows(rows, _COLUMNS, as_json=options.json)
    if not options.execute:
        print("no offsets were changed: add --execute to change them", file=sys.stderr)
    elif not options.json:
        made = " (newly created)" if described.state == DEAD and not before else ""
        done = counted(len(rows), "partition")
        print(f"group {options.group}{made}: offsets of {done} were committed", file=sys.stderr)
    return 0


def _topic_and_partitions(text: str) -> tuple[str, tuple[int, ...] | None]:
    name, colon, numbers = text.partition(":")
    try:
        return name, partition_numbers(numbers) if colon else None
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--topic {text}: {error}") from error


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
    tps: Sequence[TopicPartition],
    before: Mapping[TopicPartition, int],
    to: TopicPosition | None,
    by: int | None,
) -> list[Row]:
    if gone := [tp for tp in tps if cluster.view.leader(tp) is None]:
        names = ", ".join(f"{tp.topic}:{tp.partition}" for tp in gone)
        raise CommandError(f"these partitions do not exist or have no leader: {names}")
    found = find(cluster, tps, to)
    rows: list[Row] = []
    for tp in tps:
        at = before.get(tp)
        new = _shifted(tp, at, by, found) if by is not None else found.starts[tp]
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


def _shifted(tp: TopicPartition, at: int | None, by: int, found: Found) -> int:
    if at is None:
        raise CommandError(
            f"{tp.topic}:{tp.partition} has no committed offset, so --by cannot move it: use --to"
        )
    return min(max(at + by, found.begins[tp]), found.ends[tp])


def _commit(cluster: BlockingCluster, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    request = commit_request(group_id, {tp: OffsetToCommit(at) for tp, at in offsets.items()})

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
