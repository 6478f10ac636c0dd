"""AIOKafkaConsumer: what applications call; the work is done by the engine's parts."""

from __future__ import annotations

import asyncio
import random
import ssl
import traceback
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from aiokafka_lite.abc import AbstractTokenProvider, ConsumerRebalanceListener
from aiokafka_lite.consumer.aiokafka_names import AiokafkaNames, OneByOne, goes_by_getone
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
from aiokafka_lite.consumer.delivery.fetched import Record
from aiokafka_lite.consumer.delivery.iteration import RecordIterator
from aiokafka_lite.consumer.engine import Engine
from aiokafka_lite.consumer.lifecycle import Lifecycle
from aiokafka_lite.consumer.monitoring.methods import Monitoring
from aiokafka_lite.consumer.position_methods import PositionMethods
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
    from aiokafka_lite.consumer.delivery.deserialising import AnyDeserializer


class AIOKafkaConsumer(RecordIterator, Lifecycle, PositionMethods, Monitoring, AiokafkaNames):
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
    `aiokafka_lite.deserializers`. `on_bad_record` says what becomes of a record that one refuses,
    and of a batch that cannot be read: "raise", "skip", "raw" (`RawRecord`), or a callable, perhaps
    async, that is asked about each (`BadRecord`) before the position passes it; both are in
    `aiokafka_lite.bad_records`.

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
        key_deserializer: AnyDeserializer | None = None,
        value_deserializer: AnyDeserializer | None = None,
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
            _warn_deprecated("loop", "the consumer belongs to the running loop")
        if api_version is not None:
            _warn_deprecated("api_version", "versions are negotiated with each broker")
        self._loop = asyncio.get_running_loop()
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
        self._engine = Engine(self._config, random.Random())
        self._state = self._engine.state
        self._ready = self._engine.ready
        self._iterate_over(self._ready.cursor)
        self._arrow_gets: ArrowGets | None = None
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

        Raises:
            TypeError: Neither or both are given; or the listener is not one.
            ValueError: The pattern is not a regular expression.
            IllegalStateError: Partitions were assigned by `assign`.
        """
        names = check_topics(topics)
        if bool(names) == bool(pattern):
            raise TypeError("subscribe takes either topics or a pattern")
        self._engine.owner.check_now()
        check_listener(listener)
        if pattern:
            self._state.subscribe_pattern(check_pattern(pattern), listener)
        else:
            self._state.subscribe(names, listener)

    def unsubscribe(self) -> None:
        """Give up all topics and partitions; the group is left."""
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
    ) -> dict[TopicPartition, list[Record]]:
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
        return await self._engine.gets.some(
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
    ) -> dict[TopicPartition, list[Record]]:
        """Return what is there of the partitions (none named: of all), as aiokafka does.

        `max_records_per_partition` is as in `poll`.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            ValueError: A limit is not a positive int.
            IllegalStateError: A partition is not assigned.
            KafkaError: Once a call, for an error that stands before the next record.
        """
        self._engine.owner.check()
        check_max_records(max_records)
        check_max_records(max_records_per_partition, "max_records_per_partition")
        self._engine.raise_if_unusable()
        return await self._engine.gets.many(
            self._check_assigned(partitions),
            timeout_ms / 1000,
            max_records or self._config.max_poll_records,
            max_records_per_partition or self._config.max_records_per_partition,
        )

    async def getone(self, *partitions: TopicPartition) -> Record:
        """Return the next record of the partitions (none named: of any), waiting for it.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: A partition is not assigned.
            KafkaError: Once a call, for an error that stands before the next record.
        """
        if not partitions:
            record = self._ready.cursor.take()
            if record is not None:
                return record
        self._engine.owner.check()
        return await self._engine.gets.one(self._check_assigned(partitions))

    async def poll_arrow(
        self,
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
        self, max_rows: int | None = None, schema: pa.Schema | None = None
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
        if self._engine.is_stopped:
            raise ConsumerStoppedError("the consumer is stopped")
        return self._use_arrow().batches(schema, max_rows)

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

    def __aiter__(self) -> AsyncIterator[Record]:
        self._engine.owner.check()
        if self._engine.is_stopped:
            raise ConsumerStoppedError("the consumer is stopped")
        return OneByOne(self, self._skip_too_large) if goes_by_getone(self, _ORIGINAL) else self

    # __anext__, which takes what is ready without a frame, is RecordIterator's.
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
                return await self._engine.gets.one(())
            except ConsumerStoppedError:
                raise StopAsyncIteration from None
            except RecordTooLargeError as error:
                self._skip_too_large(error)

    def _skip_too_large(self, error: RecordTooLargeError) -> None:
        """Go on behind a record that is too large; raise it where that is not known, or asked."""
        bad = self._engine.queue.delivery.bad
        if error.tp is None or error.next_offset is None or bad.handler is not None:
            raise error
        bad.skipped(error)
        self.seek(error.tp, error.next_offset)

    def _check_assigned(self, partitions: tuple[TopicPartition, ...]) -> frozenset[TopicPartition]:
        for tp in check_partitions(partitions):
            self._state.partition(tp)
        return frozenset(partitions)


_ORIGINAL: Final[Mapping[str, object]] = MappingProxyType(
    {"getone": AIOKafkaConsumer.getone, "__anext__": AIOKafkaConsumer.__anext__}
)


def _warn_deprecated(argument: str, reason: str) -> None:
    warnings.warn(
        f"the argument {argument} is deprecated and does nothing: {reason}",
        DeprecationWarning,
        stacklevel=3,
    )
