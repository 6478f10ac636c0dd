"""Requests that are wrong, or change nothing, are answered word for word as Kafka answers them.

Without Kafka the answers are compared with those of the last time; a difference is recorded by

    python -m tests.broker.admin.test_same_answers
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.configs import ALL_NODES, ResourceType
from aiokafka_lite.broker.handlers.topics import Operation
from aiokafka_lite.protocol.messages import cluster as by_pages
from aiokafka_lite.protocol.messages import topics as topic_messages
from aiokafka_lite.protocol.schema import Message, Request, Response
from tests.broker.admin.requests import BROKER, TOPIC, changing, describing, replacing
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient

RECORDED = Path(__file__).with_name("answers.json")

Cases = Mapping[str, Request[Response]]
SET, DELETE, APPEND, SUBTRACT = Operation
UNKNOWN_ID = b"x" * 16

# Told by a real cluster only: it was started with these, or has set them itself.
_DIFFERENT = re.compile(
    r"topic_id=[\w-]+, |"
    r"(CreatableTopicConfigs|DescribeConfigsSynonym|DescribeConfigsResourceResult)"
    r"\(name='min.insync.replicas'[^)]*\),? ?"
)  # fmt: skip


def told(answer: Message) -> str:
    """Return an answer as text, without what differs or is new in Kafka 4.4 (KIP-1191)."""
    for each in (*getattr(answer, "topics", ()), *getattr(answer, "results", ())):
        configs = getattr(each, "configs", None)
        if configs:
            each.configs = [one for one in configs if not one.name.startswith("errors.dead")]
    return _DIFFERENT.sub("", repr(answer))


# Values of share groups: the limits, and values beyond them.
SHARE_SETTINGS: Mapping[str, Sequence[str]] = {
    "session.timeout.ms": ("0", "44999", "45000"),
    "heartbeat.interval.ms": ("4999", "15001"),
    "assignment.interval.ms": ("-1", "0", "15001"),
    "delivery.count.limit": ("1", "2", "10", "11"),
    "partition.max.record.locks": ("99", "100", "4001"),
    "record.lock.duration.ms": ("999", "14999", "15000", "60001"),
    "isolation.level": ("READ_COMMITTED", "read_committed"),
    "renew.acknowledge.enable": ("maybe", "TRUE"),
    "auto.offset.reset": (
        "none", "Latest", "earliest", "by_duration:PT0S", "by_duration:p1dt2h3m4.5s",
        "by_duration:PT1.S", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:P1DT",
        "by_duration:PT-1H", "by_duration:P1Y", "BY_DURATION:PT1H",
    ),
}  # fmt: skip


# --- Topics ----------------------------------------------------------------------------------
def creating(
    name: str,
    count: int = 1,
    replication: int = 1,
    *,
    assigned: Sequence[tuple[int, list[int]]] = (),
    **configs: str | None,
) -> topic_messages.CreateTopicsRequest:
    topic = topic_messages.CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=replication,
        assignments=[
            topic_messages.CreatableReplicaAssignment(partition_index=index, broker_ids=nodes)
            for index, nodes in assigned
        ],
        configs=[
            topic_messages.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    return topic_messages.CreateTopicsRequest(topics=[topic], validate_only=True)


def creations(topic: str) -> Cases:
    new = topic + "-new"
    twice = creating(new)
    twice.topics *= 2
    return {
        "valid": creating(new, 3),
        "there already": creating(topic),
        "no name": creating(""),
        "dots": creating(".."),
        "blank": creating("a b"),
        "long": creating("x" * 250),
        "like another": creating(topic.replace("-", ".") + "_x"),
        "metadata": creating("__cluster_metadata"),
        "no partitions": creating(new, 0),
        "negative partitions": creating(new, -2),
        "no replicas": creating(new, 1, 0),
        "too many replicas": creating(new, 1, 9),
        "twice": twice,
        "unknown config": creating(new, no_such="1", preallocate="maybe"),
        "null config": creating(new, retention_ms=None),
        "no number": creating(new, retention_ms="x"),
        "small number": creating(new, retention_ms="-5"),
        "no choice": creating(new, cleanup_policy="x"),
        "no cleanup": creating(new, cleanup_policy=""),
        "list": creating(new, leader_replication_throttled_replicas="x"),
        "ratio": creating(new, min_cleanable_dirty_ratio="2"),
        "tiered": creating(new, remote_storage_enable="true"),
        "lags": creating(new, max_compaction_lag_ms="1", min_compaction_lag_ms="5"),
        "assigned": creating(new, -1, -1, assigned=[(0, [1]), (1, [1])]),
        "assigned and counted": creating(new, 2, -1, assigned=[(0, [1])]),
        "assigned and replicated": creating(new, -1, 2, assigned=[(0, [1])]),
        "assigned with a gap": creating(new, -1, -1, assigned=[(1, [1])]),
        "assigned to nobody": creating(new, -1, -1, assigned=[(0, [])]),
        "assigned twice": creating(new, -1, -1, assigned=[(0, [1, 1])]),
        "assigned to an unknown node": creating(new, -1, -1, assigned=[(0, [7])]),
        "assigned again": creating(new, -1, -1, assigned=[(0, [1]), (0, [1])]),
    }


def growing(
    name: str, count: int, assigned: Sequence[list[int]] | None = None
) -> topic_messages.CreatePartitionsRequest:
    topic = topic_messages.CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None
        if assigned is None
        else [topic_messages.CreatePartitionsAssignment(broker_ids=nodes) for nodes in assigned],
    )
    return topic_messages.CreatePartitionsRequest(
        topics=[topic], timeout_ms=10_000, validate_only=True
    )


def growth(topic: str) -> Cases:
    twice = growing(topic, 4)
    twice.topics *= 2
    return {
        "valid": growing(topic, 4),
        "unknown": growing("nope", 4),
        "as many": growing(topic, 3),
        "fewer": growing(topic, 2),
        "negative": growing(topic, -1),
        "twice": twice,
        "too few assigned": growing(topic, 5, [[1]]),
        "none assigned": growing(topic, 4, []),
        "assigned to an unknown node": growing(topic, 4, [[7]]),
        "assigned twice": growing(topic, 4, [[1, 1]]),
        "assigned to nobody": growing(topic, 4, [[]]),
    }


def deletions(topic: str) -> Cases:
    state = topic_messages.DeleteTopicState
    wanted = {
        "unknown": [state(name="nope")],
        "unknown id": [state(name=None, topic_id=UNKNOWN_ID)],
        "name and id": [state(name=topic, topic_id=UNKNOWN_ID)],
        "neither": [state(name=None)],
        "twice": [state(name="nope")] * 2,
        "id twice": [state(name=None, topic_id=UNKNOWN_ID)] * 2,
        "blank": [state(name="a b")],
    }
    return {
        name: topic_messages.DeleteTopicsRequest(topics=topics, timeout_ms=10_000)
        for name, topics in wanted.items()
    }


def page(
    *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> by_pages.DescribeTopicPartitionsRequest:
    return by_pages.DescribeTopicPartitionsRequest(
        topics=[by_pages.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else by_pages.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def pages(topic: str) -> Cases:
    return {
        "whole": page(topic),
        "twice": page(topic, topic),
        "first": page(topic, limit=2),
        "second": page(topic, limit=2, cursor=(topic, 2)),
        "behind the end": page(topic, "zzz", cursor=(topic, 9)),
        "full": page(topic, "zzz", limit=3),
        "nothing allowed": page(topic, limit=0),
        "unknown": page("zzz", "a b", topic),
        "negative": page(topic, cursor=(topic, -1)),
        "a later topic": page(topic, cursor=("zzz", 0)),
        "an unknown topic": page(topic, cursor=("a", 0)),
    }


# --- Settings --------------------------------------------------------------------------------
def descriptions(topic: str) -> Cases:
    group = ResourceType.GROUP
    return {
        "some": describing(TOPIC, topic, ["retention.ms", "nope"]),
        "without synonyms": describing(TOPIC, topic, ["flush.ms"], synonyms=False),
        "unknown topic": describing(TOPIC, "nope"),
        "blank": describing(TOPIC, "a b"),
        "no topic": describing(TOPIC, ""),
        "unknown broker": describing(BROKER, "77"),
        "no broker": describing(BROKER, "x"),
        "one setting of a broker": describing(BROKER, "1", ["compression.type"]),
        "one that it is started with": describing(BROKER, "1", ["node.id"]),
        "group": describing(group, topic, ["consumer.session.timeout.ms"]),
        "no group": describing(group, ""),
    }


def changes(topic: str) -> Cases:
    group = ResourceType.GROUP
    twice = changing(TOPIC, topic, ("flush.ms", SET, "5"), validate_only=True)
    twice.resources *= 2
    cases = {
        "set": changing(TOPIC, topic, ("flush.ms", SET, "5")),
        "no number": changing(TOPIC, topic, ("flush.ms", SET, "x")),
        "null": changing(TOPIC, topic, ("flush.ms", SET, None)),
        "unknown": changing(TOPIC, topic, ("nope", SET, "x")),
        "unknown deleted": changing(TOPIC, topic, ("nope", DELETE, None)),
        "unset deleted": changing(TOPIC, topic, ("flush.ms", DELETE, None)),
        "append to a number": changing(TOPIC, topic, ("flush.ms", APPEND, "5")),
        "append": changing(TOPIC, topic, ("cleanup.policy", APPEND, "compact")),
        "append nonsense": changing(TOPIC, topic, ("cleanup.policy", APPEND, "x")),
        "subtract": changing(TOPIC, topic, ("cleanup.policy", SUBTRACT, "x,delete")),
        "key twice": changing(TOPIC, topic, ("flush.ms", SET, "5"), ("flush.ms", DELETE, None)),
        "nothing": changing(TOPIC, topic),
        "unknown topic": changing(TOPIC, "nope", ("flush.ms", SET, "5")),
        "blank": changing(TOPIC, "a b", ("flush.ms", SET, "5")),
        "no topic": changing(TOPIC, "", ("flush.ms", SET, "5")),
        "other broker": changing(BROKER, "77", ("message.max.bytes", SET, "5000")),
        "no broker": changing(BROKER, "x", ("message.max.bytes", SET, "5000")),
        "broker": changing(BROKER, "1", ("message.max.bytes", SET, "5000")),
        "broker: no number": changing(BROKER, "1", ("message.max.bytes", SET, "x")),
        "broker: fixed": changing(BROKER, "1", ("node.id", SET, "5")),
        "all brokers: fixed": changing(BROKER, ALL_NODES, ("log.dirs", SET, "/x")),
        "broker: unknown": changing(BROKER, "1", ("no.such", SET, "x")),
        "all brokers": changing(BROKER, ALL_NODES, ("message.max.bytes", SET, "-1")),
        "group": changing(group, topic, ("consumer.session.timeout.ms", SET, "50000")),
        "group: low": changing(group, topic, ("consumer.session.timeout.ms", SET, "5")),
        "group: high": changing(group, topic, ("consumer.heartbeat.interval.ms", SET, "99999")),
        "group: no number": changing(group, topic, ("consumer.session.timeout.ms", SET, "x")),
        "group: unknown": changing(group, topic, ("x", SET, "5")),
        **{
            f"share group: {name} {value}": changing(group, topic, (f"share.{name}", SET, value))
            for name, values in SHARE_SETTINGS.items()
            for value in values
        },
        "no group": changing(group, "", ("consumer.session.timeout.ms", SET, "50000")),
        "type 0": changing(0, "x", ("a", SET, "b")),
        "type 99": changing(99, "x", ("a", SET, "b")),
    }
    for request in cases.values():
        request.validate_only = True
    return {**cases, "twice": twice}


def replacements(topic: str) -> Cases:
    cases = {
        "set": replacing(TOPIC, topic, ("flush.ms", "5")),
        "nothing": replacing(TOPIC, topic),
        "no number": replacing(TOPIC, topic, ("flush.ms", "x")),
        "null": replacing(TOPIC, topic, ("flush.ms", None)),
        "unknown": replacing(TOPIC, topic, ("nope", "1")),
        "unknown topic": replacing(TOPIC, "nope", ("flush.ms", "5")),
        "broker": replacing(BROKER, "1", ("message.max.bytes", "5000")),
        "broker: fixed": replacing(BROKER, "1", ("node.id", "5")),
        "type 0": replacing(0, "1", ("node.id", "5")),
        "key twice": replacing(TOPIC, topic, ("flush.ms", "5"), ("flush.ms", "6")),
    }
    for request in cases.values():
        request.validate_only = True
    return cases


# --- Only here -------------------------------------------------------------------------------
def limits(topic: str) -> Cases:
    group, message_bytes = ResourceType.GROUP, "message.max.bytes"
    cases: dict[str, Request[Response]] = {
        "whole topic": describing(TOPIC, topic),
        "whole group": describing(group, topic),
        "all brokers": describing(BROKER, ALL_NODES),
        "type 0": describing(0, "x"),
        "one assigned": growing(topic, 4, [[1]]),
        "most assigned": growing(topic, 5, [[1], [1]]),
    }
    changed = {
        "lowest": changing(group, topic, ("consumer.session.timeout.ms", SET, "45000")),
        "lower": changing(group, topic, ("consumer.session.timeout.ms", SET, "44999")),
        "highest": changing(group, topic, ("consumer.session.timeout.ms", SET, "60000")),
        "higher": changing(group, topic, ("consumer.session.timeout.ms", SET, "60001")),
        "unknown, then wrong": changing(BROKER, "1", ("x", SET, "x"), (message_bytes, SET, "x")),
        "deleted, then wrong": changing(
            BROKER, "1", ("log.retention.ms", DELETE, None), (message_bytes, SET, "x")
        ),
        "fixed and deleted": changing(BROKER, "1", ("node.id", DELETE, None)),
        "append to what is unknown": changing(TOPIC, topic, ("nope", APPEND, "x")),
        "subtract from a number": changing(TOPIC, topic, ("flush.ms", SUBTRACT, "5")),
        "append twice": changing(TOPIC, topic, ("cleanup.policy", APPEND, "compact,x,compact,x")),
        "subtract all": changing(TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete")),
        "no such operation": changing(TOPIC, topic, ("flush.ms", 9, "5")),
        "other broker": changing(BROKER, "2", (message_bytes, SET, "5000")),
    }
    for request in changed.values():
        request.validate_only = True
    return {**cases, **changed}


# --- Both ------------------------------------------------------------------------------------
ALIKE = (creations, growth, deletions, pages, descriptions, changes, replacements)


async def answers_of(client: RawClient, cases: Cases) -> dict[str, str]:
    return {name: told(await client.request(request)) for name, request in cases.items()}


async def answers() -> dict[str, dict[str, str]]:
    """Return what the embedded broker answers."""
    topic, found = "same-topic", {}
    async with Broker(segment_bytes=1 << 30) as broker:
        broker.create_topic(topic, 3, {"retention.ms": "1000"})
        async with RawClient(broker.bootstrap_servers) as client:
            for make_cases in (*ALIKE, limits):
                found[make_cases.__name__] = await answers_of(client, make_cases(topic))
    assert broker.failure is None
    return found


async def test_answers_are_those_that_were_compared_with_kafkas() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    for name, found in (await answers()).items():
        assert found == recorded[name], name


@pytest.mark.real_kafka
@pytest.mark.parametrize("make_cases", ALIKE)
async def test_kafka_answers_the_same(make_cases: Callable[[str], Cases], real_kafka: str) -> None:
    topic = unique("same")
    configs = {"retention.ms": "1000"}
    async with Broker(segment_bytes=1 << 30) as broker:
        found = {}
        for kind, address in (("embedded", broker.bootstrap_servers), ("real", real_kafka)):
            kafka = KafkaHandle("embedded" if kind == "embedded" else "real", address)
            await kafka.create_topic(topic, 3, configs)
            async with kafka.raw() as client:
                found[kind] = await answers_of(client, make_cases(topic))
            await kafka.delete_topic(topic)
        assert found["embedded"] == found["real"]
        assert broker.failure is None


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(asyncio.run(answers()), indent=1) + "\n", encoding="utf-8")
