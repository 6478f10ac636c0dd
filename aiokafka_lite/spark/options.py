"""The options of a query, parsed and checked.

Names, defaults and rules are those of Spark's own Kafka source (`KafkaSourceProvider.scala`). Every
process that Spark starts parses options, so this module imports little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from aiokafka_lite._compat import override
from aiokafka_lite._settings import nearest
from aiokafka_lite.client.offsets import EARLIEST, LATEST, Offsets
from aiokafka_lite.errors import KafkaError, OptionError, UnknownTopicOrPartitionError
from aiokafka_lite.settings.kafka_options import (
    KafkaOptions,
    check_kafka_names,
    parse_kafka_options,
)
from aiokafka_lite.settings.raw_options import (
    MAX_INT,
    RawOptions,
    is_topic_name,
    trimmed,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.client.view import ClusterView, TopicView


class Subscribed:
    """The topics of a query by name or by a pattern of Java, or its assigned partitions.

    As in Spark's own source, internal topics and assigned partitions that do not exist are left
    out, and the pattern ``b`` finds ``abc``. `topics` are those whose metadata are needed, or None
    for all.
    """

    def __init__(
        self,
        option: str,
        *,
        topics: Iterable[str] = (),
        partitions: Iterable[TopicPartition] = (),
        pattern: str | None = None,
    ) -> None:
        self._option = option
        self.assigned: dict[str, set[int]] = {}
        for topic, partition in partitions:
            self.assigned.setdefault(topic, set()).add(partition)
        self.topics: frozenset[str] | None = frozenset((*topics, *self.assigned))
        if pattern is not None:
            # Imported where it is used: most queries name their topics.
            from aiokafka_lite.spark.java_pattern import compile_java

            self.topics, self._search = None, compile_java(pattern).search

    @override
    def __repr__(self) -> str:
        return f"Subscribed({self._option!r}, topics={sorted(self.topics or ())})"

    def matches(self, topic: str) -> bool:
        return self._search(topic) is not None if self.topics is None else topic in self.topics

    def partitions(self, view: ClusterView) -> list[TopicPartition]:
        return [
            TopicPartition(name, index)
            for name, topic in sorted(view.topics.items())
            if not topic.is_internal and self.matches(name)
            for index in topic.partitions
            if not self.assigned or index in self.assigned[name]
        ]

    def missing(self, view: ClusterView) -> dict[str, KafkaError]:
        return {
            name: self._error(name, view.topics.get(name))
            for name in sorted(self.topics or ())
            if (topic := view.topics.get(name)) is None
            or (not topic.partitions and not topic.is_internal)
        }

    def left_out(self, view: ClusterView) -> list[str]:
        """Return warnings about named topics and partitions that are not read."""
        unread: list[str] = []
        if self.topics is None and not self.partitions(view):
            unread.append(
                "no existing topic matches the option subscribePattern: no records are read until "
                "one matches"
            )
        for name in sorted(self.topics or ()):
            topic = view.topics.get(name)
            if topic is None:
                continue
            if topic.is_internal:
                unread.append(f"topic {name} is internal to Kafka, so it is not read")
            elif self.assigned:
                absent = sorted(self.assigned[name] - topic.partitions.keys())
                if absent and topic.partitions:
                    unread.append(
                        f"the option assign names partition {', '.join(map(str, absent))} of topic "
                        f"{name}, which does not exist yet: it is read as soon as it exists"
                    )
        return unread

    def _error(self, name: str, topic: TopicView | None) -> KafkaError:
        error_class = (topic.error if topic is not None else None) or UnknownTopicOrPartitionError
        if error_class is UnknownTopicOrPartitionError:
            return error_class(
                f"topic {name}, which the option {self._option} names, does not exist: create it, "
                "or check its name"
            )
        return error_class(
            f"topic {name}, which the option {self._option} names, cannot be read: "
            f"{error_class.description.rstrip('.')}"
        )


class Position(NamedTuple):
    """The start or end of all partitions, or of each: offsets, or times in ms since the epoch.

    Offsets may be `EARLIEST` and `LATEST`. A time is that of a partition's first record from then
    on.
    """

    at: int | Offsets
    is_time: bool = False

    def by_partition(self, tps: Collection[TopicPartition]) -> Offsets:
        if isinstance(self.at, int):
            return dict.fromkeys(tps, self.at)
        return {tp: self.at[tp] for tp in tps if tp in self.at}


ChoiceT = TypeVar("ChoiceT", bound=str)

SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
ENDINGS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
STREAMING_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "commitOffsetsToGroup",
    "admissionControl",
)
NAMES: Final = {
    name.lower(): name
    for name in (
        *SUBSCRIPTIONS,
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsets",
        *ENDINGS,
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "includeHeaders",
        "minPartitions",
        "maxRecordsPerPartition",
        *STREAMING_ONLY,
        "minRecordsPerTask",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "groupIdPrefix",
        "allowPlaintextCredentials",
    )
}
"""All options except kafka.*, by their names in lower case."""

# Options that Spark adds to a table's.
SPARKS_OWN: Final = frozenset({"path", "serialization.format"})


class SourceOptions(KafkaOptions):
    """The options of a query, as docs/spark.md describes them. `parse_options` makes them.

    `warnings` are logged by the process that plans the query.
    """

    is_streaming: bool
    subscription: Subscribed
    starting: Position
    ending: Position = Position(LATEST)
    timestamp_strategy: Literal["error", "latest"] = "error"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    fetch_retries: int = 3
    fetch_retry_interval_s: float = 1.0
    poll_timeout_s: float = 120.0
    min_records_per_task: int = 1000
    commit_group: str | None = None
    admission_control: Literal["engine", "source"] = "engine"
    warnings: tuple[str, ...] = ()


def parse_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Parse the arguments of `.option(...)`, or raise OptionError or InsecureConfigError."""
    default = SourceOptions
    raw = RawOptions(options)
    _check_names(raw)
    if is_streaming:
        _refuse_endings(raw)
    starting = _position(raw, "starting", LATEST if is_streaming else EARLIEST)
    ending = _position(raw, "ending", LATEST)
    if not is_streaming:
        _check_batch(raw, starting, ending)
    min_offsets, max_offsets = _offsets_per_trigger(raw)
    kafka = parse_kafka_options(raw)
    return SourceOptions(
        is_streaming=is_streaming,
        subscription=_subscription(raw),
        starting=starting,
        ending=ending,
        timestamp_strategy=_one_of(raw, "startingOffsetsByTimestampStrategy", "error", "latest"),
        fail_on_data_loss=raw.boolean("failOnDataLoss", default=True),
        include_headers=raw.boolean("includeHeaders", default=False),
        min_partitions=raw.integer("minPartitions", at_least=1, at_most=MAX_INT),
        max_records_per_partition=raw.integer("maxRecordsPerPartition", at_least=1),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_s=raw.duration_s("maxTriggerDelay", default.max_trigger_delay_s),
        fetch_retries=_fetch_retries(raw),
        fetch_retry_interval_s=raw.seconds(
            "fetchOffset.retryIntervalMs", default.fetch_retry_interval_s
        ),
        poll_timeout_s=raw.seconds(
            "kafkaConsumer.pollTimeoutMs", default.poll_timeout_s, at_least=1
        ),
        min_records_per_task=raw.number(
            "minRecordsPerTask", default.min_records_per_task, at_least=1
        ),
        commit_group=_commit_group(raw),
        admission_control=_one_of(raw, "admissionControl", "engine", "source"),
        warnings=tuple(raw.warnings),
        **vars(kafka),
    )


