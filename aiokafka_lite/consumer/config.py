"""The arguments of a consumer and of its methods, and their checks.

Names, units and the beginnings of messages are aiokafka's. The package uses the `_s` properties.

References: ``auto.offset.reset`` in Kafka's consumer configuration, KIP-1106 (by_duration),
``java.time.Duration.parse`` for the format of durations.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, Literal, cast

from aiokafka_lite._arguments import Kind, is_int, is_list, is_number
from aiokafka_lite._compat import KT, VT, override
from aiokafka_lite._version import __version__
from aiokafka_lite._virtual import wall_ms
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.client.arguments import (
    INSTANCES,
    MOST_LONG,
    ClientArguments,
    InSeconds,
    check_partition,
    check_text,
    is_offset,
    not_a,
    shown,
)
from aiokafka_lite.client.offsets import EARLIEST, ISOLATION_LEVELS, LATEST
from aiokafka_lite.consumer.assignors import RangePartitionAssignor, RoundRobinPartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    import asyncio
    import ssl

    from aiokafka_lite.abc import AbstractTokenProvider
    from aiokafka_lite.bad_records import OnBadRecord
    from aiokafka_lite.consumer.assignors import AbstractPartitionAssignor
    from aiokafka_lite.consumer.buffer.deserialising import AnyDeserializer
    from aiokafka_lite.deserializers import DeserializerOf

DEFAULT_CLIENT_ID: Final = f"aiokafka-lite-{__version__}"
DEFAULT_MAX_BUFFERED_BYTES: Final = 64 * 1024 * 1024
DEFAULT_MAX_BATCH_BYTES: Final = 256 * 1024 * 1024
# Records that were returned and are not committed, with `run` or acknowledgements.
DEFAULT_MAX_UNCOMMITTED: Final = 10_000

GROUP_PROTOCOLS: Final = ("auto", "classic", "consumer")
DEFAULT_GROUP_PROTOCOL: Final = "auto"
# Java's two, and aiokafka's, so that a group of aiokafka members can be joined. With an eager one
# among them a member is eager, as in Java.
DEFAULT_ASSIGNORS: Final = (
    CooperativeStickyPartitionAssignor,
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
)
# The brokers' default session of KIP-848 members (group.consumer.session.timeout.ms).
CONSUMER_SESSION_S: Final = 45.0

# The limits of records that aiokafka has too, and its messages for invalid ones.
AIOKAFKAS_LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_poll_records": "`max_poll_records` should be positive Integer",
        "max_records": "`max_records` must be a positive Integer",
    }
)
# The part of the rebalance timeout for the last commit and the listener, after the wait for the
# application.
HOLD_MARGIN: Final = 0.2


class NotGiven(int):
    """A default that differs from the same number as an argument."""


DEFAULT_AUTO_COMMIT_INTERVAL_MS: Final[int] = NotGiven(5_000)


class _Given:
    """The constructor's arguments that only consumers have."""

    topics: tuple[str, ...]
    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str | None
    key_deserializer: AnyDeserializer | None
    value_deserializer: AnyDeserializer | None
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    fetch_min_bytes: int
    max_partition_fetch_bytes: int
    auto_offset_reset: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    check_crcs: bool
    partition_assignment_strategy: Sequence[type[AbstractPartitionAssignor]]
    max_poll_interval_ms: int
    rebalance_timeout_ms: int | None
    session_timeout_ms: int
    heartbeat_interval_ms: int
    consumer_timeout_ms: int
    max_poll_records: int | None
    exclude_internal_topics: bool
    isolation_level: str
    client_rack: str | None
    max_buffered_bytes: int
    max_batch_bytes: int
    max_records_per_partition: int | None
    on_bad_record: OnBadRecord
    rebalance_hold_ms: int | None
    heartbeat_thread: bool
    ack_mode: Literal["implicit", "explicit"]


