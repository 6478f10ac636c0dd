"""AIOKafkaConsumer: the public calls; the parts of the engine implement them."""

from __future__ import annotations

import asyncio
import traceback
from asyncio import _get_running_loop
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from functools import cached_property
from importlib import import_module
from types import MappingProxyType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    overload,
)

from aiokafka_lite._arguments import FLAG, NUMBER
from aiokafka_lite._compat import KT, VT, override, timeout_at
from aiokafka_lite._settings import takes_arguments_of
from aiokafka_lite._tasks import sleep_before
from aiokafka_lite._virtual import chance_for, wall_ms
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.client.aiokafka_names import (
    MethodT,
    class_of_aiokafka,
    wrap_as_aiokafkas,
    wrapped_alike,
)
from aiokafka_lite.client.arguments import check_partition, check_text
from aiokafka_lite.client.life import StartableClient
from aiokafka_lite.client.offsets import EARLIEST, LATEST
from aiokafka_lite.consumer.aiokafka_names import CoordinatorNames, SubscriptionNames
from aiokafka_lite.consumer.assignment.assignment import SubscriptionMode
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.buffer.decode import lend_delivery, make_delivery
from aiokafka_lite.consumer.caller import as_if_running, lend, running_loop
from aiokafka_lite.consumer.config import (
    DEFAULT_MAX_UNCOMMITTED,
    HOLD,
    NAMED_TUPLES,
    ConsumerConfig,
    check_listener,
    check_max_records,
    check_offset,
    check_partitions,
    check_pattern,
    check_timestamps,
    check_topics,
    seconds,
)
from aiokafka_lite.consumer.delivery.gets import RecordIterator
from aiokafka_lite.consumer.delivery.record_cursor import RecordCursor
from aiokafka_lite.consumer.events import DEFAULT_BUFFERED_EVENTS, Events
from aiokafka_lite.consumer.life import Engine
from aiokafka_lite.consumer.monitoring.loop_probe import LoopProbe
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    RecordTooLargeError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)

if TYPE_CHECKING:
    from dataclasses import Field
    from datetime import datetime

    import pyarrow as pa
    from typing_extensions import Unpack

    from aiokafka_lite.client.aiokafka_names import ClientNames
    from aiokafka_lite.consumer.buffer.chunk import Record
    from aiokafka_lite.consumer.commits.transactional import DeliveryToCommit
    from aiokafka_lite.consumer.delivery.arrow_gets import ArrowGets
    from aiokafka_lite.consumer.delivery.batch import BatchScope, Block
    from aiokafka_lite.consumer.monitoring.health import Health
    from aiokafka_lite.consumer.positions.leader_requests import FoundOffset
    from aiokafka_lite.consumer.processing.bounds import RunSummary
    from aiokafka_lite.consumer.processing.delays import Delays
    from aiokafka_lite.consumer.processing.handlers import (
        ByTopic,
        Handlers,
        Middleware,
        Router,
    )
    from aiokafka_lite.consumer.processing.handling import (
        ByError,
        CircuitBreaker,
        DeadLetter,
        Handling,
        Retry,
    )
    from aiokafka_lite.consumer.processing.lanes import Order
    from aiokafka_lite.consumer.processing.limits import Concurrency
    from aiokafka_lite.consumer.processing.lists import BatchBy
    from aiokafka_lite.consumer.processing.outbox import GivenProducer, Outbox, Outputs
    from aiokafka_lite.consumer.processing.run import Run
    from aiokafka_lite.events import EventSubscription
    from aiokafka_lite.producing.producer import AIOKafkaProducer
    from aiokafka_lite.structs import ConsumerRecord

    class DataclassLike(Protocol):
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    class PydanticLike(Protocol):
        __pydantic_complete__: ClassVar[bool]

    class StructLike(Protocol):
        __struct_fields__: ClassVar[tuple[str, ...]]

    # What a handler may take in place of its record.
    Value = TypeVar("Value", bound=DataclassLike | PydanticLike | StructLike | None)

    class RunOptions(TypedDict, total=False):
        """The arguments of `run` that do not determine its handler's."""

        concurrency: int | Concurrency
        max_per_second: float | None
        middleware: Sequence[Middleware]
        fair: bool
        priority: Mapping[str, float] | None
        order: Order
        batch_wait_ms: float
        batch_by: BatchBy
        retry: Retry | int | None
        dead_letter: DeadLetter | str | ByError | None
        breaker: CircuitBreaker | Literal["default"] | None
        max_uncommitted: int
        timeout_s: float | None
        stop_on: Iterable[int] | Literal["default"]
        progress: bool


# A coroutine, or the result of a plain function.
Handled: TypeAlias = object
CommitOffsets = Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata]
Take: TypeAlias = "Callable[..., Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]]"
DEFAULT_STOP_TIMEOUT_S: Final = 10.0
# The concurrent handler calls of `run`.
DEFAULT_CONCURRENCY: Final = 100

# Iterated over where each record comes by `getone`: it never has one itself.
NO_RECORDS: Final = RecordCursor(lambda: 0.0, 0.0, 0.0)