def _check_names(raw: RawOptions) -> None:
    if "provider" in raw and any(name.startswith("option.") for name in raw.names()):
        raise OptionError(
            "CREATE TABLE ... USING is not supported, because Spark (4.3) passes no table options "
            "to Python sources: use CREATE TEMPORARY VIEW ... USING"
        )
    for name in raw.names():
        if name.startswith("kafka."):
            continue
        if name == "topic":
            raw.warnings.append("option topic only applies to writing, so this source ignores it")
        elif name not in NAMES and name not in SPARKS_OWN:
            raise OptionError(
                f"option {name} is not known{nearest(name, NAMES, NAMES.__getitem__)}"
            )
    check_kafka_names(raw)


def _refuse_endings(raw: RawOptions) -> None:
    for name in ENDINGS:
        if name in raw:
            raise raw.refusal(
                name, f"streaming queries have no end. Leave out {name}, or use a batch query"
            )


def names_topics(raw: Mapping[str, str]) -> bool:
    lowered = {name.lower() for name in raw}
    return any(name.lower() in lowered for name in SUBSCRIPTIONS)


def _subscription(raw: RawOptions) -> Subscribed:
    chosen = [name for name in SUBSCRIPTIONS if name in raw]
    if not chosen:
        raise OptionError(f"no topics are named: set one of the options {', '.join(SUBSCRIPTIONS)}")
    if len(chosen) > 1:
        raise OptionError(
            f"the options {' and '.join(chosen)} exclude each other: set only one of the options"
        )
    if chosen == ["assign"]:
        return Subscribed("assign", partitions=raw.partitions("assign"))
    text = trimmed(raw.text(chosen[0]) or "")
    if chosen == ["subscribe"]:
        topics = dict.fromkeys(filter(None, map(trimmed, text.split(","))))
        if not topics:
            raise raw.refusal(
                "subscribe",
                "the value must be the name of a topic, or several names separated by commas",
            )
        for topic in topics:
            if not is_topic_name(topic):
                raise raw.refusal("subscribe", f"{topic!r} is not a valid topic name")
        return Subscribed("subscribe", topics=topics)
    if not text:
        raise raw.refusal(
            "subscribePattern", "the value must be a regular expression for topic names"
        )
    try:
        return Subscribed("subscribePattern", pattern=text)
    except ValueError as error:
        raise raw.refusal("subscribePattern", str(error)) from error