class ConsumerConfig(_Given, ClientArguments, Generic[KT, VT]):
    """A consumer's arguments, checked. Raises as `AIOKafkaConsumer`."""

    kind = "consumer"
    _own_checks = ClientArguments._own_checks | {"max_poll_records", "max_records_per_partition"}
    _may_be_zero = ClientArguments._may_be_zero | {
        "fetch_max_wait_ms", "fetch_min_bytes", "rebalance_hold_ms"
    }  # fmt: skip
    _sent = frozenset(
        {
            "fetch_max_bytes",
            "fetch_max_wait_ms",
            "fetch_min_bytes",
            "max_partition_fetch_bytes",
            "max_poll_interval_ms",
            "rebalance_timeout_ms",
            "request_timeout_ms",
            "session_timeout_ms",
        }
    )

    fetch_max_wait_s = InSeconds()
    auto_commit_interval_s = InSeconds()
    max_poll_interval_s = InSeconds()
    session_timeout_s = InSeconds()
    heartbeat_interval_s = InSeconds()

    # AIOKafkaConsumer has the same arguments (`takes_arguments_of`).
    def __init__(
        self,
        *topics: str,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str = DEFAULT_CLIENT_ID,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        group_protocol: str = DEFAULT_GROUP_PROTOCOL,
        group_remote_assignor: str | None = None,
        key_deserializer: Callable[[bytes], KT] | DeserializerOf[KT] | None = None,
        value_deserializer: Callable[[bytes], VT] | DeserializerOf[VT] | None = None,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 52_428_800,
        fetch_min_bytes: int = 1,
        max_partition_fetch_bytes: int = 1_048_576,
        request_timeout_ms: int = 40_000,
        retry_backoff_ms: int = 100,
        auto_offset_reset: str = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = DEFAULT_AUTO_COMMIT_INTERVAL_MS,
        check_crcs: bool = True,
        metadata_max_age_ms: int = 300_000,
        partition_assignment_strategy: Sequence[
            type[AbstractPartitionAssignor]
        ] = DEFAULT_ASSIGNORS,
        max_poll_interval_ms: int = 300_000,
        rebalance_timeout_ms: int | None = None,
        session_timeout_ms: int = 10_000,
        heartbeat_interval_ms: int = 3_000,
        consumer_timeout_ms: int = 200,
        max_poll_records: int | None = None,
        ssl_context: ssl.SSLContext | None = None,
        security_protocol: str = "PLAINTEXT",
        api_version: object = None,
        exclude_internal_topics: bool = True,
        connections_max_idle_ms: int | None = 540_000,
        isolation_level: str = "read_uncommitted",
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: AbstractTokenProvider | None = None,
        client_rack: str | None = None,
        allow_plaintext_credentials: bool = False,
        max_buffered_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        allow_auto_create_topics: bool = True,
        max_records_per_partition: int | None = None,
        on_bad_record: OnBadRecord = "raise",
        rebalance_hold_ms: int | None = None,
        heartbeat_thread: bool = False,
        ack_mode: Literal["implicit", "explicit"] = "implicit",
        seed: int | None = None,
    ) -> None:
        """Take the arguments, without connecting.

        Args:
            *topics: Topics to subscribe to.
            loop: Deprecated: the loop of the consumer, if it is not running yet.
            bootstrap_servers: Addresses for the first metadata request: "host:port", several
                separated by commas, or a list.
            client_id: The name of this client in the brokers' logs and quotas.
            group_id: The group that assigns partitions and stores offsets. None: no group.
            group_instance_id: Makes this a static member (KIP-345): a restart within the session
                timeout causes no rebalance.
            group_protocol: "consumer" (KIP-848: the broker computes the assignment, and only
                partitions that move are revoked), "classic" or "auto": "consumer" if the broker
                supports it for this group and `partition_assignment_strategy` is not given.
            group_remote_assignor: The broker's assignor of KIP-848: "uniform", "range" or another.
                None: its default.
            key_deserializer: A sync or async callable of bytes, or an instance of a class of
                `aiokafka_lite.deserializers`.
            value_deserializer: The same for values.
            fetch_max_wait_ms: How long a broker may wait for `fetch_min_bytes`.
            fetch_max_bytes: The most bytes of a response, unless its first batch is larger.
            fetch_min_bytes: The bytes that a broker collects before it responds.
            max_partition_fetch_bytes: The same limit for one partition in a response.
            request_timeout_ms: How long a broker may be silent before a request fails. The first
                attempts have a part of it.
            retry_backoff_ms: The first pause before a request is retried.
            auto_offset_reset: The start without a valid committed offset: "latest", "earliest",
                "none" (an error) or "by_duration:PT12H" (KIP-1106).
            enable_auto_commit: Commit periodically the records that were returned before the latest
                read.
            auto_commit_interval_ms: The time between commits. If it is not given, records that
                `run` or `ack_mode="explicit"` finish are committed up to ten times a second. If it
                is given, commits are sooner only for partitions that leave this member.
            check_crcs: Verify the checksum of each batch.
            metadata_max_age_ms: The age at which the metadata of topics and leaders are refreshed.
            partition_assignment_strategy: Assignor classes for the classic protocol, which giving
                them selects. The group uses the first one that all members have. By default
                cooperative-sticky, range and round robin.
            max_poll_interval_ms: The longest time without a read. After that, the consumer leaves
                the group.
            rebalance_timeout_ms: How long the group waits for this member in a rebalance. None:
                `max_poll_interval_ms`, as in Java. Handlers of `run` may use all of it, records of
                reads only `session_timeout_ms`.
            session_timeout_ms: The time without a heartbeat after which the group removes a member.
                With KIP-848 the broker's setting applies (45 s by default). This one only limits
                how long records are returned without a response.
            heartbeat_interval_ms: The time between heartbeats. With KIP-848, if it is not given,
                250 to 1,000 ms, longer in larger groups.
            consumer_timeout_ms: Without effect.
            max_poll_records: The most records of a read. None: each read decides.
            ssl_context: As `aiokafka_lite.helpers.create_ssl_context` returns it.
            security_protocol: "PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL".
            api_version: Deprecated, without effect.
            exclude_internal_topics: Exclude internal topics from the matches of a pattern.
            connections_max_idle_ms: The time after which an unused connection is closed. None or 0:
                never.
            isolation_level: "read_uncommitted", or "read_committed": records of transactions are
                returned after their commit.
            sasl_mechanism: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512" or "OAUTHBEARER".
            sasl_plain_password: For PLAIN and SCRAM.
            sasl_plain_username: For PLAIN and SCRAM.
            sasl_kerberos_service_name: Without effect.
            sasl_kerberos_domain_name: Without effect.
            sasl_oauth_token_provider: For OAUTHBEARER: an `AbstractTokenProvider`.
            client_rack: The rack of this client. Records are fetched from a replica in it
                (KIP-392), and the assignors range, sticky and cooperative-sticky prefer such
                partitions (KIP-881).
            allow_plaintext_credentials: Send credentials without TLS to other machines.
            max_buffered_bytes: The most bytes of records that are fetched and not returned. With
                `run`, unfinished records count too.
            max_batch_bytes: The most decompressed bytes of one batch in memory. Large batches are
                decompressed in pieces of 1 MiB. A larger record is a `DecompressionLimitError`, as
                is a batch that has no pieces: one of librdkafka's snappy, LZ4 with linked blocks,
                or message format 0 or 1.
            allow_auto_create_topics: Let brokers create missing topics.
            max_records_per_partition: The most records of one partition in a read.
            on_bad_record: The decision about records that cannot be read or deserialised: "raise",
                "skip", "raw", or a function. See `aiokafka_lite.bad_records`.
            rebalance_hold_ms: How long a rebalance waits for the application to finish the returned
                records of partitions that it revokes. 0: the next owner reads these records again.
                None: four fifths of the rebalance timeout (for handlers of `run` the group's,
                otherwise by default `session_timeout_ms`) less `heartbeat_interval_ms`.
            ack_mode: "implicit": a read finishes the records returned before it. "explicit": only
                `record.ack()` finishes a record, in any order.
            heartbeat_thread: Send heartbeats from a thread while the event loop is blocked, until
                the last read is `max_poll_interval_ms` ago. It costs a thread, and a connection
                from the first block on.
            seed: Decides all random numbers and ids of this client: jitter, the member id and SCRAM
                nonces. For simulations and tests, because a seed makes ids and nonces predictable.
                Consumers of one seed on one loop get different ids, by `client_id` and
                `group_instance_id`, and in the order of their creation. On several loops they need
                different seeds. TLS is not seeded. None: the operating system's entropy.
        """
        self._made(locals())

    @property
    @override
    def _positional(self) -> Sequence[object]:
        return self.topics

    @override
    def _check(self) -> None:
        check_max_records(self.max_poll_records, "max_poll_records")  # first, as in aiokafka
        self._check_security()
        check_max_records(self.max_records_per_partition, "max_records_per_partition")
        strategy: object = self.partition_assignment_strategy
        names = strategy if isinstance(strategy, (list, tuple)) else [strategy]
        if not isinstance(strategy, (str, list, tuple)) or not names:
            raise TypeError(
                "partition_assignment_strategy must be a list of assignor classes, not "
                f"{strategy!r}"
            )
        if any(not hasattr(name, "assign") for name in names):
            raise TypeError(
                f"partition_assignment_strategy must list assignor classes, not names: {strategy!r}"
            )
        reset_timestamp(self.auto_offset_reset)  # raises for an invalid one
        if self.group_protocol not in GROUP_PROTOCOLS:
            raise ValueError(
                f"group_protocol must be one of {', '.join(GROUP_PROTOCOLS)}, not "
                f"{self.group_protocol!r}"
            )

        if self.group_instance_id == "":
            raise ValueError("group_instance_id must be None or a non-empty string")
        if self.ack_mode not in ("implicit", "explicit"):
            raise ValueError(f'ack_mode must be "implicit" or "explicit", not {self.ack_mode!r}')

    @property
    def chance_name(self) -> str:
        return f"consumer/{self.client_id}/{self.group_instance_id or ''}"

    @property
    def joins_as(self) -> str:
        """The protocol with which a group is joined. "auto": the broker's versions decide."""
        if self.group_protocol == "auto" and self._is_given("partition_assignment_strategy"):
            return "classic"
        return self.group_protocol

    @property
    def unused_by_consumer_protocol(self) -> list[str]:
        """The given arguments that KIP-848 leaves to the broker, other than its defaults."""
        unused = []
        if self.group_session_s != CONSUMER_SESSION_S:
            unused.append("session_timeout_ms")
        if self._is_given("partition_assignment_strategy"):
            unused.append("partition_assignment_strategy")
        return unused

    @property
    def group_heartbeat_interval_s(self) -> float | None:
        """The time between heartbeats of a settled KIP-848 member. None: by group size."""
        return self.heartbeat_interval_s if self._is_given("heartbeat_interval_ms") else None

    @property
    def group_session_s(self) -> float:
        """How long a KIP-848 member returns records without a response: a guess."""
        return (
            self.session_timeout_s if self._is_given("session_timeout_ms") else CONSUMER_SESSION_S
        )

    @property
    def has_deserializers(self) -> bool:
        return self.key_deserializer is not None or self.value_deserializer is not None

    def without_callables(self) -> ConsumerConfig:
        """Return a copy for background tasks, as the callables often refer to the consumer."""
        kind: type[ConsumerConfig] = type(self)  # type: ignore[assignment]  # of bytes
        same = object.__new__(kind)
        vars(same).update(
            vars(self), key_deserializer=None, value_deserializer=None, on_bad_record="raise"
        )
        return same

    @property
    def isolation_level_code(self) -> int:
        """The level in requests. ValueError, as late as in aiokafka, if there is no such level."""
        if self.isolation_level not in ISOLATION_LEVELS:
            raise ValueError(
                f"Incorrect isolation level {self.isolation_level}: "
                f"isolation_level must be one of {', '.join(ISOLATION_LEVELS)}"
            )
        return ISOLATION_LEVELS[self.isolation_level]

    @property
    def is_read_committed(self) -> bool:
        return self.isolation_level == "read_committed"

    @property
    def reset_timestamp(self) -> int | None:
        return reset_timestamp(self.auto_offset_reset)

    @property
    def has_auto_commit_interval(self) -> bool:
        return not isinstance(self.auto_commit_interval_ms, NotGiven)

    @property
    def rebalance_timeout_s(self) -> float:
        """The most time of a rebalance here, without handlers. By default a session."""
        timeout_ms = self.rebalance_timeout_ms
        return (self.session_timeout_ms if timeout_ms is None else timeout_ms) / 1000

    @property
    def group_timeout_s(self) -> float:
        """How long the group waits for this member: by default as long as a handler may take."""
        if self.rebalance_timeout_ms is not None:
            return self.rebalance_timeout_s
        return max(self.max_poll_interval_s, self.session_timeout_s)

    @property
    def rebalance_hold_s(self) -> float:
        """How long partitions that are being revoked wait for the application.

        By default the rebalance timeout, less the time until a heartbeat of the classic protocol
        reports the rebalance, and less the time for the steps after the wait.
        """
        if self.rebalance_hold_ms is not None:
            return self.rebalance_hold_ms / 1000
        return self._hold_s(self.rebalance_timeout_s)

    @property
    def handler_hold_s(self) -> float:
        """The same for handlers of `run`."""
        if self.rebalance_hold_ms is not None:
            return self.rebalance_hold_ms / 1000
        return self.most_hold_s

    @property
    def most_hold_s(self) -> float:
        """The longest wait of a rebalance before the group would remove this member."""
        return self._hold_s(self.group_timeout_s)

    def _hold_s(self, timeout_s: float) -> float:
        return max(0.0, timeout_s * (1 - HOLD_MARGIN) - self.heartbeat_interval_s)


