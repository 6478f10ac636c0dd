"""`aiokafka-lite share`: changes of share groups, their start offsets and settings (KIP-932)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from aiokafka_lite.cli.arguments import YES, Declaration
from aiokafka_lite.cli.asking import place
from aiokafka_lite.cli.connecting import connecting
from aiokafka_lite.cli.groups import (
    DEAD,
    NEEDS_NONE,
    RESET_OPTIONS,
    at_coordinator,
    check_members,
    check_type,
    describe,
    lag_of,
    raise_if_refused,
    reset,
    topic_and_partitions,
)
from aiokafka_lite.cli.output import check_confirmable, confirm, counted
from aiokafka_lite.cli.problems import CommandError, plain_text, raise_if_any
from aiokafka_lite.cli.settings import CONFIG_OPTIONS, SHARE_GROUPS, show_or_change
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.messages.groups import DeleteGroupsRequest
from aiokafka_lite.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from aiokafka_lite.structs import TopicPartition

_RESET: Final = f"""
Change the offsets from which the records of a share group start: all records before them are
finished, and all after them are delivered. Without --execute, the changes are only shown. The
command fails if the group has members. A group that does not exist is created.

arguments:
{RESET_OPTIONS}

examples:
  aiokafka-lite share reset ocr --topic scans --to earliest            show the changes
  aiokafka-lite share reset ocr --topic scans --to earliest --execute  make the changes
  aiokafka-lite share reset ocr --all-topics --to 2h                   records of two hours
"""
_DELETE: Final = f"""
Delete share groups, or their offsets of some topics, after a confirmation. Fails for groups with
members. The settings of the groups stay.

arguments:
GROUP ...  the share groups
--topic TOPIC ...  only the offsets of this topic (repeatable)
{YES}

examples:
  aiokafka-lite share delete ocr
  aiokafka-lite share delete ocr --topic scans.old --yes     without asking
"""
_CONFIG: Final = f"""
Show the settings of a share group, or change settings. Without --every, only settings that differ
from the defaults are shown. The group need not exist: share.auto.offset.reset is read when the
first member of the group fetches from a partition.

arguments:
GROUP  the share group
{CONFIG_OPTIONS}

examples:
  aiokafka-lite share config ocr --every                      all settings
  aiokafka-lite share config ocr --set share.auto.offset.reset=earliest
  aiokafka-lite share config ocr --set share.record.lock.duration.ms=60000
  aiokafka-lite share config ocr --unset share.record.lock.duration.ms
"""


# --- reset -----------------------------------------------------------------------------------
def run_reset(options: argparse.Namespace) -> int:
    return reset(options, "start", _alter)


def _alter(cluster: BlockingCluster, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for tp, at in offsets.items():
        topics.setdefault(tp.topic, []).append(
            AlterShareGroupOffsetsRequestPartition(partition_index=tp.partition, start_offset=at)
        )
    request = AlterShareGroupOffsetsRequest(
        group_id=group_id,
        topics=[
            AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )

    def ask(node: int) -> None:
        response = cluster.request(node, request)
        results = [(group_id, response.error_code, response.error_message)]
        for topic in response.responses:
            for each in topic.partitions:
                name = f"{topic.topic_name}:{each.partition_index}"
                results.append((name, each.error_code, each.error_message))
        raise_if_refused("change some start offsets", results)

    at_coordinator(cluster, group_id, ask)


# --- delete ----------------------------------------------------------------------------------
def run_delete(options: argparse.Namespace) -> int:
    check_confirmable(options)
    problems: list[str] = []
    there: list[str] = []
    with connecting(options).cluster() as cluster:
        for group_id in dict.fromkeys(options.groups):
            try:
                lag = lag_of(cluster, group_id, options.topic)
                lag.check_topics(options.topic)
                check_type(lag.described, is_share=True)
                check_members(lag.described, NEEDS_NONE)
            except CommandError as error:
                problems.append(str(error))
                continue
            there.append(group_id)
            if not options.yes:
                print(lag.summary, file=sys.stderr)
        if there:
            of_topics = f"the offsets of {counted(len(options.topic), 'topic')} of "
            groups = counted(len(there), "share group")
            confirm(options, f"{of_topics if options.topic else ''}{groups}")
            cluster.limit(cluster.config.request_timeout_s)  # people take their time
        for group_id in there:
            try:
                _delete(cluster, group_id, options.topic)
            except KafkaError as error:
                problems.append(plain_text(error))
            else:
                of_topics = f" (topic {', '.join(options.topic)})" if options.topic else ""
                print(f"deleted {group_id}{of_topics}")
    raise_if_any(problems)
    return 0


def _delete(cluster: BlockingCluster, group_id: str, topics: Sequence[str]) -> None:
    def delete_group(node: int) -> None:
        results = cluster.request(node, DeleteGroupsRequest(groups_names=[group_id])).results
        raise_if_refused(
            "delete a group", [(each.group_id, each.error_code, None) for each in results]
        )

    def delete_offsets(node: int) -> None:
        named = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
        request = DeleteShareGroupOffsetsRequest(group_id=group_id, topics=named)
        response = cluster.request(node, request)
        results = [(group_id, response.error_code, response.error_message)]
        results += [(e.topic_name, e.error_code, e.error_message) for e in response.responses]
        raise_if_refused(f"delete offsets of group {group_id}", results)

    at_coordinator(cluster, group_id, delete_offsets if topics else delete_group)


# --- config ----------------------------------------------------------------------------------
def run_config(options: argparse.Namespace) -> int:
    with connecting(options).cluster() as cluster:
        for each in at_coordinator(
            cluster, options.group, lambda node: describe(cluster, node, [options.group])
        ):
            if each.state != DEAD:
                check_type(each, is_share=True)
        show_or_change(cluster, SHARE_GROUPS, [options.group], options)
    return 0


COMMANDS: Final = {
    "share reset": Declaration(
        run_reset, _RESET, {"to": place, "by": int, "topic": topic_and_partitions}
    ),
    "share delete": Declaration(run_delete, _DELETE),
    "share config": Declaration(run_config, _CONFIG),
}
