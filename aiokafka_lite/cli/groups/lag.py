"""`aiokafka-lite lag GROUP`: committed offsets and lags of a group."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite._settings import nearest
from aiokafka_lite.cli.arguments import Subparsers, new_parser, positive_seconds
from aiokafka_lite.cli.asking import offsets_at
from aiokafka_lite.cli.connecting import add_options, connecting
from aiokafka_lite.cli.groups.requests import (
    DEAD,
    GroupDescription,
    list_groups,
    owners,
    read_group,
)
from aiokafka_lite.cli.output import (
    Column,
    Row,
    add_json_option,
    count_text,
    counted,
    is_rich_wanted,
    print_rows,
    rich_table,
    text_lines,
)
from aiokafka_lite.cli.problems import CommandError, UsageError, plain_text
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offsets import LATEST
from aiokafka_lite.errors import KafkaError

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_INTERVAL_S: Final = 2.0

_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("partition", "partition", is_number=True),
    Column("committed", "committed", is_number=True),
    Column("end", "end", is_number=True),
    Column("lag", "lag", is_number=True, show=count_text),
    Column("client", "client"),
    Column("host", "host"),
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


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(
        subparsers,
        "lag",
        "Show the committed offset, the end of the log, the lag and the owner of each "
        "partition. Without a\ncommitted offset, the lag is unknown, because auto.offset.reset "
        "then determines where the group\nstarts. The lag is negative if the committed offset is "
        "beyond the end of the log, because the topic\nwas recreated or truncated. The group "
        "then starts according to auto.offset.reset.",
        "examples:\n"
        "  aiokafka-lite lag billing                    once\n"
        "  aiokafka-lite lag billing --watch            every two seconds, until Ctrl-C\n"
        "  aiokafka-lite lag billing --json | jq -s 'map(.lag) | add'\n",
    )
    parser.add_argument("group", metavar="GROUP", help="the consumer group")
    parser.add_argument("--topic", action="append", metavar="TOPIC", help="only this topic")
    parser.add_argument(
        "-w",
        "--watch",
        nargs="?",
        type=positive_seconds,
        const=DEFAULT_INTERVAL_S,
        metavar="SECONDS",
        help=f"show the lag again every SECONDS (default: {DEFAULT_INTERVAL_S:g}), until Ctrl-C",
    )
    add_json_option(parser)
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.watch is not None and options.json:
        raise UsageError("--watch and --json cannot be combined: leave one out")
    with connecting(options).cluster() as cluster:
        lag = lag_of(cluster, options.group, options.topic)
        if missing := set(options.topic or ()) - {row["topic"] for row in lag.rows}:
            raise CommandError(
                f"group {options.group} has no committed offsets and no members for topic "
                f"{', '.join(sorted(missing))}"
            )
        if options.watch is not None:
            _watch(cluster, options, lag)
    if not options.json:
        print(lag.summary)
    print_rows(lag.rows, _COLUMNS, as_json=options.json)
    return 0


def lag_of(cluster: BlockingCluster, group_id: str, topics: list[str] | None = None) -> Lag:
    """Return the lags of a group, or raise CommandError with the most similar name."""
    # All topics, because committed offsets have topic ids.
    view = cluster.look(None)
    described, offsets = read_group(cluster, group_id)
    if described.state == DEAD and not offsets:
        others = [each.group_id for each in list_groups(cluster)]
        raise CommandError(f"there is no group {group_id}{nearest(group_id, others)}")
    members = owners(described.members)
    tps = sorted(
        tp for tp in offsets.keys() | members.keys() if topics is None or tp.topic in topics
    )
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


# --- Watching ------------------------------------------------------------------------------
def _watch(cluster: BlockingCluster, options: argparse.Namespace, lag: Lag) -> None:
    if is_rich_wanted():
        _watch_with_rich(cluster, options, lag)
    while True:
        print(f"{time.strftime('%H:%M:%S')} {lag.summary}")
        print("\n".join(text_lines(lag.rows, _COLUMNS)), end="\n\n", flush=True)
        lag = _next_lag(cluster, options, lambda problem: print(problem, end="\n\n", flush=True))


def _next_lag(
    cluster: BlockingCluster, options: argparse.Namespace, say: Callable[[str], object]
) -> Lag:
    """Wait for the interval, and return the lag. Retriable errors are shown and retried."""
    while True:
        time.sleep(options.watch)
        cluster.limit(cluster.config.request_timeout_s)
        try:
            return lag_of(cluster, options.group, options.topic)
        except KafkaError as error:
            if not error.retriable:
                raise
            say(f"{time.strftime('%H:%M:%S')} cannot repeat: {plain_text(error)}")


def _watch_with_rich(cluster: BlockingCluster, options: argparse.Namespace, lag: Lag) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    began, first = time.monotonic(), lag.total
    with Live(auto_refresh=False, screen=True) as live:
        while True:
            passed_s = max(time.monotonic() - began, options.watch)  # not of an instant
            change = f", {(lag.total - first) / passed_s:+,.1f} a second"
            title = Text(f"{time.strftime('%H:%M:%S')}  {lag.summary}{change}")
            # The rows that do not fit are the least important.
            rows = sorted(lag.rows, key=lambda row: -n if isinstance(n := row["lag"], int) else 1)
            table = rich_table(rows, _COLUMNS, live.console.width)
            live.update(Group(title, table), refresh=True)

            def say(problem: str, title: Text = title, table: Table | Text = table) -> None:
                live.update(Group(title, Text(problem), table), refresh=True)

            lag = _next_lag(cluster, options, say)