# --- Where to start without a usable offset ---------------------------------------------------
BY_DURATION: Final = "by_duration:"

# The lookup without a usable offset. "none" is an error instead.
_TIMESTAMPS: Final[Mapping[str, int | None]] = MappingProxyType(
    {"earliest": EARLIEST, "latest": LATEST, "none": None}
)
# Days, hours, minutes and seconds, each with an optional sign.
_DURATION: Final = (
    r"([-+])?P(?=[-+T0-9])(?:([-+]?[0-9]+)D)?"
    r"(T(?=[-+0-9])(?:([-+]?[0-9]+)H)?(?:([-+]?[0-9]+)M)?(?:([-+]?[0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?"
)


def reset_timestamp(policy: str) -> int | None:
    """Return a policy's current ListOffsets timestamp, or None for an error."""
    if policy in _TIMESTAMPS:
        return _TIMESTAMPS[policy]
    # The wall clock, because it is compared with timestamps of producers and brokers.
    return max(0, wall_ms() - _duration_ms(policy))


def _duration_ms(policy: str) -> int:
    text = policy[len(BY_DURATION) :] if policy.startswith(BY_DURATION) else ""
    match = re.fullmatch(_DURATION, text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(
            f"auto_offset_reset must be one of {', '.join(_TIMESTAMPS)} or by_duration:<ISO 8601 "
            f"duration> (such as by_duration:PT12H or by_duration:P7D), not {policy!r}"
        )
    sign, days, _, hours, minutes, seconds, fraction = match.groups()
    whole_s = int(days or 0) * 86_400 + int(hours or 0) * 3_600 + int(minutes or 0) * 60
    part_ms = int((fraction or "").ljust(3, "0")[:3])
    if (seconds or "").startswith("-"):
        part_ms = -part_ms
    duration_ms = (whole_s + int(seconds or 0)) * 1000 + part_ms
    if sign == "-":
        duration_ms = -duration_ms
    if duration_ms < 0:
        raise ValueError(
            f"the duration in auto_offset_reset must not be negative, but is {policy!r}"
        )
    return duration_ms


# --- Arguments of methods ---------------------------------------------------------------------
# The messages of aiokafka's seeks and pauses.
NAMED_TUPLES: Final = "partitions must be TopicPartition namedtuples"


# --- Subscriptions ----------------------------------------------------------------------------
def check_topics(topics: Iterable[str]) -> frozenset[str]:
    if not is_list(topics):
        raise TypeError(f"Topics should be list of strings, or a tuple or set, not {topics!r}")
    names = tuple(topics)
    for name in cast("tuple[object, ...]", names):  # whatever was given
        if isinstance(name, Iterable) and not isinstance(name, str | bytes):
            raise TypeError(
                f"a topic's name must be a string, not {name!r}: pass a list of topics as "
                "AIOKafkaConsumer(*topics)"
            )
        if not isinstance(name, str) or not name:
            raise ValueError(f"a topic's name must be a non-empty string, not {name!r}")
        check_text("a topic's name", name)
    return frozenset(names)


def check_listener(listener: ConsumerRebalanceListener | None) -> None:
    if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
        raise TypeError(
            "listener should be an instance of ConsumerRebalanceListener, "
            f"{not_a(ConsumerRebalanceListener, listener)}"
        )


def check_pattern(pattern: str) -> re.Pattern[str]:
    given: object = pattern
    if not isinstance(given, str) and not (
        isinstance(given, re.Pattern) and isinstance(given.pattern, str)
    ):
        raise TypeError(f"pattern must be a str with a regular expression, not {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is not a valid pattern: {error}. A pattern must be a regular expression"
        ) from error


# --- Partitions -------------------------------------------------------------------------------
def check_partitions(
    partitions: Iterable[TopicPartition], otherwise: str = INSTANCES
) -> tuple[TopicPartition, ...]:
    if type(partitions) is not tuple and (
        not is_list(partitions) or isinstance(partitions, TopicPartition)
    ):
        raise TypeError(f"{otherwise} in a list, not {shown(partitions)}")
    return tuple([check_partition(tp, otherwise) for tp in partitions])


# --- Offsets ----------------------------------------------------------------------------------
def check_offset(offset: object) -> int:
    if not is_offset(offset):
        raise ValueError(
            "Offset must be a positive integer: it must be from 0 to 2**63 - 1, not "
            f"{shown(offset)}"
        )
    return offset


def check_timestamps(timestamps: Mapping[TopicPartition, float]) -> dict[TopicPartition, int]:
    if not isinstance(timestamps, Mapping):
        raise TypeError(
            "timestamps must be a dict of TopicPartition to milliseconds since the epoch, "
            f"not {shown(timestamps)}"
        )
    checked = {}
    for given, timestamp in timestamps.items():
        tp = check_partition(given)
        if not is_number(timestamp) or timestamp in (math.inf, -math.inf):
            raise TypeError(
                f"The target time for partition {tp} must be a number of milliseconds since the "
                f"epoch, not {shown(timestamp)}"
            )
        checked[tp] = int(timestamp)
    for tp, timestamp in checked.items():
        if not 0 <= timestamp <= MOST_LONG:
            raise ValueError(
                f"The target time for partition {tp} is {timestamp}. "
                "The target time cannot be "
                f"{'negative' if timestamp < 0 else 'later than 2**63 - 1 ms'}."
            )
    return checked


# --- Times -------------------------------------------------------------------------------------
def seconds(timeout_ms: float, name: str = "timeout_ms") -> float:
    """Return a timeout in seconds. Infinity is no limit."""
    try:
        timeout_s = float(timeout_ms / 1000)
    except OverflowError:
        timeout_s = math.inf
    except TypeError:
        timeout_s = math.nan
    given: object = timeout_ms
    if math.isnan(timeout_s) or given is True or given is False:
        raise TypeError(f"{name} must be a number of milliseconds, not {shown(timeout_ms)}")
    return timeout_s


# --- Limits ------------------------------------------------------------------------------------
def check_handler(handler: object, argument_count: int) -> None:
    if not callable(handler) or isinstance(handler, type) or _is_generator_function(handler):
        raise TypeError(
            "handler must be an async def function that takes a record, or a plain function, which "
            f"is called in a thread, not {handler!r}"
        )
    try:
        inspect.signature(handler).bind(*range(argument_count))
    except ValueError:  # some builtins have no signature
        pass
    except TypeError as error:
        takes = "a record" if argument_count == 1 else "two arguments, a record and its outputs"
        raise TypeError(f"handler must take {takes}, but {handler!r} does not: {error}") from error


def _is_generator_function(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, call)
    )


def is_async_callable(function: object) -> bool:
    if isinstance(function, type):
        return False
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _is_hold(given: object) -> bool:
    return (is_int(given) or isinstance(given, float)) and given >= 0  # NaN is not


HOLD: Final = Kind("a number of at least 0", _is_hold, ValueError)


def check_max_records(max_records: object, name: str = "max_records") -> None:
    if max_records is None:
        return
    if not is_int(max_records) or max_records < 1:
        says = AIOKAFKAS_LIMITS.get(name, f"{name} must be a positive int")
        raise ValueError(f"{says} or None, not {max_records!r}")
