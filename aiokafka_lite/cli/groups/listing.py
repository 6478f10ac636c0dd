"""`aiokafka-lite groups`: the consumer groups and their states."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from aiokafka_lite.cli.arguments import Subparsers, new_parser
from aiokafka_lite.cli.asking import is_selected, unknown_names
from aiokafka_lite.cli.connecting import add_options, connecting
from aiokafka_lite.cli.groups.requests import GroupDescription, GroupListing, describe, list_groups
from aiokafka_lite.cli.output import Column, Row, add_json_option, print_rows
from aiokafka_lite.cli.problems import raise_if_any
from aiokafka_lite.client.blocking_cluster import BlockingCluster

_COLUMNS: Final = (
    Column("group", "group"),
    Column("state", "state"),
    Column("type", "type"),
    Column("members", "members", is_number=True),
    Column("assignor", "assignor"),
    Column("coordinator", "coordinator", is_number=True),
)
# The states of classic groups and of groups of KIP-848.
_STATES: Final = (
    "Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling",
    "Dead",
)  # fmt: skip
# The protocol types of consumers. Connect and others have their own.
_OF_CONSUMERS: Final = ("consumer", "")


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(
        subparsers,
        "groups",
        "List consumer groups of the classic protocol and of KIP-848, with their states.",
        "examples:\n"
        "  aiokafka-lite groups                         all groups\n"
        "  aiokafka-lite groups 'orders-*' --json       matching groups, as JSON\n"
        "  aiokafka-lite groups --state Empty -q        only names of groups without members\n",
    )
    parser.add_argument(
        "patterns",
        nargs="*",
        metavar="NAME",
        help=("only these groups (* matches any text, ? any character)"),
    )
    parser.add_argument(
        "--state",
        type=_a_state,
        metavar="STATE",
        help=f"only groups in this state: {', '.join(_STATES)}",
    )
    parser.add_argument("-q", "--names", action="store_true", help="print names alone")
    add_json_option(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def _a_state(text: str) -> str:
    for state in _STATES:
        if state.lower() == text.lower():
            return state
    raise argparse.ArgumentTypeError(f"{text!r} is not a state of a group: {', '.join(_STATES)}")


def run(options: argparse.Namespace) -> int:
    with connecting(options).cluster() as cluster:
        known, described = cluster.retrying(lambda: _known_and_described(cluster, options.patterns))
    listed = [each for each in known.values() if is_selected(each.group_id, options.patterns)]
    rows = [
        _row(each, described.get(each.group_id))
        for each in listed
        if options.state is None or _state(each, described.get(each.group_id)) == options.state
    ]
    problems = unknown_names("consumer group", options.patterns, known)
    if options.names:
        for row in rows:
            print(row["group"])
    else:
        print_rows(rows, _COLUMNS, as_json=options.json)
        if not rows and not problems:
            print("no groups", file=sys.stderr)
    raise_if_any(problems)
    return 0


def _known_and_described(
    cluster: BlockingCluster, patterns: list[str]
) -> tuple[dict[str, GroupListing], dict[str, GroupDescription]]:
    """Return all groups of consumers, and descriptions of those that are selected."""
    listed = [each for each in list_groups(cluster) if each.protocol_type in _OF_CONSUMERS]
    by_node: dict[int, list[str]] = {}
    for each in listed:
        if is_selected(each.group_id, patterns):
            by_node.setdefault(each.coordinator, []).append(each.group_id)
    described = {
        each.group_id: each
        for node, group_ids in by_node.items()
        for each in describe(cluster, node, group_ids)
    }
    return {each.group_id: each for each in listed}, described


def _state(listed: GroupListing, described: GroupDescription | None) -> str:
    return listed.state or (described.state if described is not None else "")


def _row(listed: GroupListing, described: GroupDescription | None) -> Row:
    return {
        "group": listed.group_id,
        "state": _state(listed, described) or None,
        "type": listed.type.lower() or None,
        "members": None if described is None else len(described.members),
        "assignor": None if described is None else described.assignor or None,
        "coordinator": listed.coordinator,
    }
