"""AIOKafkaConsumer: what applications call; the work is done by the engine's parts."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic

from aiokafka_lite._compat import KT, VT, override
from aiokafka_lite.abc import AbstractTokenProvider, ConsumerRebalanceListener
from aiokafka_lite.consumer.aiokafka_names import AiokafkaNames
from aiokafka_lite.consumer.arguments import (
    check_listener,
    check_partitions,
    check_pattern,
    check_topics,
)
from aiokafka_lite.consumer.assignors import AbstractPartitionAssignor, RoundRobinPartitionAssignor
from aiokafka_lite.consumer.config import (
    DEFAULT_CLIENT_ID,
    DEFAULT_MAX_BUFFERED_BYTES,
    ConsumerConfig,
    check_max_records,
)
from aiokafka_lite.consumer.delivery.delivering import LentDelivery, make_delivery
from aiokafka_lite.consumer.delivery.iteration import RecordIterator
from aiokafka_lite.consumer.engine import Engine
from aiokafka_lite.consumer.lent_listener import LentListener
from aiokafka_lite.consumer.lifecycle import Lifecycle
from aiokafka_lite.consumer.monitoring.methods import Monitoring
from aiokafka_lite.consumer.ownership import as_if_running, running_loop
from aiokafka_lite.consumer.position_methods import PositionMethods
from aiokafka_lite.consumer.state import SubscriptionState
from aiokafka_lite.consumer.wrapped_gets import (
    NO_RECORDS,
    goes_by_getone,
    wrap_as_aiokafkas,
    wrap_as_getmany,
)
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    IllegalStateError,
    RecordTooLargeError,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from aiokafka_lite.bad_records import OnBadRecord
    from aiokafka_lite.consumer.delivery.arrow_gets import ArrowGets
    from aiokafka_lite.consumer.delivery.fetched import Record
    from aiokafka_lite.deserializers import DeserializerOf
    from aiokafka_lite.structs import ConsumerRecord

# One for all consumers, as its state is 2.5 KiB; a forked child draws others than its parent.
_rng: Final = random.Random()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_rng.seed)


class AIOKafkaConsumer(
    RecordIterator, Lifecycle, PositionMethods, Monitoring, AiokafkaNames, Generic[KT, VT]
):
    """Reads records from Kafka on the running event loop.

    ::

        async with AIOKafkaConsumer("orders", bootstrap_servers="host:9092", group_id="g") as c:
            async for record in c:
                handle(record)

    Arguments, defaults and behaviour are those of aiokafka's consumer, except as said in the
    documentation. Delivery with auto-commit: only what was handed out before the latest get is
    committed, so a record that is still being processed is read again after a crash. That rule
    needs one task to do all the gets of a consumer; with several, commit yourself.

    Every get may be cancelled, as by a timeout: no record is lost, none is delivered twice.

    Deserialisers are callables of bytes, or instances of the classes in
    `aiokafka_lite.deserializers`. To type checkers a consumer is generic in what they make of keys
    and values, ``bytes | None`` without one; an ``AIOKafkaConsumer[object, object]`` is any.

    `on_bad_record` says what becomes of a record that one refuses, and of a batch that cannot be
    read: "raise", "skip", "raw" (`RawRecord`), or a callable, perhaps async, that is asked about
    each (`BadRecord`) before the position passes it; both are in `aiokafka_lite.bad_records`.

    Raises:
        RuntimeError: Made outside a running event loop.
        ValueError: An argument cannot be used.
        TypeError: A deserialiser, or on_bad_record, is none.
        InsecureConfigError: Credentials would leave this machine without TLS; where the network
            is safe, `allow_plaintext_credentials` allows it.
        NotImplementedError: sasl_mechanism is GSSAPI (Kerberos).
    """

    def __init__(
        self,
        *topics: str,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str = DEFAULT_CLIENT_ID,
        group_id: str | None = None,
        group_instance_id: str | None = None,
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
        auto_commit_interval_ms: int = 5_000,
        check_crcs: bool = True,
        metadata_max_age_ms: int = 300_000,
        partition_assignment_strategy: Sequence[type[AbstractPartitionAssignor]] = (
            RoundRobinPartitionAssignor,
        ),
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
        allow_auto_create_topics: bool = True,
        max_records_per_partition: int | None = None,
        on_bad_record: OnBadRecord = "raise",
    ) -> None:
        # Nothing to stop, and nothing to warn of, until the arguments have been found good.
        self._closed = True
        if loop is not None:
            _warn_deprecated(
                "The loop argument is deprecated: a consumer made inside a loop belongs to it"
            )
        if api_version is not None:
            _warn_deprecated(
                "The `api_version` parameter has been deprecated, and does nothing: versions are "
                "negotiated with each broker"
            )
        self._loop = loop or running_loop()
        self._config = ConsumerConfig(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            group_id=group_id,
            group_instance_id=group_instance_id,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_max_bytes=fetch_max_bytes,
            fetch_min_bytes=fetch_min_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            check_crcs=check_crcs,
            metadata_max_age_ms=metadata_max_age_ms,
            partition_assignment_strategy=partition_assignment_strategy,
            max_poll_interval_ms=max_poll_interval_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            consumer_timeout_ms=consumer_timeout_ms,
            max_poll_records=max_poll_records,
            ssl_context=ssl_context,
            security_protocol=security_protocol,
            exclude_internal_topics=exclude_internal_topics,
            connections_max_idle_ms=connections_max_idle_ms,
            isolation_level=isolation_level,
            sasl_mechanism=sasl_mechanism,
            sasl_plain_password=sasl_plain_password,
            sasl_plain_username=sasl_plain_username,
            sasl_kerberos_service_name=sasl_kerberos_service_name,
            sasl_kerberos_domain_name=sasl_kerberos_domain_name,
            sasl_oauth_token_provider=sasl_oauth_token_provider,
            client_rack=client_rack,
            allow_plaintext_credentials=allow_plaintext_credentials,
            max_buffered_bytes=max_buffered_bytes,
            allow_auto_create_topics=allow_auto_create_topics,
            max_records_per_partition=max_records_per_partition,
            on_bad_record=on_bad_record,
        )
        self._group_id = group_id
        self._source_traceback = traceback.extract_stack() if self._loop.get_debug() else None
        self._state = SubscriptionState()
        # Held here only, as is the listener: what goes on by itself must not keep alive what may
        # know this consumer.
        self._delivery = make_delivery(self._config, self._state.events)
        with as_if_running(self._loop):
            self._engine = Engine(
                self._config.without_callables(),
                self._state,
                LentDelivery(self._delivery, self._state.events),
                _rng,
            )
        self._ready = self._engine.ready
        self._iterate_over(self._ready.cursor)
        # What `start` finds: whether somebody has replaced `getone`, and what is around `getmany`.
        self._is_by_getone = False
        self._wrapped_poll: (
            Callable[..., Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]] | None
        ) = None
        self._arrow_gets: ArrowGets | None = None
        # Kept to the next subscription, and over one more, which may come before it has been told:
        # after `unsubscribe` it is still told.
        self._listener: ConsumerRebalanceListener | None = None
        self._former_listener: ConsumerRebalanceListener | None = None
        self._stopping = None
        if topics:
            self._state.subscribe(check_topics(topics))
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._config.client_id!r} in group {self._group_id!r}>"

    # --- Subscription and assignment ------------------------------------------------------
    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics, or to all whose names match a pattern, instead of those before.

        From this call on nothing is handed out of topics that are not subscribed any more. What was
        handed out of them is committed, with auto-commit, when the rebalance takes them away.

        Raises:
            TypeError: Neither or both are given; or the listener is not one.
            ValueError: The pattern is not a regular expression.
            IllegalStateError: Partitions were assigned by `assign`.
        """
        if not topics and not pattern:
            raise TypeError("You should provide either `topics` or `pattern`")
        if topics and pattern:
            raise TypeError("You can't provide both `topics` and `pattern`")
        check_listener(listener)
        self._engine.owner.check_now()
        lent = None if listener is None else LentListener(listener)
        if pattern:
            self._state.subscribe_pattern(check_pattern(pattern), lent)
        else:
            self._state.subscribe(check_topics(topics), lent)
        self._former_listener, self._listener = self._listener, listener

    def unsubscribe(self) -> None:
        """Give up all topics and partitions; the group is left.

        What follows is done in the background, and by a `stop()` that comes before its end. With
        auto-commit all that was handed out is committed, also what the latest get returned. Then
        the listener's `on_partitions_revoked` is called (`on_partitions_lost`, if the partitions
        are somebody else's already), and the group is told, but not of a static member. A new
        subscription waits for that, half of the rebalance timeout at most, and goes on from what
        was committed. What could not be committed is an event `CommitFailed`, and `stop()`
        returns it.
        """
        self._engine.owner.check_now()
        self._state.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Return the topics subscribed to."""
        return self._state.subscription or frozenset()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without the group sharing them out.

        Raises:
            IllegalStateError: Topics or a pattern are subscribed.
            TypeError: One is not a TopicPartition.
        """
        self._engine.owner.check_now()
        self._state.assign_from_user(check_partitions(partitions))

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions assigned at present."""
        return set(self._state.assignment)

    # --- Records --------------------------------------------------------------------------
    async def poll(
        self,
        timeout_ms: float | None = None,
        max_records: int | None = None,
        max_records_per_partition: int | None = None,
    ) -> dict[TopicPartition, list[ConsumerRecord[KT, VT]]]:
        """Return the next records, at most `max_records` in all, in order per partition.

        Args:
            timeout_ms: How long to wait for the first; None waits until there is one. The
                deadline covers the whole call; when it passes, the result is {}.
            max_records: By default `max_poll_records` of the constructor, and if that is None as
                many as the processor's caches hold, 2,000 at most: then a record costs least.
            max_records_per_partition: How many of them may be of one partition; by default as the
                constructor says, which by default sets no limit. Partitions take turns anyway.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            ValueError: A limit is not a positive int.
            KafkaError: Once a call, for an error that stands before the next record.
        """
        self._engine.owner.check()
        check_max_records(max_records)
        check_max_records(max_records_per_partition, "max_records_per_partition")
        return await (self._wrapped_poll or self._poll)(
            timeout_ms=timeout_ms,
            max_records=max_records,
            max_records_per_partition=max_records_per_partition,
        )

    async def _poll(
        self,
        timeout_ms: float | None,
        max_records: int | None,
        max_records_per_partition: int | None,
    ) -> dict[TopicPartition, list[ConsumerRecord[KT, VT]]]:
        return await self._engine.gets.some(  # type: ignore[return-value]  # deserialised
            None if timeout_ms is None else timeout_ms / 1000,
            max_records or self._config.max_poll_records,
            max_records_per_partition or self._config.max_records_per_partition,
        )

    async def getmany(
        self,
        *partitions: TopicPartition,
        timeout_ms: float = 0,
        max_records: int | None = None,
        max_records_per_partition: int | None = None,
    ) -> dict[TopicPartition, list[ConsumerRecord[KT, VT]]]:
        """Return what is there of the partitions (none named: of all), as aiokafka does.

        `max_records_per_partition` is as in `poll`. Nothing comes of partitions that a rebalance
        has taken away: the result is {} when the time is over, as without records. It is {} at
        once when the consumer is stopped, or when a rebalance or another call takes the last of
        the partitions away, while it waits.

        Raises:
            TypeError: One is not a TopicPartition.
            ConsumerStoppedError: The consumer is stopped.
            ValueError: A limit is not a positive int.
            IllegalStateError: A partition is not assigned, and no rebalance has taken it away.
            KafkaError: Once a call, for an error that stands before the next record.
        """
        self._engine.owner.check()
        wanted = check_partitions(partitions)
        self._engine.raise_if_stopped()
        check_max_records(max_records)
        check_max_records(max_records_per_partition, "max_records_per_partition")
        self._engine.raise_if_unusable()
        for tp in wanted:
            self._state.require_known(tp)
        try:
            return await self._engine.gets.many(  # type: ignore[return-value]  # deserialised
                frozenset(wanted),
                timeout_ms / 1000,
                max_records or self._config.max_poll_records,
                max_records_per_partition or self._config.max_records_per_partition,
            )
        except ConsumerStoppedError:  # meanwhile
            return {}

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[KT, VT]:
        """Return the next record of the partitions (none named: of any), waiting for it.

        Raises:
            TypeError: One is not a TopicPartition.
            ConsumerStoppedError: The consumer is stopped, or was so meanwhile.
            IllegalStateError: A partition is not assigned; those that a rebalance has taken away
                may be among them, but not alone. Or the last of them was taken away meanwhile.
                One that a rebalance gives back at its end was not.
            KafkaError: Once a call, for an error that stands before the next record.
        """
        if not partitions:
            record = self._ready.cursor.take()
            if record is not None:
                return record  # type: ignore[return-value]  # deserialised
        self._engine.owner.check()
        wanted = check_partitions(partitions)
        self._engine.raise_if_stopped()
        for tp in wanted:
            self._state.require_known(tp)
        if wanted and not any(tp in self._state.assignment for tp in wanted):
            self._state.partition(wanted[0])
        # Deserialised, if it is to be.
        return await self._engine.gets.one(frozenset(wanted))  # type: ignore[return-value]

    async def poll_arrow(
        self: AIOKafkaConsumer[bytes | None, bytes | None],
        timeout_ms: float | None = None,
        max_rows: int | None = None,
        schema: pa.Schema | None = None,
    ) -> pa.RecordBatch:
        """Return the next records as one Arrow record batch, with keys and values as bytes.

        It holds rows of one or several partitions, those of each in order, and as many as can be
        decoded in about half a millisecond: no more than `max_rows`, and of keys, values and
        headers no more than 16 MiB unless one row alone has more. Its rows count as handed out, for
        positions and commits, as `poll`'s records do; the two may be mixed. The first call
        imports pyarrow.

        Args:
            timeout_ms: How long to wait for the first row; None waits until there is one. When the
                time is up, the result has no rows.
            max_rows: By default `max_poll_records` of the constructor, and if that is None 65,536.
            schema: The columns wanted, which docs/arrow.md lists. By default all of them.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            KafkaError: Once a call, for an error that stands before the next row.
            ModuleNotFoundError: pyarrow is not installed: the extra aiokafka-lite[arrow] has it.
            IllegalStateError: The consumer has deserialisers, for which rows have no place.
            ValueError: `max_rows` is not a positive int; or the schema has columns that there are
                not, or types that are not supported.
        """
        self._engine.owner.check()
        check_max_records(max_rows, "max_rows")
        gets = self._use_arrow()
        return await gets.one(
            gets.columns(schema),
            None if timeout_ms is None else timeout_ms / 1000,
            max_rows,
        )

    def batches(
        self: AIOKafkaConsumer[bytes | None, bytes | None],
        max_rows: int | None = None,
        schema: pa.Schema | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Return an iterator of record batches as `poll_arrow` gives them, never empty ones.

        It ends when the consumer is stopped. An error is raised as by `poll_arrow`; iterating may
        go on after it, with the same iterator or another.

        Raises:
            ConsumerStoppedError: The consumer is stopped already.
            KafkaError, ModuleNotFoundError, ValueError: As `poll_arrow`.
        """
        self._engine.owner.check_now()
        check_max_records(max_rows, "max_rows")
        self._engine.raise_if_stopped()
        return self._use_arrow().batches(schema, max_rows, self)

    def _use_arrow(self) -> ArrowGets:
        if self._arrow_gets is None:
            if self._config.has_deserializers:
                raise IllegalStateError(
                    "rows hold keys and values as bytes: make a consumer without key_deserializer "
                    "and value_deserializer, and decode columns instead"
                )
            # Imports pyarrow, which most consumers have no use for.
            from aiokafka_lite.consumer.delivery.arrow_gets import ArrowGets

            self._arrow_gets = ArrowGets(
                self._state, self._engine.queue, self._ready, self._config.max_poll_records
            )
        return self._arrow_gets

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[KT, VT]]:
        self._engine.owner.check()
        self._engine.raise_if_stopped()
        self._choose_way()
        return self

    def _choose_way(self) -> None:
        """Look which way records come to who iterates."""
        self._is_by_getone = goes_by_getone(self, _ORIGINAL)
        self._iterate_over(NO_RECORDS if self._is_by_getone else self._ready.cursor)

    @override
    def _prepare_gets(self) -> None:
        wrap_as_aiokafkas(self, AIOKafkaConsumer, _ORIGINAL)
        self._wrapped_poll = wrap_as_getmany(self._poll, AIOKafkaConsumer, _ORIGINAL)
        self._choose_way()

    if TYPE_CHECKING:  # RecordIterator's, which takes what is ready without a frame

        async def __anext__(  # type: ignore[override]  # deserialised
            self,
        ) -> ConsumerRecord[KT, VT]: ...

    async def _next_record(self) -> Record:
        """Wait for the next record, or for the end of the iteration.

        Raises:
            StopAsyncIteration: The consumer is stopped.
            KafkaError: As `getone`, but records that are too large are skipped, as in aiokafka,
                unless on_bad_record is a callable, which decides.
        """
        self._engine.owner.check()
        while True:
            try:
                if self._is_by_getone:
                    return await self.getone()  # type: ignore[return-value]  # deserialised
                return await self._engine.gets.one(())
            except ConsumerStoppedError:
                raise StopAsyncIteration from None
            except RecordTooLargeError as error:
                self._skip_too_large(error)

    def _skip_too_large(self, error: RecordTooLargeError) -> None:
        """Go on behind a record that is too large; raise it where that is not known, or asked."""
        bad = self._delivery.bad
        if error.tp is None or error.next_offset is None or bad.handler is not None:
            raise error
        bad.skipped(error)
        self.seek(error.tp, error.next_offset)


_ORIGINAL: Final[Mapping[str, object]] = MappingProxyType(
    {
        "getone": AIOKafkaConsumer.getone,
        "getmany": AIOKafkaConsumer.getmany,
        "__anext__": AIOKafkaConsumer.__anext__,
    }
)


def _warn_deprecated(message: str) -> None:
    warnings.warn(message, DeprecationWarning, stacklevel=3)
