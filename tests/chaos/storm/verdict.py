"""The journal and both topics, judged by the rules of simulated tests, partition by partition."""

from __future__ import annotations

import gc
import uuid
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import confluent_kafka

from aiokafka_lite.simulation import rules
from aiokafka_lite.simulation.history import Event, Facts, History, Kind, Violation
from aiokafka_lite.structs import TopicPartition
from tests.chaos.storm.journal import COPY, INPUT, events_of

# A topic has each acknowledged record, once and in order. That holds of the copy, too.
TOPIC_RULES: Final = (
    rules.acknowledged_records_stay,
    rules.idempotent_records_are_written_once,
    rules.records_keep_their_order,
)
READER_RULES: Final = (
    rules.every_record_is_seen,
    rules.values_are_those_of_the_log,
    rules.polls_are_monotonic,
    rules.polls_skip_nothing,
)


class Verdict(NamedTuple):
    """What was found of a partition.

    Attributes:
        records: By topic, how many it has.
        repeats: By reader, when it was given a record that it had been given before.
    """

    violations: list[Violation]
    records: dict[str, int]
    repeats: dict[str, list[float]]


def judge(bootstrap_servers: str, index: int, path: Path, sent: int) -> Verdict:
    """Judge a partition. Uses some hundred MiB: call it in a process of its own."""
    gc.disable()  # millions of events, without cycles
    return judge_events(index, events_of(index, path, sent), _logs(bootstrap_servers, index))


def judge_events(index: int, events: Iterable[Event], logs: dict[str, dict[int, bytes]]) -> Verdict:
    """Judge a partition by its events, and by the values of both topics by offset."""
    own = defaultdict[str, list[Event]](list)
    for event in events:
        own[event.who.partition("-")[0]].append(event)
    judged: list[tuple[str, tuple[rules.Rule, ...], list[Event], Facts]] = [
        (topic, TOPIC_RULES, own["producer"], Facts(logs={TopicPartition(topic, index): log}))
        for topic, log in logs.items()
    ]
    read = Facts(logs={TopicPartition(INPUT, index): logs[INPUT]})
    judged += [(name, READER_RULES, own[name], read) for name in ("run", "loop")]
    violations = []
    for name, those, history, facts in judged:
        run = rules.Evidence(History(), facts)
        run.history.events = history
        violations += [
            found._replace(rule=f"{name}: {found.rule}") for rule in those for found in rule(run)
        ]
    repeats = {name: _repeats(own[name]) for name in ("run", "loop")}
    return Verdict(violations, {topic: len(log) for topic, log in logs.items()}, repeats)


def _repeats(events: list[Event]) -> list[float]:
    seen, repeats = set[bytes](), []
    for event in events:
        if event.kind is Kind.RETURNED:
            if event.value in seen:
                repeats.append(event.at_s)
            seen.add(event.value)
    return repeats


def _logs(bootstrap_servers: str, index: int) -> dict[str, dict[int, bytes]]:
    """Return the committed values of a partition of both topics, as librdkafka reads them."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": uuid.uuid4().hex}
    settings |= {"enable.partition.eof": "true", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer(settings)
    logs: dict[str, dict[int, bytes]] = {INPUT: {}, COPY: {}}
    at = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, index, at) for topic in logs])
    ended = 0
    while ended < len(logs):
        for message in consumer.consume(10_000, timeout=1.0):
            topic, offset, value = message.topic(), message.offset(), message.value()
            error = message.error()
            if error is not None:
                ended += error.code() == confluent_kafka.KafkaError._PARTITION_EOF
            elif topic is not None and offset is not None and isinstance(value, bytes):
                logs[topic][offset] = value
    consumer.close()
    return logs
