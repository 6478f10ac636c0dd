"""`aiokafka-lite topics create`, `topics delete` and `topics config`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final

from aiokafka_lite._settings import nearest
from aiokafka_lite.cli.arguments import (
    Subparsers,
    name_and_value,
    new_parser,
    positive_int16,
    positive_int32,
)
from aiokafka_lite.cli.asking import ask_for_topic, bounds, why
from aiokafka_lite.cli.connecting import add_options, connecting
from aiokafka_lite.cli.output import Column, Row, add_json_option, counted, print_rows
from aiokafka_lite.cli.problems import CommandError, UsageError, raise_if_any
from aiokafka_lite.cli.topics import OF_TOPIC, TOPIC_RESOURCE, described_configs
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.view import TopicView
from aiokafka_lite.errors import KafkaError, for_code
from aiokafka_lite.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from aiokafka_lite.structs import TopicPartition

BY_DEFAULT: Final = -1
SET: Final = 0
UNSET: Final = 1
# The source of a default value (KIP-226).
DEFAULT: Final = 5
_SOURCES: Final = {1: "topic", 2: "broker", 3: "cluster", 4: "server.properties", 5: "default"}
LOOK_AGAIN_AFTER_S: Final = 0.05

_COLUMNS: Final = (
    Column("topic", "topic"),
    Column("name", "setting"),
    Column("value", "value"),
    Column("source", "set in"),
    Column("default", "default"),
)


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command `topics` with the actions that change topics, without the list."""
    topics = subparsers.add_parser("topics", description="Create, delete and configure topics.")
    actions = topics.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_create(actions)
    _add_delete(actions)
    _add_config(actions)


def _add_create(actions: Subparsers) -> None:
    parser = new_parser(
        actions,
        "create",
        "Create topics, and wait until their partitions have leaders.",
        "examples:\n"
        "  aiokafka-lite topics create orders                with the cluster's num.partitions\n"
        "  aiokafka-lite topics create orders payments --partitions 12 --replication 3\n"
        "  aiokafka-lite topics create users --config cleanup.policy=compact\n",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="the topics to create")
    parser.add_argument(
        "-p", "--partitions", type=positive_int32, metavar="N",
        help="the number of partitions of each topic (default: the cluster's num.partitions)",
    )  # fmt: skip
    parser.add_argument(
        "-r", "--replication", type=positive_int16, metavar="N",
        help="the number of replicas of each partition (default: the cluster's "
        "default.replication.factor)",
    )  # fmt: skip
    add_options(parser, settings_file=["--command-config"])
    parser.add_argument(
        "--config",
        dest="topic_settings",
        type=name_and_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the topics (repeatable)",
    )
    parser.set_defaults(run=run_create)


def _add_delete(actions: Subparsers) -> None:
    parser = new_parser(
        actions,
        "delete",
        "Delete topics with all their records, after a confirmation.",
        "examples:\n"
        "  aiokafka-lite topics delete orders.old\n"
        "  aiokafka-lite topics delete orders.old payments.old --yes     without asking\n",
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="the topics to delete")
    parser.add_argument("-y", "--yes", action="store_true", help="delete without confirmation")
    add_options(parser)
    parser.set_defaults(run=run_delete)


def _add_config(actions: Subparsers) -> None:
    parser = new_parser(
        actions,
        "config",
        "Show the settings of topics, or change settings. Without --every, only settings that "
        "differ from\nthe defaults are shown. The changes of one topic succeed or fail together.",
        "examples:\n"
        "  aiokafka-lite topics config orders                        non-default settings\n"
        "  aiokafka-lite topics config orders --every --json         all settings, as JSON\n"
        "  aiokafka-lite topics config orders --set retention.ms=86400000\n"
        "  aiokafka-lite topics config orders --unset retention.ms   use the cluster's value\n",
    )
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="the topics")
    parser.add_argument(
        "--set", dest="changes", type=name_and_value, action="append", default=[],
        metavar="NAME=VALUE", help="a setting to change (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--unset", action="append", default=[], metavar="NAME",
        help="a setting to remove, so that the cluster's value applies (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--every", action="store_true", help=("also show settings that have their default values")
    )
    add_json_option(parser)
    add_options(parser)
    parser.set_defaults(run=run_config)


# --- create --------------------------------------------------------------------------------
def run_create(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.names))
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=options.partitions or BY_DEFAULT,
            replication_factor=options.replication or BY_DEFAULT,
            configs=[
                CreatableTopicConfig(name=setting, value=value)
                for setting, value in options.topic_settings
            ],
        )
        for name in names
    ]
    with connecting(options).cluster() as cluster:
        cluster.look([])
        timeout_ms = _timeout_ms(cluster)
        request = CreateTopicsRequest(topics=topics, timeout_ms=timeout_ms)
        response = cluster.request(_controller(cluster), request)
        problems: list[str] = []
        for result in response.topics:
            if result.error_code:
                reason = result.error_message or why(for_code(result.error_code))
                problems.append(f"{result.name} was not created: {reason}")
                continue
            topic = _until_led(cluster, result.name, timeout_ms / 1000)
            replicas = max(len(each.replicas) for each in topic.partitions.values())
            print(
                f"created {topic.name}: {counted(len(topic.partitions), 'partition')}, "
                f"{counted(replicas, 'replica')}"
            )
    raise_if_any(problems)
    return 0