def _position(raw: RawOptions, edge: str, default: int) -> Position:
    """Read a start or end: of several options the most precise one has effect."""
    if (name := f"{edge}Timestamp") in raw:
        return Position(raw.number(name, 0, at_least=0), is_time=True)
    if (name := f"{edge}OffsetsByTimestamp") in raw:
        form = 'JSON like {"flights":{"0":1700000000000}}, in milliseconds since 1970'
        return Position(raw.by_partition(name, form, at_least=0), is_time=True)
    text = raw.text(name := f"{edge}Offsets")
    if text is None:
        return Position(default)
    match trimmed(text).lower():
        case "earliest":
            return Position(EARLIEST)
        case "latest":
            return Position(LATEST)
    form = 'earliest, latest, or JSON like {"flights":{"0":23,"1":-1}}'
    return Position(raw.by_partition(name, form, at_least=EARLIEST))


def _check_batch(raw: RawOptions, starting: Position, ending: Position) -> None:
    if starting == Position(LATEST):
        raise raw.refusal(
            "startingOffsets", "a batch query that starts at the latest offsets reads no records"
        )
    if ending == Position(EARLIEST):
        raise raw.refusal(
            "endingOffsets", "a batch query that ends at the earliest offsets reads no records"
        )
    _refuse_edge(raw, "startingOffsets", starting, LATEST, "-1 (latest) cannot be the start")
    _refuse_edge(raw, "endingOffsets", ending, EARLIEST, "-2 (earliest) cannot be the end")
    if (
        starting.is_time == ending.is_time
        and isinstance(starting.at, dict)
        and isinstance(ending.at, dict)
    ):
        name = "endingOffsetsByTimestamp" if ending.is_time else "endingOffsets"
        _check_order(raw, name, starting.at, ending.at)
    for name in STREAMING_ONLY:
        if name in raw:
            raw.warnings.append(f"option {name} has no effect on batch queries")


def _refuse_edge(raw: RawOptions, name: str, position: Position, edge: int, reason: str) -> None:
    if isinstance(position.at, dict) and not position.is_time:
        for tp, offset in position.at.items():
            if offset == edge:
                raise raw.refusal(
                    name, f"{reason} of a batch query, but is set for {tp.topic}-{tp.partition}"
                )


def _check_order(
    raw: RawOptions,
    name: str,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    if odd := sorted(starts.keys() ^ ends.keys()):
        raise OptionError(
            f"options {name.replace('ending', 'starting')} and {name} must name the same "
            f"partitions, but only one of the options names {odd[0].topic}-{odd[0].partition}"
        )
    for tp, start in starts.items():
        if start > ends[tp] >= 0:
            raise raw.refusal(
                name,
                f"{tp.topic}-{tp.partition} would end at {ends[tp]}, before its start at {start}",
            )


def _one_of(raw: RawOptions, name: str, *choices: ChoiceT) -> ChoiceT:
    text = raw.text(name)
    for choice in choices:
        if text is None or text.lower() == choice:
            return choice
    raise raw.refusal(name, f"the value must be {' or '.join(choices)}")


def _offsets_per_trigger(raw: RawOptions) -> tuple[int | None, int | None]:
    fewest = raw.integer("minOffsetsPerTrigger", at_least=0)
    most = raw.integer("maxOffsetsPerTrigger", at_least=1)
    if fewest is not None and most is not None and fewest > most:
        raise raw.refusal(
            "minOffsetsPerTrigger", f"the value must not exceed maxOffsetsPerTrigger={most}"
        )
    return fewest, most


def _fetch_retries(raw: RawOptions) -> int:
    name = "fetchOffset.numRetries"
    return max(1, raw.number(name, SourceOptions.fetch_retries, at_least=0, at_most=MAX_INT))


def _commit_group(raw: RawOptions) -> str | None:
    group = raw.sent_text("commitOffsetsToGroup")
    if group is not None and not trimmed(group):
        raise raw.refusal("commitOffsetsToGroup", "the value must be the name of a consumer group")
    return group