class AIOKafkaConsumer(RecordIterator, StartableClient, Generic[KT, VT]):
    """Reads records from Kafka on the running event loop.

    ::

        async with AIOKafkaConsumer("orders", bootstrap_servers="host:9092", group_id="g") as c:
            async for record in c:
                handle(record)

    Arguments, defaults and behaviour are aiokafka's, with the documented exceptions. Auto-commit
    commits the records returned before the latest read, so a crash repeats the records being
    processed. If several tasks read, the next read of a task finishes its own records. Cancelling a
    read loses no record and delivers none twice.

    For type checkers a consumer is generic in the types of keys and values, by default ``bytes |
    None``. ``AIOKafkaConsumer[object, object]`` is any consumer.

    All methods raise TypeError or ValueError for an invalid argument, WrongLoopError on another
    loop or thread, and ForkedError in a forked child. Reads and requests raise IllegalStateError
    before `start`. From `stop` on these, `seek`, `pause`, `resume` and incremental assignments
    raise ConsumerStoppedError, as do calls that `stop` interrupts.

    Raises:
        RuntimeError: No event loop is running.
        InsecureConfigError: Credentials would be sent to another machine without TLS, which
            `allow_plaintext_credentials` permits in a safe network. Or security_protocol does not
            use the given ssl_context.
        NotImplementedError: sasl_mechanism is GSSAPI (Kerberos).
    """

    @takes_arguments_of(ConsumerConfig)
    def __init__(self, config: ConsumerConfig[KT, VT]) -> None:
        self._configure(config)

    def _configure(self, config: ConsumerConfig[KT, VT]) -> None:
        topics = check_topics(config.topics)
        self._loop = config.loop or running_loop()
        self._config = config
        self._group_id = config.group_id
        self._chance = chance_for(config.seed, config.chance_name, self._loop)
        self._source_traceback = traceback.extract_stack() if self._loop.get_debug() else None
        self._events = Events()
        # The callables and the listener often refer to this consumer, so only it holds them:
        # background tasks must not keep it alive.
        self._delivery = make_delivery(self._config, self._events)
        with as_if_running(self._loop):
            self._engine = Engine(
                self._config.without_callables(),
                self._events,
                lend_delivery(self._delivery, self._events),
                LoopProbe,
                self._chance,
            )
        core = self._engine.core
        self._state, self._reads, self._gate = core.state, core.reads, core.gate
        self._ready, self._gets = self._engine.ready, self._engine.gets
        self._choose_way()
        # Set by `start`: the wrappers of `getmany`.
        self._wrapped_poll: Take[KT, VT] | None = None
        self._wrapped_take: Take[KT, VT] | None = None
        self._arrow_gets: ArrowGets | None = None
        # Set under aiokafka's name `_closed`, to suppress the warning of `__del__`.
        self._is_written_off = False
        # Held until the second subscription after this one: the next one may precede the calls that
        # `unsubscribe` causes.
        self._listener: ConsumerRebalanceListener | None = None
        self._former_listener: ConsumerRebalanceListener | None = None
        if topics:
            self._state.subscribe(topics)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self._config.client_id!r} in group {self._group_id!r}, "
            f"{self._engine.stage.value}>"
        )

    # --- Start and stop -------------------------------------------------------------------
    async def start(self) -> None:
        """Connect, and wait for the topics and, in a group, for the first assignment.

        A failure or a cancellation leaves no connection, and `start` may be called again.

        Raises:
            KafkaConnectionError: No bootstrap server could be reached.
            UnknownTopicOrPartitionError: A topic did not appear within request_timeout_ms.
            TopicAuthorizationFailedError, InvalidTopicError: A topic may not be read, or its name
                is not allowed.
            GroupAuthorizationFailedError: The principal may not join the group.
            UnsupportedVersionError, GroupIdNotFound: group_protocol is "consumer", and the broker
                does not support it, or not for this group.
            InconsistentGroupProtocolError: The members of a classic group have no assignor in
                common.
            UnreleasedInstanceIdError: With KIP-848, another member has kept group_instance_id for
                longer than a session.
            ValueError: isolation_level is unknown.
            AssertionError: The consumer was started before.
        """
        self._engine.owner.check()
        self._prepare_gets()
        await self._engine.start()

    async def stop(
        self, timeout: float = DEFAULT_STOP_TIMEOUT_S, *, leave: bool | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit all returned records (with auto-commit), leave the group and disconnect.

        First it waits for handlers of `run`, open blocks of `batch`, transactions that commit
        records, and with ack_mode="explicit" for acknowledgements: four fifths of `timeout` at
        most, and, except for handlers, no longer than a rebalance would.

        Returns within `timeout` seconds, even if brokers do not respond. Waiting reads raise
        ConsumerStoppedError, `getmany` returns {}, and iterations end. A second call waits for the
        first, within its own timeout, and returns the same. In a rebalance listener that the first
        call waits for, it does not wait.

        A cancellation leaves no task and no socket. Incomplete commits are lost, and the group
        removes the member when its session expires. A second call returns the uncommitted offsets.

        Args:
            timeout: Seconds.
            leave: Whether the group reassigns the partitions at once, or after a session
                (KIP-1092). True: LeaveGroup, with the instance id of a static member, or with
                KIP-848 a last heartbeat of epoch -1. False: no request, except for a static KIP-848
                member a last heartbeat of epoch -2. None: True for a dynamic, False for a static
                member. A dynamic member that stays avoids one of two rebalances if its successor
                starts soon. But in the classic protocol, a rebalance before its session expires
                waits for it.

        Returns:
            The offsets that could not be committed.

        Raises:
            TypeError: An argument is invalid. The consumer is not stopped.
        """
        NUMBER.check("timeout", timeout)
        FLAG.check("leave", leave, or_none=True)
        return await self._stop(timeout, is_clean=True, leave=leave)

    async def _stop(
        self, timeout_s: float, *, is_clean: bool, leave: bool | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._engine.owner.check()
        return dict(await self._engine.stop_as(timeout_s, is_clean=is_clean, leaves=leave))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Stop. After an exception, the records of the latest read are not committed."""
        if isinstance(exc, Exception) and not self._engine.is_over:
            from aiokafka_lite.consumer.monitoring.diagnosis import last_words

            self._engine.left_by = last_words(self._reads, exc)
        await self._stop(DEFAULT_STOP_TIMEOUT_S, is_clean=exc_type is None)

    def __del__(self) -> None:
        # No parts run if an argument was invalid or the start has failed, as in an `async with`.
        # In a forked child they belong to the parent.
        if getattr(self, "_closed", True) or self._engine.owner.is_forked:
            return
        if not self._engine.has_failed_to_start:
            self._engine.forgotten(self, self._source_traceback)

    # --- Subscription and assignment ------------------------------------------------------
    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics, or to all whose names match a pattern, replacing a subscription.

        Records of other topics are not returned after this call. With auto-commit, those returned
        before are committed when the rebalance revokes their partitions.

        Raises:
            TypeError: Neither or both of topics and pattern are given.
            IllegalStateError: Partitions were assigned by `assign`.
        """
        if not topics and not pattern:
            raise TypeError("You should provide either `topics` or `pattern`")
        if topics and pattern:
            raise TypeError("You can't provide both `topics` and `pattern`")
        check_listener(listener)
        self._engine.owner.check_now()
        lent = None if listener is None else lend(listener, _NoListener())
        if pattern:
            self._state.subscribe_pattern(check_pattern(pattern), lent)
        else:
            self._state.subscribe(check_topics(topics), lent)
        self._former_listener, self._listener = self._listener, listener

    def unsubscribe(self) -> None:
        """Drop all topics and partitions, and leave the group in the background.

        With auto-commit all returned records are committed, including those of the latest read.
        Then the listener's `on_partitions_revoked` is called, or `on_partitions_lost` if other
        members already have the partitions. Finally the member leaves the group, unless it is
        static. `stop()` completes these steps, and a new subscription waits for them, for half of
        the rebalance timeout at most, and starts at the committed offsets. Offsets that could not
        be committed are in an event `CommitFailed` and in the result of `stop()`.
        """
        self._engine.owner.check_now()
        self._state.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics."""
        return self._state.subscription or frozenset()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's assignment.

        Raises:
            IllegalStateError: Topics or a pattern are subscribed.
        """
        self._engine.owner.check_now()
        self._state.assign_from_user(check_partitions(partitions))

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions to those of `assign`, which keep their positions and buffered records.

        Raises as `assign`.
        """
        self._check_change()
        self._state.add_from_user(check_partitions(partitions))

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions and drop their buffered records.

        With auto-commit, their records returned before the latest read are committed at once. To
        commit those of the latest read, call `commit` first.

        Raises:
            IllegalStateError: A partition is not assigned, in which case no partition is removed.
                Or the partitions belong to a subscription.
        """
        self._check_change()
        self._state.remove_from_user(check_partitions(partitions))

    def assignment(self) -> set[TopicPartition]:
        """Return the currently assigned partitions."""
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
            timeout_ms: The limit of the whole call, which then returns {}. None: no limit.
            max_records: By default `max_poll_records` of the constructor. If that is None, as many
                as fit into the processor's caches, at most 2,000.
            max_records_per_partition: By default the constructor's value. Partitions take turns in
                any case.

        Raises:
            KafkaError: An error precedes the next record, such as a bad record. A call raises one.
        """
        if _get_running_loop() is not self._loop:
            raise self._engine.owner.refusal()
        if max_records is not None:
            check_max_records(max_records)
        if max_records_per_partition is not None:
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
        return await self._gets.some(  # type: ignore[return-value]  # deserialised
            None if timeout_ms is None else seconds(timeout_ms),
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
        """Return the available records of the partitions (default: all), as aiokafka does.

        Without a limit it returns up to 2,000 records of each partition, fewer if they are large. A
        waiting call returns {} at once when the consumer is stopped, or when the last of its
        partitions is removed.

        Raises:
            IllegalStateError: A partition is neither assigned nor revoked by a rebalance. After
                `subscribe` the call waits for the assignment first.
            KafkaError: As `poll`.
        """
        # Each check here costs time in every read, so they are few.
        if _get_running_loop() is not self._loop:
            raise self._engine.owner.refusal()
        wanted = check_partitions(partitions) if partitions else ()
        gate = self._gate
        if gate.is_troubled:
            self._engine.raise_if_over()
        if max_records is not None:
            check_max_records(max_records)
        if max_records_per_partition is not None:
            check_max_records(max_records_per_partition, "max_records_per_partition")
        if gate.is_troubled:
            gate.check()
        timeout_s = seconds(timeout_ms)
        try:
            if wanted and self._may_come(wanted):
                deadline = self._loop.time() + timeout_s
                try:
                    async with timeout_at(deadline):
                        await self._until_assigned()
                except asyncio.TimeoutError:
                    return {}
                timeout_s = max(0.0, deadline - self._loop.time())
            for tp in wanted:
                self._state.require_known(tp)
            return await self._gets.many(  # type: ignore[return-value]  # deserialised
                frozenset(wanted) if wanted else (),
                timeout_s,
                max_records or self._config.max_poll_records,
                max_records_per_partition or self._config.max_records_per_partition,
            )
        except ConsumerStoppedError:  # during the call
            return {}

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[KT, VT]:
        """Wait for the next record of the partitions (default: all), and return it.

        Raises:
            IllegalStateError: A partition is not assigned and not in a rebalance, or all are
                revoked, or the last was removed during the call. After `subscribe` the call waits
                for the assignment first.
            KafkaError: As `poll`.
        """
        if not partitions:
            # Only the task that opened the chunk: a read of another one would finish its records.
            record = self._ready.cursor.take_own()
            if record is not None:
                return record  # type: ignore[return-value]  # deserialised
        if _get_running_loop() is not self._loop:
            raise self._engine.owner.refusal()
        wanted = check_partitions(partitions) if partitions else ()
        if self._gate.is_troubled:
            self._engine.raise_if_over()
        if wanted and self._may_come(wanted):
            await self._until_assigned()
        for tp in wanted:
            self._state.require_known(tp)
        # The record is deserialised.
        return await self._gets.one(frozenset(wanted))  # type: ignore[return-value]

    def _may_come(self, wanted: tuple[TopicPartition, ...]) -> bool:
        """Whether the subscription may still assign these partitions. False in a listener."""
        parts, state = self._engine.current, self._state
        if parts is None or state.has_any(wanted) or not state.subscribes_any(wanted):
            return False
        return not (parts.membership.is_settled or parts.membership.is_called_by_listener())

    async def _until_assigned(self) -> None:
        self._reads.enter_get()
        try:
            await self._engine.running.wait_assigned()
        finally:
            self._reads.leave_get(self._loop.time())

    def batch(
        self,
        max_records: int | None = None,
        max_hold_ms: float | None = None,
        *,
        timeout_ms: float | None = None,
        max_records_per_partition: int | None = None,
    ) -> BatchScope[KT, VT]:
        """Return an `async with` block of records, which a rebalance waits for.

        ::

            async with consumer.batch(max_records=500, max_hold_ms=20_000) as batch:
                for record in batch:
                    await handle(record)
                await batch.commit()

        Entering the block waits for records, as `poll` does. Leaving it finishes them: auto-commit
        may commit them, and a rebalance may revoke their partitions. A rebalance that needs them
        earlier sets `batch.revoking`, an awaitable, and waits for the block, for `max_hold_ms` at
        most. Until then it cannot make a commit in the block fail. After that, `batch.commit`
        raises BatchRevokedError, and other members read the records again.

        A block that raises or is cancelled finishes only the records that it has committed. The
        next read of any task returns the others again, unless the block has sought. `stop` waits
        for the block, unless the block's own task calls it, and commits no records of a block that
        is open after that.

        No other read returns records of the block's partitions. With ack_mode="explicit" other
        reads do, and records may be acknowledged and rejected singly. Leaving the block, or
        `batch.commit`, acknowledges the others, and an exception rejects them.

        Args:
            max_records: As `poll`.
            max_hold_ms: How long a rebalance waits for the block. None: `rebalance_hold_ms`. At
                most four fifths of the rebalance timeout, less a heartbeat interval.
            timeout_ms: As `poll`. After that, the batch is empty.
            max_records_per_partition: As `poll`.
        """
        # Imported here: most consumers have no use for it.
        from aiokafka_lite.consumer.delivery.batch import BatchScope, OpenBatch

        self._engine.owner.check()
        check_max_records(max_records)
        check_max_records(max_records_per_partition, "max_records_per_partition")
        HOLD.check("max_hold_ms", max_hold_ms, or_none=True)

        if timeout_ms is not None:
            seconds(timeout_ms)
        hold_s = None if max_hold_ms is None else seconds(max_hold_ms, "max_hold_ms")
        block: Block
        if self._config.ack_mode == "explicit":
            from aiokafka_lite.consumer.processing.acks import AckedBatch

            block = AckedBatch(self._engine.core.works, hold_s)
        else:
            block = OpenBatch(self._engine.core.works, hold_s)

        def take() -> Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]:
            return (self._wrapped_take or self._take_batch)(
                block=block,
                timeout_ms=timeout_ms,
                max_records=max_records,
                max_records_per_partition=max_records_per_partition,
            )

        return BatchScope(block, take, self.commit, self._engine.deliver)

    async def _take_batch(
        self,
        *,
        block: Block,
        timeout_ms: float | None,
        max_records: int | None,
        max_records_per_partition: int | None,
    ) -> dict[TopicPartition, list[ConsumerRecord[KT, VT]]]:
        found = await self._poll(timeout_ms, max_records, max_records_per_partition)
        block.open(found)  # before another task runs
        return found

    @overload
    async def run(
        self,
        handler: Callable[[ConsumerRecord[KT, VT]], Handled]
        | Callable[[Value], Handled]
        | Callable[[Value, ConsumerRecord[KT, VT]], Handled],
        *,
        batch_size: None = ...,
        transactions: None = ...,
        **options: Unpack[RunOptions],
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Callable[[list[ConsumerRecord[KT, VT]]], Handled]
        | Callable[[list[Value]], Handled]
        | Callable[[list[Value], list[ConsumerRecord[KT, VT]]], Handled],
        *,
        batch_size: int,
        transactions: None = ...,
        **options: Unpack[RunOptions],
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Callable[[ConsumerRecord[KT, VT], Outputs], Handled]
        | Callable[[Value, Outputs], Handled]
        | Callable[[Value, ConsumerRecord[KT, VT], Outputs], Handled],
        *,
        batch_size: None = ...,
        transactions: AIOKafkaProducer[Any, Any],
        **options: Unpack[RunOptions],
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Callable[[list[ConsumerRecord[KT, VT]], Outputs], Handled]
        | Callable[[list[Value], Outputs], Handled]
        | Callable[[list[Value], list[ConsumerRecord[KT, VT]], Outputs], Handled],
        *,
        batch_size: int,
        transactions: AIOKafkaProducer[Any, Any],
        **options: Unpack[RunOptions],
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Router | ByTopic,
        *,
        batch_size: int | None = ...,
        transactions: AIOKafkaProducer[Any, Any] | None = ...,
        **options: Unpack[RunOptions],
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Callable[..., Handled] | Router | ByTopic,
        *,
        until: Literal["end"] | datetime | int,
        batch_size: int | None = ...,
        transactions: AIOKafkaProducer[Any, Any] | None = ...,
        **options: Unpack[RunOptions],
    ) -> RunSummary: ...
    async def run(
        self,
        handler: Callable[..., Handled] | Router | ByTopic,
        *,
        concurrency: int | Concurrency = DEFAULT_CONCURRENCY,
        max_per_second: float | None = None,
        middleware: Sequence[Middleware] = (),
        fair: bool = False,
        priority: Mapping[str, float] | None = None,
        order: Order = "key",
        batch_size: int | None = None,
        batch_wait_ms: float = 0,
        batch_by: BatchBy = None,
        retry: Retry | int | None = None,
        dead_letter: DeadLetter | str | ByError | None = None,
        breaker: CircuitBreaker | Literal["default"] | None = "default",
        max_uncommitted: int = DEFAULT_MAX_UNCOMMITTED,
        timeout_s: float | None = None,
        transactions: AIOKafkaProducer[Any, Any] | None = None,
        stop_on: Iterable[int] | Literal["default"] = "default",
        until: Literal["end"] | datetime | int | None = None,
        progress: bool = False,
    ) -> RunSummary | None:
        """Call a handler for every record, many concurrently, until the consumer is stopped.

        ::

            async def handle(record: ConsumerRecord) -> None:
                await database.store(record.value)

            async with AIOKafkaConsumer("orders", group_id="billing") as consumer:
                await consumer.run(handle, concurrency=500)

        A record is finished when its handler returns. Auto-commit commits the first unfinished
        offset, with the finished ranges after it in the commit's metadata, and the partition's next
        owner skips those. So a crash repeats only the records that handlers were processing.

        The records of one key in a partition are processed one after the other, even across
        rebalances. A rebalance waits for the running handlers of the partitions that it revokes,
        for `rebalance_hold_ms` at most (by default four minutes), and `stop` for four fifths of its
        timeout. After that, and at once if `run` is cancelled, handlers are cancelled. A cancelled
        handler does not finish its record.

        While it is active, other reads raise IllegalStateError, and `max_poll_interval_ms` does not
        apply.

        Args:
            handler: A function of a record, or with `batch_size` of a list of records. An async def
                function runs on the event loop. A plain function runs in one of `concurrency`
                threads, with a copy of the context variables. A thread cannot be cancelled: its
                record is not finished before it ends. If it outlasts a rebalance or `run`, the
                record's next owner processes the record while the thread continues.
                If its first argument is annotated with a model of pydantic or msgspec, or with a
                dataclass, it takes the value as this type, and the record second if it has another
                argument. The value is JSON, or what a deserialiser returns. A tombstone needs
                ``Order | None``. With `batch_size` it is ``list[Order]``.
                Several handlers, by topic: a dict of names or patterns, or a `Router`. A list then
                has records of one handler. If nothing is subscribed or assigned, `run` subscribes
                to the topics, which must be names.
            concurrency: The most concurrent calls of the handler. With a `Concurrency` object, it
                may be changed while `run` is active.
            max_per_second: The most calls of the handler a second, including retries. After a time
                with fewer calls, up to a tenth of it begin at once. None: no limit.
            middleware: Async functions around each call of the handler, also around each retry, the
                outermost first: ``async def around(record, call_next): await call_next(record)``.
                With `batch_size` they take the list. Their errors are the handler's. If one returns
                without an error, the record is finished, even if the handler was not called.
            fair: Whether keys (lanes of `order`) that wait get equal handler time, instead of equal
                numbers of calls, and retries at most 30 % of the calls while first attempts wait.
            priority: By topic, its share of the handler time while records of several topics wait.
                Topics that are missing have 1: with {"orders": 10}, "orders" gets ten times as much
                as another topic. None: topics are not distinguished.
            order: "key": the records of one key in a partition are in order, records without a key
                in none. "partition": all records of a partition. None: no order. A function of a
                record: the records of a partition for which it returns the same hashable value, or
                for None no order. It is called once per record, as the record is read. If it
                raises, the record is a bad one, which is written to the dead letters at once.
            batch_size: The most records of a list, of any partitions. If a list fails, its
                halves are called, and theirs, until the bad records are alone. Only a call for a
                record alone is an attempt of it.
            batch_wait_ms: How long a list waits for more records until it has `batch_size`. A list
                that waits takes no handler and delays no rebalance. 0: a list has the records that
                are ready.
            batch_by: "key": a list has the records of one key in a partition, or records of it
                without a key. "partition": of one partition. None: of any.
            retry: Which errors are retried, how often and when. A number: that many attempts in
                all. None: one attempt.
            dead_letter: Receives the records that have no attempts left: `DeadLetters(topic)`, the
                name of a topic for that, `DROP`, or an async function of a `DeadRecord`. It
                finishes a record by returning. If it raises, it is called again after a pause. A
                mapping from classes of errors to these decides by the error: the most specific of
                its classes counts. None, or no class of the error: `run` raises the error.
            breaker: When to pause because handlers fail one after the other, so that an outage of a
                database causes no dead letters. None: never.
            max_uncommitted: The most records that are returned and not committed. At this limit, or
                when they take half of `max_buffered_bytes`, each partition may still use its share.
            timeout_s: The longest time of one call of the handler, in seconds. A call that takes
                longer is cancelled, and fails with TimeoutError, even if it returns after that. A
                call that does not end keeps its records, and is cancelled again after each further
                `timeout_s`. None: no limit.
            transactions: A started producer with a transactional_id, for exactly-once processing.
                The handler then has a second argument, `outputs`. The records of
                `outputs.send(topic, value, key=key)` are written in one transaction with the
                offsets of the call's records, which the commit finishes. Do not use the producer
                elsewhere until `run` returns.
            stop_on: Signals that stop the consumer while `run` is active: `stop(25)` at the first
                one, and at the second one, handlers are cancelled. Then the signal's earlier
                handler is called, so that SIGINT raises KeyboardInterrupt. If there is none, as for
                SIGTERM, `run` returns. "default": SIGTERM and SIGINT, if the main task of
                `asyncio.run` awaits `run` and the program handles neither. After a SIGTERM, the
                next such call in this process raises SystemExit(143). (): none.
            until: Where `run` ends, for backfills. "end": at the present ends of the partitions,
                with read_committed at their last stable offsets. A time: before the first record
                with this timestamp (a datetime, or ms since the epoch) or a later one. `run`
                returns when all earlier records of the assigned partitions are finished, including
                retries and dead letters. Of partitions that are assigned later, the ends are those
                at that time. It does not wait for other members of the group.
            progress: Show records, rate, lag and failures on the standard error, if it is a
                terminal and `rich` is installed (the extra `cli`).

        Returns:
            A summary if `until` was passed, otherwise None.

        Raises:
            TypeError: The handler is not a function with these arguments, or a key is not
                hashable with order="key".
            ValueError: A topic that is subscribed or assigned has no handler. Or `stop_on` was
                passed outside of the main thread.
            InvalidValueError: A value does not fit the annotation, and there is no `dead_letter`
                that its record would be written to at once.
            NoHandlerError: A record of another topic without a handler was read.
            IllegalStateError: `run` is already active, or the producer is not started.
            IllegalOperation: With `transactions`: the producer has no transactional_id, or the
                consumer no group_id.
            KafkaError: A read failed, or a transaction failed permanently. It is raised after the
                running handlers have returned, as is an error of a handler.
        """
        # Imported here: most consumers have no use for it.
        from aiokafka_lite.consumer.processing.bounds import RunBounds, until_of
        from aiokafka_lite.consumer.processing.draining import Draining, signals_of
        from aiokafka_lite.consumer.processing.handlers import Handlers
        from aiokafka_lite.consumer.processing.handling import (
            Handling,
            breaker_of,
            check_producer,
            dead_letter_of,
            delays_of,
            retry_of,
        )
        from aiokafka_lite.consumer.processing.run import Run
        from aiokafka_lite.consumer.processing.threads import HandlerThreads

        self._engine.owner.check()
        check_producer("transactions", transactions)
        outputs, takes_lists = int(transactions is not None), batch_size is not None
        handlers = Handlers(handler, outputs, middleware, takes_lists=takes_lists)
        if self._config.ack_mode == "explicit":
            raise IllegalStateError(
                'run() acknowledges records itself: leave out ack_mode="explicit"'
            )
        policy = handlers.policy(retry_of(retry))
        delays = delays_of(policy, self._group_id)
        settings = Handling(
            concurrency=concurrency,
            order=order,
            batch_size=batch_size,
            max_uncommitted=max_uncommitted,
            retry=policy,
            dead_letter=dead_letter_of(dead_letter),
            breaker=breaker_of(breaker),
            timeout_s=timeout_s,
            batch_wait_ms=batch_wait_ms,
            batch_by=batch_by,
            list_of=handlers.lists(),
            max_per_second=max_per_second,
            fair=fair,
            priority=priority,
            delays=delays,
        )
        signals = signals_of(stop_on)
        timestamp = None if until is None else until_of(until)
        FLAG.check("progress", progress)
        _ = self._engine.running
        threads = HandlerThreads(lambda: run.is_closing)
        run = Run(self._engine.core, handlers.compose(threads), settings, self._engine.deliver)
        outbox = None if transactions is None else self._new_outbox(transactions, run)
        self._subscribe_to(handlers, delays)
        bounds: RunBounds | None = None
        if until is not None:
            bounds = RunBounds(self._engine.core, self, timestamp, self._is_settled)
            run.end_at(bounds)
        draining = Draining(signals, self.stop, run, is_default=stop_on == "default")
        async with draining, AsyncExitStack() as stack:
            stack.callback(threads.close)
            stack.callback(self._state.remove_complete_topics)
            # Records whose dead letters are written at the end are still finished.
            stack.enter_context(run.opened())
            if outbox is not None:
                await outbox.open()
                stack.push_async_callback(outbox.close)
                run.write_into(outbox)
            if settings.keepers or settings.dead_letter is not None:
                await self._keep(settings, run, outbox, stack)
            if delays.names:
                self._state.add_complete_topics(delays.names)
            if progress:
                # By name: extras are above the consumer.
                run.show(import_module("aiokafka_lite.extras.progress").show(self))
            await run.run()
        return None if bounds is None else bounds.summary()

    def _is_settled(self) -> bool:
        running = self._engine.current
        return running is not None and running.membership.is_settled

    def _subscribe_to(self, handlers: Handlers, delays: Delays) -> None:
        is_subscribed = self._state.mode is not SubscriptionMode.NONE
        known = self._state.topics - delays.names
        if topics := handlers.topics_to_subscribe(known, is_subscribed=is_subscribed):
            self.subscribe(topics)
        if delays.names and (self._group_id is None or not self._state.is_subscribed):
            raise IllegalStateError(
                "Retry(topic=…) subscribes to the delay topics: the consumer needs a group_id, and "
                "topics that are subscribed, not assigned"
            )

    def _new_outbox(self, producer: AIOKafkaProducer[Any, Any], run: Run) -> Outbox:
        from aiokafka_lite.consumer.processing.outbox import GivenProducer, Outbox

        if self._group_id is None:
            raise IllegalOperation(
                "run(transactions=…) commits the group's offsets in the transactions: the consumer "
                "needs a group_id"
            )
        offsets = self._engine.in_transactions()
        return Outbox(GivenProducer(producer), offsets, run, self._chance)

    async def _keep(
        self, settings: Handling, run: Run, outbox: Outbox | None, stack: AsyncExitStack
    ) -> None:
        """Keep serialised keys and values for dead letters and delayed records."""
        from aiokafka_lite.consumer.processing.handling import RunContext
        from aiokafka_lite.consumer.processing.outbox import Outbox

        def new_outbox(source: GivenProducer) -> Outbox:
            made = Outbox(source, self._engine.in_transactions(), run, self._chance)
            run.watch(made)
            return made

        config = self._config
        commits = self._group_id is not None and config.enable_auto_commit
        context = RunContext(
            config,
            self._group_id or "",
            config.is_read_committed,
            run.reads,
            outbox,
            new_outbox if commits else None,
            {},
            stack,
        )
        for keeper in settings.keepers:
            await keeper.open(context)
            stack.push_async_callback(keeper.close)
        if self._delivery.has_deserializers:
            self._delivery.keeps_serialized = True
            stack.callback(setattr, self._delivery, "keeps_serialized", False)
            for cursor in self._state.assignment.values():
                self._state.refetch(cursor)  # buffered records have no serialised values

    async def poll_arrow(
        self: AIOKafkaConsumer[bytes | None, bytes | None],
        timeout_ms: float | None = None,
        max_rows: int | None = None,
        schema: pa.Schema | None = None,
    ) -> pa.RecordBatch:
        """Return the next records as one Arrow record batch, with keys and values as bytes.

        Its rows are in order per partition: as many as can be decoded in about half a millisecond,
        at most `max_rows`, and at most 16 MiB of keys, values and headers unless one row is larger.
        Calls of `poll` and `poll_arrow` may be mixed. The first call imports pyarrow.

        Args:
            timeout_ms: How long to wait for the first row. After that, the result has no rows.
                None: no limit.
            max_rows: By default `max_poll_records` of the constructor, and if that is None 65,536.
            schema: The columns, from those that docs/arrow.md lists. By default all.

        Raises:
            KafkaError: As `poll`.
            ModuleNotFoundError: pyarrow is not installed: install aiokafka-lite[arrow].
            IllegalStateError: The consumer has deserialisers.
            ValueError: The schema has an unknown column, or a type that is not supported.
        """
        self._engine.owner.check()
        check_max_records(max_rows, "max_rows")
        gets = self._use_arrow()
        return await gets.one(
            gets.columns(schema),
            None if timeout_ms is None else seconds(timeout_ms),
            max_rows,
        )

    def batches(
        self: AIOKafkaConsumer[bytes | None, bytes | None],
        max_rows: int | None = None,
        schema: pa.Schema | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Return an iterator of the record batches of `poll_arrow`, without empty ones.

        The iteration ends when the consumer is stopped. After an error it may be continued.
        """
        self._engine.owner.check_now()
        check_max_records(max_rows, "max_rows")
        self._engine.raise_if_over()
        return self._use_arrow().batches(schema, max_rows, self)

    def _use_arrow(self) -> ArrowGets:
        if self._arrow_gets is None:
            if self._config.has_deserializers:
                raise IllegalStateError(
                    "poll_arrow() returns keys and values as bytes and calls no deserialiser: "
                    "leave out key_deserializer and value_deserializer, and decode the columns"
                )
            # Imports pyarrow, which most consumers do not use.
            from aiokafka_lite.consumer.delivery.arrow_gets import ArrowGets

            self._arrow_gets = ArrowGets(self._engine.core.buffer, self._config.max_poll_records)
        return self._arrow_gets

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[KT, VT]]:
        self._engine.owner.check()
        self._engine.raise_if_over()
        self._choose_way()
        self._reads.note_reader(iterates=True)
        return self

    def _choose_way(self) -> None:
        """Choose how iterations read: by a replaced `getone`, or from the open chunk."""
        kind = type(self)
        is_replaced = kind.getone is not _ORIGINAL["getone"] or "getone" in vars(self)
        self._is_by_getone = is_replaced and kind.__anext__ is _ORIGINAL_NEXT
        self._iterate_over(NO_RECORDS if self._is_by_getone else self._ready.cursor)

    def _prepare_gets(self) -> None:
        wrap_as_aiokafkas(self, AIOKafkaConsumer, _ORIGINAL)
        self._wrapped_poll = _wrap_as_getmany(self._poll, type(self))
        self._wrapped_take = _wrap_as_getmany(self._take_batch, type(self))
        self._choose_way()

    if TYPE_CHECKING:  # RecordIterator's, which takes ready records without a frame

        async def __anext__(  # type: ignore[override]  # deserialised
            self,
        ) -> ConsumerRecord[KT, VT]: ...

    async def _next_record(self) -> Record:
        """Wait for the next record, or raise StopAsyncIteration at the stop.

        Too large records are skipped, as in aiokafka, unless on_bad_record is a callable.
        """
        if _get_running_loop() is not self._loop:
            raise self._engine.owner.refusal()
        while True:
            try:
                if self._is_by_getone:
                    return await self.getone()  # type: ignore[return-value]  # deserialised
                return await self._gets.one(())
            except ConsumerStoppedError:
                raise StopAsyncIteration from None
            except RecordTooLargeError as error:
                self._skip_too_large(error)

    def _skip_too_large(self, error: RecordTooLargeError) -> None:
        bad = self._delivery.bad
        if error.tp is None or error.next_offset is None or bad.handler is not None:
            raise error
        bad.skipped(error)
        self._state.skip_to(self._state.partition(error.tp), error.next_offset)

    # --- Positions ------------------------------------------------------------------------
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position of a partition, without a request: the next read starts at `offset`.

        Buffered records and those of requests in flight are dropped. Auto-commit counts the records
        of the latest read, and those that the seek skips, as finished only after the next read. A
        seek during a rebalance holds if this member gets the partition again, as do the other
        seeks.

        Raises:
            IllegalStateError: The partition is not assigned.
        """
        self._check_change()
        offset = check_offset(offset)
        self._state.seek(self._state.partition(check_partition(partition)), offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Set the positions of the partitions (default: all assigned) to their first offsets.

        Returns:
            False if the offsets were not found within request_timeout_ms. The lookup continues.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        return await self._reset(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Set the positions after the last records, otherwise as `seek_to_beginning`."""
        return await self._reset(partitions, LATEST)

    async def _reset(self, partitions: tuple[TopicPartition, ...], timestamp: int) -> bool:
        self._engine.owner.check()
        self._gate.check()
        states = self._states(partitions)
        for state in states:
            self._state.request_reset(state, timestamp)
        tps = [state.tp for state in states]
        return await self._engine.wait_until(
            lambda: not any(map(self._awaits_position, tps)), self._request_deadline()
        )

    def _awaits_position(self, tp: TopicPartition) -> bool:
        # Looked up each time: a rebalance replaces a partition's cursor.
        state = self._state.assignment.get(tp)
        return state is not None and not state.is_found

    async def seek_to_committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, int | None]:
        """Set positions to the committed offsets. Without one, a partition keeps its position.

        Records after a committed offset that `run` or `ack_mode="explicit"` has finished are
        skipped, as after a restart. In a rebalance, a position follows later commits, until its
        partition is reassigned.

        Returns:
            The committed offset of each partition, or None.

        Raises:
            IllegalStateError: A partition is not assigned.
            IllegalOperation: The consumer has no group.
        """
        self._engine.owner.check()
        states = self._states(partitions)
        self._engine.require_group()
        with self._engine.until_stopped() as running:
            committed = await self._engine.commits_of(running).committed_at_rest(
                [state.tp for state in states]
            )
        result: dict[TopicPartition, int | None] = {}
        for state in states:
            offset = committed[state.tp]
            result[state.tp] = None if offset is None else offset.offset
            if offset is not None and state.is_assigned:
                self._state.seek_to_committed(state, offset)
        return result

    @overload
    async def position(self, partition: TopicPartition) -> int: ...
    @overload
    async def position(
        self, partition: TopicPartition, second: TopicPartition, /, *others: TopicPartition
    ) -> dict[TopicPartition, int]: ...
    async def position(
        self, partition: TopicPartition, *others: TopicPartition
    ) -> int | dict[TopicPartition, int]:
        """Return the offset of the next record to be returned, as soon as it is known.

        A committed offset is compared with the log of a newer leader first, as in Java.

        With one partition the result is its offset, as in aiokafka, with several a dict of
        positions at one moment. A cancellation changes no position.

        Raises:
            IllegalStateError: A partition is not assigned, or was revoked during the call.
            KafkaTimeoutError: Not all positions were found within request_timeout_ms.
            LogTruncationError: The log ends before it, and auto_offset_reset is "none".
            KafkaError: A position cannot be found.
        """
        self._engine.owner.check()
        self._gate.check()
        wanted = check_partitions((partition, *others))
        for tp in wanted:
            self._state.partition(tp)

        def are_known() -> bool:
            missing = [tp for tp in wanted if self._awaits_position(tp)]
            for tp in missing:
                if error := self._engine.core.buffer.sticky_error(self._state.partition(tp)):
                    raise error.with_traceback(None)
            return not missing

        await self._engine.wait_until(are_known, self._request_deadline())
        self._reads.settle()
        positions: dict[TopicPartition, int] = {}
        for tp in wanted:
            state = self._state.partition(tp)
            if state.position is None or not state.is_found:
                raise KafkaTimeoutError(
                    f"the position of {tp} was not determined within request_timeout_ms="
                    f"{self._config.request_timeout_ms}: "
                    f"{state.retry_reason or 'no broker answered'}"
                ).at(tp)
            positions[tp] = state.position
        return positions if others else positions[wanted[0]]

    # --- Commits --------------------------------------------------------------------------
    async def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commit offsets, by default the positions, which cover all returned records.

        Args:
            offsets: For each partition the next offset to read, or a pair of it and metadata (str).

        Raises:
            IllegalOperation: The consumer has no group. Or an open transaction contains records
                before a given offset, or has sent offsets of its partition.
            IllegalStateError: A partition is not assigned, or the consumer has no subscription and
                no assignment.
            CommitFailedError: The group has assigned the partitions to another member, or `stop`
                has already left the group. Or an offset belongs to an earlier assignment, after
                which another member may have read the partition. In that case, seek to the offset
                to commit it anyway.
            FencedInstanceIdError: Another consumer with this `group_instance_id` has replaced this
                one permanently.
            KafkaError: The broker rejected the commit, or could not be reached in time.
        """
        self._engine.owner.check()
        self._engine.require_group()
        if self._state.mode is SubscriptionMode.NONE:
            raise IllegalStateError(
                "Not subscribed to any topics: subscribe to topics or "
                "assign partitions before a commit"
            )
        await self._engine.commit(offsets)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the known positions of the assigned partitions, which `commit()` commits.

        During a transaction `commit()` stops before its first record.
        """
        self._engine.owner.check_now()
        return self._engine.core.finished.handed_out_offsets()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return member id, generation and instance id, for a producer's transaction (KIP-447).

        With them, the group rejects a transaction's offsets if this member has lost its partitions.

        Raises:
            IllegalOperation: The consumer has no group.
            CommitFailedError: The group has removed this member.
            FencedInstanceIdError: Another consumer uses the group_instance_id.
        """
        self._engine.owner.check_now()
        self._engine.require_group()
        return self._engine.in_transactions().group()

    def delivery(self) -> DeliveryToCommit:
        """Return the application's unfinished records, as a value for `tx.commit_offsets`.

        These are all records returned so far, with ack_mode="explicit" those not acknowledged, and
        in a handler of `run` its own. The value belongs to the assignment in which they were
        returned.

        Raises:
            IllegalOperation: The consumer has no group, or `run` is active and the caller is not
                one of its handlers.
        """
        self._engine.owner.check_now()
        self._engine.require_group()
        return self._engine.deliver(self._engine.core.finished.delivery())

    @overload
    async def committed(
        self, partition: TopicPartition, *, metadata: Literal[False] = False
    ) -> int | None: ...
    @overload
    async def committed(
        self, partition: TopicPartition, *, metadata: Literal[True]
    ) -> OffsetAndMetadata | None: ...
    @overload
    async def committed(
        self,
        partition: TopicPartition,
        second: TopicPartition,
        /,
        *others: TopicPartition,
        metadata: Literal[False] = False,
    ) -> dict[TopicPartition, int | None]: ...
    @overload
    async def committed(
        self,
        partition: TopicPartition,
        second: TopicPartition,
        /,
        *others: TopicPartition,
        metadata: Literal[True],
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    async def committed(
        self, partition: TopicPartition, *others: TopicPartition, metadata: bool = False
    ) -> object:
        """Return the group's committed offsets of partitions, assigned or not, in one round trip.

        With one partition the result is its offset, as in aiokafka, with several a dict. It is None
        for a partition without a committed offset. With `metadata`, `OffsetAndMetadata` replaces
        the offsets.

        Raises:
            IllegalOperation: The consumer has no group.
            KafkaError: The coordinator rejected the request, or could not be reached in time.
        """
        self._engine.owner.check()
        self._engine.require_group()
        wanted = check_partitions((partition, *others))
        with self._engine.until_stopped() as running:
            found = await self._engine.commits_of(running).committed(wanted)
        answers: dict[TopicPartition, int | OffsetAndMetadata | None] = {}
        for tp in wanted:
            offset = found[tp]
            answers[tp] = offset if metadata or offset is None else offset.offset
        return answers if others else answers[wanted[0]]

    # --- Pauses ---------------------------------------------------------------------------
    def pause(self, *partitions: TopicPartition) -> None:
        """Stop fetching and returning records of the partitions, and keep buffered ones.

        A partition that a rebalance revokes and assigns again (an eager one does so with all) is no
        longer paused, as in Java: pause it in `on_partitions_assigned`. A pause that begins during
        the rebalance holds.

        Raises:
            IllegalStateError: A partition is not assigned.
        """
        self._check_change()
        for tp in check_partitions(partitions, NAMED_TUPLES):
            self._state.pause(self._state.partition(tp))

    def resume(self, *partitions: TopicPartition) -> None:
        """Fetch and return records of the partitions again. Raises as `pause` does."""
        self._check_change()
        for tp in check_partitions(partitions, NAMED_TUPLES):
            self._state.resume(self._state.partition(tp))

    def _check_change(self) -> None:
        self._engine.owner.check_now()
        self._engine.raise_if_over()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {tp for tp, state in self._state.assignment.items() if state.is_paused}

    # --- The latest responses -------------------------------------------------------------
    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the latest response: the offset after the last record.

        None before the first response. AssertionError if the partition is not assigned.
        """
        return self._assigned(partition).high_watermark

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the last stable offset of the latest response, at either isolation level.

        Records from there on may belong to open transactions. None also with brokers before Kafka
        0.11. Otherwise as `highwater`.
        """
        return self._assigned(partition).last_stable_offset

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """Return the time of the latest fetch response for the partition, in ms since the epoch.

        Otherwise as `highwater`.
        """
        answered_at = self._assigned(partition).last_fetch_at
        if answered_at is None:
            return None
        return wall_ms() - round((self._loop.time() - answered_at) * 1000)

    def _assigned(self, partition: TopicPartition) -> Cursor:
        state = self._state.assignment.get(check_partition(partition))
        if state is None:
            raise AssertionError(f"Partition is not assigned: {partition}")
        return state

    # --- Offsets and topics of the cluster ------------------------------------------------
    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not.

        Raises:
            UnknownTopicOrPartitionError: A topic exists, and has no such partition.
            KafkaTimeoutError: Not all were found within request_timeout_ms. The message has the
                missing partitions, and the node that has not responded.
        """
        return await self._bounds(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets after the last records, with read_committed the last stable offsets.

        Raises as `beginning_offsets`.
        """
        return await self._bounds(partitions, LATEST)

    async def _bounds(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        self._engine.owner.check()
        checked = check_partitions(partitions)
        found = await self._find(dict.fromkeys(checked, timestamp))
        return {tp: found[tp].offset for tp in checked}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return each partition's first record at or after a timestamp (ms since the epoch).

        None for a partition without such a record. Raises as `beginning_offsets`.
        """
        self._engine.owner.check()
        wanted = check_timestamps(timestamps)
        found = await self._find(wanted)
        return {
            tp: OffsetAndTimestamp(found[tp].offset, found[tp].timestamp)
            if found[tp].offset >= 0
            else None
            for tp in wanted
        }

    async def _find(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset]:
        if not timestamps:
            return {}
        deadline, topics = self._request_deadline(), {tp.topic for tp in timestamps}
        with self._engine.until_stopped() as running, running.cluster.watching(topics):
            view = running.cluster.view
            if unknown := {tp.topic for tp in timestamps if view.leader(tp) is None}:
                try:
                    async with timeout_at(deadline):
                        await running.cluster.refresh(unknown)
                        await running.lookup.until_listed(timestamps)
                except asyncio.TimeoutError:
                    raise KafkaTimeoutError(
                        "no broker returned metadata of "
                        f"{', '.join(sorted(unknown))} within request_timeout_ms="
                        f"{self._config.request_timeout_ms}"
                    ) from None
            return await running.lookup.find(timestamps, deadline)

    async def topics(self) -> set[str]:
        """Return the names of all readable topics, except internal ones.

        Raises:
            KafkaConnectionError: No broker responded within `request_timeout_ms`.
        """
        self._engine.owner.check()
        request, deadline = MetadataRequest(topics=None), self._request_deadline()
        with self._engine.until_stopped() as running:
            backoff = self._engine.core.new_backoff()
            while True:
                try:
                    response = await running.cluster.request_any(request)
                    break
                except KafkaError as error:
                    delay_s = backoff.next_delay_s()
                    if not error.retriable or not await sleep_before(deadline, delay_s):
                        raise
        return {
            topic.name
            for topic in response.topics
            if topic.name and not topic.is_internal and not topic.error_code
        }

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic, or None if the metadata do not have it."""
        check_text("a topic's name", topic)
        partitions = self._engine.running.cluster.view.partitions_for_topic(topic)
        return None if partitions is None else set(partitions)

    # --- For operators --------------------------------------------------------------------
    def events(self, max_buffered: int = DEFAULT_BUFFERED_EVENTS) -> EventSubscription:
        """Return an iterator of the consumer's further events, see `aiokafka_lite.events`.

        ::

            async for event in consumer.events():
                print(event.name, event)

        May be called before `start`, and several times: every iterator receives all events.

        Args:
            max_buffered: The most events that wait for this iterator. Above that, the oldest are
                dropped, and an event `EventsDropped` counts them.
        """
        self._engine.owner.check_now()
        return self._events.subscribe(max_buffered)

    def health(self) -> Health:
        """Return a verdict on the consumer, with reasons and advice.

        Works at any time, even before `start` and after `stop`, without a request, in microseconds.
        From another thread, use `loop.call_soon_threadsafe` or `asyncio.run_coroutine_threadsafe`.
        """
        from aiokafka_lite.consumer.monitoring.health import examine

        self._engine.owner.check_now()

        return examine(self._engine, self._loop.time())

    def explain(self, partition: TopicPartition) -> str:
        """Return a sentence that explains why a partition returns no records.

        While `run` is active, a second sentence names the record that delays the partition's
        commit. Works at any time and for any partition, without a request.
        """
        from aiokafka_lite.consumer.monitoring.diagnosis import explain

        self._engine.owner.check_now()
        partition = check_partition(partition)
        self._reads.settle()
        return explain(self._engine, partition, self._loop.time())

    def metrics(self) -> dict[str, object]:
        """Return the consumer's metrics, as values that `json.dumps` accepts.

        docs/monitoring.md lists them. "partitions" and "nodes" are lists of dicts. Names that end
        in _total count since the consumer was created, and keep their values after `stop`.
        """
        from aiokafka_lite.consumer.monitoring.health import measure

        self._engine.owner.check_now()

        return measure(self._engine, self._loop.time())

    # --- Private names of aiokafka's that programs use (aiokafka_names.py) ------------------
    @property
    def _closed(self) -> bool:
        return self._is_written_off or self._engine.is_over

    @_closed.setter
    def _closed(self, is_closed: bool) -> None:
        self._is_written_off = is_closed

    @property
    def _group_instance_id(self) -> str | None:
        return self._config.group_instance_id

    @property
    def _max_poll_records(self) -> int | None:
        return self._config.max_poll_records

    @property
    def _subscription(self) -> SubscriptionNames:
        return SubscriptionNames(self._engine)

    @property
    def _coordinator(self) -> CoordinatorNames | None:
        # None before the start, as in aiokafka.
        return CoordinatorNames(self._engine) if self._engine.current is not None else None

    @cached_property
    def _client(self) -> ClientNames:
        from aiokafka_lite.client.aiokafka_names import ClientNames

        engine = self._engine
        return ClientNames(lambda: engine.running.cluster, self._config)

    # --- Shared ---------------------------------------------------------------------------
    def _states(self, partitions: tuple[TopicPartition, ...]) -> list[Cursor]:
        if not partitions:
            return list(self._state.assignment.values())
        return [self._state.partition(tp) for tp in check_partitions(partitions)]

    def _request_deadline(self) -> float:
        return self._loop.time() + self._config.request_timeout_s


_ORIGINAL: Final[Mapping[str, object]] = MappingProxyType(
    {"getone": AIOKafkaConsumer.getone, "getmany": AIOKafkaConsumer.getmany}
)
_ORIGINAL_NEXT: Final = AIOKafkaConsumer.__anext__


def _wrap_as_getmany(poll: MethodT, kind: type) -> MethodT | None:
    """Put around `poll` the wrappers of `getmany`: of the consumer's class, or else aiokafka's."""
    wrapped_kinds = [
        each for each in kind.__mro__ if hasattr(vars(each).get("getmany"), "__wrapped__")
    ]
    of = wrapped_kinds[0] if wrapped_kinds else class_of_aiokafka("AIOKafkaConsumer", kind)
    wrapped = poll if of is None else wrapped_alike(poll, of, "getmany")
    return None if wrapped is poll else wrapped


class _NoListener(ConsumerRebalanceListener):
    @override
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None: ...

    @override
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None: ...