def _until_led(cluster: BlockingCluster, name: str, timeout_s: float) -> TopicView:
    give_up_at = time.monotonic() + timeout_s
    while True:
        topic = cluster.look([name]).topics.get(name)
        partitions = {} if topic is None else topic.partitions
        if topic is not None and partitions and all(p.leader >= 0 for p in partitions.values()):
            return topic
        if time.monotonic() >= give_up_at:
            raise CommandError(
                f"{name} was created, but some partitions still have no leader after "
                f"{timeout_s:g} s"
            )
        time.sleep(LOOK_AGAIN_AFTER_S)


def _controller(cluster: BlockingCluster) -> int:
    """Return the node for changes: without ZooKeeper any node forwards them."""
    view = cluster.view
    return view.controller_id if view.controller_id in view.nodes else min(view.nodes)


def _timeout_ms(cluster: BlockingCluster) -> int:
    return int(cluster.config.request_timeout_s * 1000)


# --- delete --------------------------------------------------------------------------------
def run_delete(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.topics))
    if not options.yes and not sys.stdin.isatty():
        raise UsageError(
            "cannot ask for confirmation, because the standard input is not a terminal: add --yes"
        )
    with connecting(options).cluster() as cluster:
        known = cluster.look(None).topics
        problems = [
            f"there is no topic {name}{nearest(name, known)}" for name in names if name not in known
        ]
        there = [known[name] for name in names if name in known]
        if there and (options.yes or _is_confirmed(cluster, there)):
            problems += _delete(cluster, there)
    raise_if_any(problems)
    return 0


def _is_confirmed(cluster: BlockingCluster, topics: Sequence[TopicView]) -> bool:
    for topic in topics:
        tps = [TopicPartition(topic.name, number) for number in topic.partitions]
        try:
            begins, ends = bounds(cluster, tps)
            held = counted(sum(ends[tp] - begins[tp] for tp in tps), "record")
        except (KafkaError, KeyError):
            held = "records"
        print(f"{topic.name}: {counted(len(tps), 'partition')}, {held}", file=sys.stderr)
    print(f"Delete {counted(len(topics), 'topic')}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        cluster.limit(cluster.config.request_timeout_s)  # people take their time
        return True
    raise CommandError("no topics were deleted")


def _delete(cluster: BlockingCluster, topics: Sequence[TopicView]) -> list[str]:
    states = [DeleteTopicState(name=topic.name) for topic in topics]
    request = DeleteTopicsRequest(topics=states, timeout_ms=_timeout_ms(cluster))
    problems: list[str] = []
    for result in cluster.request(_controller(cluster), request).responses:
        if result.error_code:
            reason = result.error_message or why(for_code(result.error_code))
            problems.append(f"{result.name} was not deleted: {reason}")
        else:
            print(f"deleted {result.name}")
    return problems


# --- config --------------------------------------------------------------------------------
def run_config(options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(options.topics))
    with connecting(options).cluster() as cluster:
        for name in names:
            ask_for_topic(cluster, name)
        before = _settings(cluster, names)
        if options.changes or options.unset:
            _change(cluster, options, before)
            before = _settings(cluster, names)
    rows = [
        _row(result.resource_name, each)
        for result in before
        for each in result.configs
        if options.every or _differs(each)
    ]
    print_rows(rows, _COLUMNS, as_json=options.json)
    if not rows and not options.json:
        print("all settings have their default values", file=sys.stderr)
    return 0


def _settings(cluster: BlockingCluster, names: Sequence[str]) -> list[DescribeConfigsResult]:
    results = described_configs(cluster, names, include_synonyms=True)
    raise_if_any(
        [
            f"settings of {each.resource_name} cannot be read: {why(for_code(each.error_code))}"
            for each in results
            if each.error_code
        ]
    )
    return results


def _differs(setting: DescribeConfigsResourceResult) -> bool:
    """Whether a setting is the topic's, or the cluster's with another value than the default."""
    if setting.config_source in (OF_TOPIC, DEFAULT) or not setting.synonyms:
        return setting.config_source != DEFAULT
    first, last = setting.synonyms[0], setting.synonyms[-1]
    return (first.name, first.value) != (last.name, last.value)


def _row(topic: str, setting: DescribeConfigsResourceResult) -> Row:
    default = next((each for each in setting.synonyms if each.source == DEFAULT), None)
    text = None if default is None else default.value
    if default is not None and default.name != setting.name:  # the broker's, in its own unit
        text = f"{default.name}={default.value}"
    return {
        "topic": topic,
        "name": setting.name,
        "value": setting.value,
        "source": _SOURCES.get(setting.config_source, "unknown"),
        "default": text,
    }


def _change(
    cluster: BlockingCluster,
    options: argparse.Namespace,
    before: Sequence[DescribeConfigsResult],
) -> None:
    named = [*(name for name, _ in options.changes), *options.unset]
    known = {each.name for result in before for each in result.configs}
    for name in named:
        if name not in known:
            raise UsageError(f"topics have no setting {name}{nearest(name, known)}")
        if named.count(name) > 1:
            raise UsageError(f"{name} is named twice")
    changes = [
        *[AlterableConfig(name=n, config_operation=SET, value=v) for n, v in options.changes],
        *[AlterableConfig(name=n, config_operation=UNSET, value=None) for n in options.unset],
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=each.resource_name, configs=changes
            )
            for each in before
        ]
    )
    raise_if_any(
        [
            f"{each.resource_name} was not changed: "
            f"{each.error_message or why(for_code(each.error_code))}"
            for each in cluster.request_any(request).responses
            if each.error_code
        ]
    )
