"""AIOKafkaConsumer: what applications call; the work is done by the engine's parts."""

from __future__ import annotations

import asyncio
import os
import random
import time
import traceback
import warnings
import weakref
from asyncio import _get_running_loop
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, SupportsIndex, overload

from aiokafka_lite._compat import KT, VT, Self, override, timeout_at
from aiokafka_lite._settings import takes_arguments_of
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.consumer.aiokafka_names import CoordinatorNames, SubscriptionNames
from aiokafka_lite.consumer.assignment.batches import Block, OpenBatch
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.subscription import SubscriptionMode, SubscriptionState
from aiokafka_lite.consumer.buffer.decode import lend, make_delivery
from aiokafka_lite.consumer.caller import as_if_running, running_loop
from aiokafka_lite.consumer.config import (
    DEFAULT_MAX_UNCOMMITTED,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NAMED_TUPLES,
    ConsumerConfig,
    check_handler,
    check_hold,
    check_listener,
    check_max_records,
    check_offset,
    check_partition,
    check_partitions,
    check_pattern,
    check_timestamps,
    check_topics,
)
from aiokafka_lite.consumer.delivery.iteration import RecordIterator
from aiokafka_lite.consumer.events.stream import (
    DEFAULT_BUFFERED_EVENTS,
    EventSubscription,
)
from aiokafka_lite.consumer.life import Engine
from aiokafka_lite.consumer.monitoring.loop_probe import LoopProbe
from aiokafka_lite.consumer.wrapped_gets import (
    NO_RECORDS,
    goes_by_getone,
    wrap_as_aiokafkas,
    wrap_as_getmany,
)
from aiokafka_lite.errors import (
    ConsumerStoppedError,
    IllegalOperation,
    IllegalStateError,
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
    import pyarrow as pa

    from aiokafka_lite.client.aiokafka_names import ClientNames
    from aiokafka_lite.consumer.buffer.chunk import Record
    from aiokafka_lite.consumer.commits.transactional import DeliveryToCommit
    from aiokafka_lite.consumer.delivery.arrow_gets import ArrowGets
    from aiokafka_lite.consumer.delivery.batch import BatchScope
    from aiokafka_lite.consumer.monitoring.health import Health
    from aiokafka_lite.consumer.parts import Running
    from aiokafka_lite.consumer.positions.leader_lookup import FoundOffset
    from aiokafka_lite.consumer.processing.breaker import CircuitBreaker
    from aiokafka_lite.consumer.processing.handling import DeadLetter
    from aiokafka_lite.consumer.processing.lanes import Order
    from aiokafka_lite.consumer.processing.outbox import Outbox, Outputs
    from aiokafka_lite.consumer.processing.retry import Retry
    from aiokafka_lite.consumer.processing.run import Run
    from aiokafka_lite.producing.producer import AIOKafkaProducer
    from aiokafka_lite.structs import ConsumerRecord

CommitOffsets = Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata]
DEFAULT_STOP_TIMEOUT_S: Final = 10.0
# Of `run`: calls of the handler at a time.
DEFAULT_CONCURRENCY: Final = 100

# One for all consumers, as its state is 2.5 KiB; a forked child draws others than its parent.
_rng: Final = random.Random()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_rng.seed)


class AIOKafkaConsumer(RecordIterator, Generic[KT, VT]):
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

    @takes_arguments_of(ConsumerConfig)
    def __init__(self, config: ConsumerConfig[KT, VT]) -> None:
        self._configure(config)

    def _configure(self, config: ConsumerConfig[KT, VT]) -> None:
        if config.loop is not None:
            _warn_deprecated(
                "The loop argument is deprecated: a consumer made inside a loop belongs to it"
            )
        if config.api_version is not None:
            _warn_deprecated(
                "The `api_version` parameter has been deprecated and is ignored: versions are "
                "negotiated with each broker"
            )
        topics = check_topics(config.topics)
        self._loop = config.loop or running_loop()
        self._config = config
        self._group_id = config.group_id
        self._source_traceback = traceback.extract_stack() if self._loop.get_debug() else None
        self._state = SubscriptionState()
        # Held here only, as is the listener: what goes on by itself must not keep alive what may
        # know this consumer.
        self._delivery = make_delivery(self._config, self._state.events)
        with as_if_running(self._loop):
            self._engine = Engine(
                self._config.without_callables(),
                self._state,
                lend(self._delivery, self._state.events),
                LoopProbe(
                    self._state,
                    has_deserializers=self._delivery.has_deserializers,
                    session_timeout_s=self._config.session_timeout_s,
                ),
                _rng,
            )
        self._ready, self._gets = self._engine.ready, self._engine.gets
        self._gate = self._engine.gate
        self._iterate_over(self._ready.cursor)
        # What `start` finds: whether somebody has replaced `getone`, and what is around `getmany`.
        self._is_by_getone = False
        self._wrapped_poll: (
            Callable[..., Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]] | None
        ) = None
        self._wrapped_take: (
            Callable[..., Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]] | None
        ) = None
        self._arrow_gets: ArrowGets | None = None
        # A program has said by aiokafka's name that nobody is to be warned.
        self._is_written_off = False
        # Kept to the next subscription, and over one more, which may come before it has been told:
        # after `unsubscribe` it is still told.
        self._listener: ConsumerRebalanceListener | None = None
        self._former_listener: ConsumerRebalanceListener | None = None
        if topics:
            self._state.subscribe(topics)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self._config.client_id!r} in group {self._group_id!r}, "
            f"{self._engine.life.stage.value}>"
        )

    # --- Start and stop -------------------------------------------------------------------
    async def start(self) -> None:
        """Connect, wait for the topics, and with a group for the first assignment.

        May be tried again after it failed or was cancelled; nothing is left of the attempt.

        Raises:
            KafkaConnectionError: No bootstrap server could be reached.
            UnknownTopicOrPartitionError: A topic did not appear within request_timeout_ms.
            TopicAuthorizationFailedError: A topic may not be read.
            InvalidTopicError: A topic's name is not allowed.
            GroupAuthorizationFailedError: The group may not be joined.
            UnsupportedVersionError, GroupIdNotFound: group_protocol is "consumer", and the broker
                does not offer it, or not for this group.
            InconsistentGroupProtocolError: No assignor is one that all members of a classic group
                have.
            UnreleasedInstanceIdError: By the consumer protocol, group_instance_id has been
                another's for longer than a session.
            ConsumerStoppedError: It was stopped meanwhile.
            ValueError: isolation_level is unknown.
            AssertionError: It was started before, or on another loop (WrongLoopError).
            ForkedError: It was made in another process.
        """
        self._engine.owner.check()
        self._prepare_gets()
        await self._engine.start()

    async def stop(
        self, timeout: float = DEFAULT_STOP_TIMEOUT_S, *, leave: bool | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit all that was handed out (with auto-commit), leave the group, disconnect.

        Before that it waits for handlers of `run`, for open blocks of `batch`, for transactions
        that commit records, and with ack_mode="explicit" for acknowledgements: for four fifths of
        `timeout` at most, and for all but handlers no longer than a rebalance would.

        Returns within `timeout` seconds, whatever the brokers do. Gets that wait meanwhile raise
        ConsumerStoppedError. A second call waits for the first, within its own timeout, and
        returns the same; a rebalance listener, for which the first waits, is not kept waiting.

        When it is cancelled, what was not committed by then is not, and the group finds out by
        the session timeout; but no task and no socket is left, and a second call tells what was
        not committed.

        A place in the group is either given up, so that the others get the partitions at once, or
        kept for a session, in which nobody reads them. What the coordinator is told (KIP-1092):

        =======  ===================  =========================  ======================
        `leave`  meaning              classic protocol           consumer protocol
        =======  ===================  =========================  ======================
        None     dynamic members      as True for a dynamic      as True for a dynamic
                 leave, static ones   member, as False for a     member, as False for a
                 (with an instance    static one                 static one
                 id) stay
        True     the member leaves    LeaveGroup, with the       a last heartbeat of
                                      instance id of a static    epoch -1
                                      one
        False    the member stays     nothing                    of a static member: a
                                                                 last heartbeat of
                                                                 epoch -2; otherwise
                                                                 nothing
        =======  ===================  =========================  ======================

        A dynamic member that stays spares the group one of two rebalances, if its successor starts
        soon. But the successor joins as another member, and the place of the first is empty until
        its session is over. In the classic protocol a rebalance meanwhile waits for it as long.

        Args:
            timeout: Seconds that it may take.
            leave: Whether to give up the place in the group; None: as the table says. It does not
                count in a second call.

        Returns:
            Offsets that should have been committed and could not be.

        Raises:
            WrongLoopError: It belongs to another loop.
            ForkedError: It was made in another process.
        """
        return await self._stop(timeout, is_clean=True, leave=leave)

    async def _stop(
        self, timeout_s: float, *, is_clean: bool, leave: bool | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._engine.owner.check()
        return dict(await self._engine.stop(timeout_s, is_clean=is_clean, leaves=leave))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Stop. Left by an exception, the latest get's records are not committed."""
        if isinstance(exc, Exception) and not self._engine.life.is_over:
            from aiokafka_lite.consumer.monitoring.diagnosis import last_words

            self._engine.life.left_by = last_words(self._state, exc)
        await self._stop(DEFAULT_STOP_TIMEOUT_S, is_clean=exc_type is None)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled because it holds connections "
            "and a group membership: pass on its settings, and make another one there"
        )

    def __del__(self) -> None:
        # There is nothing to stop if an argument was refused, or the start has failed, as that of
        # an `async with`; in a forked child it is the parent's.
        if getattr(self, "_closed", True) or self._engine.owner.is_forked:
            return
        if self._engine.life.has_failed_to_start:
            return
        self._engine.abandon()  # first of all: a warning may be an error
        warnings.warn(
            f"Unclosed {type(self).__name__} {self!r}",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        context: dict[str, object] = {
            "consumer": self,
            "message": f"Unclosed {type(self).__name__}",
        }
        if self._source_traceback is not None:
            context["source_traceback"] = self._source_traceback
        self._loop.call_exception_handler(context)

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
        lent = None if listener is None else _LentListener(listener)
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

    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, too, without the group sharing them out.

        Those assigned already go on as they are, with what is buffered of them.

        Raises:
            IllegalStateError: Topics or a pattern are subscribed.
            TypeError: One is not a TopicPartition.
            ConsumerStoppedError: The consumer is stopped, or is being stopped.
        """
        self._check_change()
        self._state.add_from_user(check_partitions(partitions))

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions no more; the others go on as they are.

        What is buffered of them is dropped. With auto-commit, what was handed out of them before
        the latest get is committed right after; for the latest get's records `commit` first.

        Raises:
            IllegalStateError: One is not assigned, in which case nothing is changed; or the
                partitions come from a subscription.
            TypeError: One is not a TopicPartition.
            ConsumerStoppedError: The consumer is stopped, or is being stopped.
        """
        self._check_change()
        self._state.remove_from_user(check_partitions(partitions))

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

        Without a limit it returns up to 2,000 records of each partition, fewer if they are large:
        as many as stay in the processor's caches until they are read. The rest comes with the next
        call, at once. `max_records_per_partition` is as in `poll`.

        Nothing comes of partitions that a rebalance has taken away: the result is {} when the time
        is over, as without records. It is {} at once when the consumer is stopped, or when a
        rebalance or another call takes the last of the partitions away, while it waits.

        Raises:
            TypeError: One is not a TopicPartition.
            ConsumerStoppedError: The consumer is stopped.
            ValueError: A limit is not a positive int.
            IllegalStateError: A partition is not assigned, and no rebalance has taken it away.
                After `subscribe` the call waits for the assignment first.
            KafkaError: Once a call, for an error that stands before the next record.
        """
        # Whatever is asked on the way to the gets costs each of them: hence few calls.
        if _get_running_loop() is not self._loop:
            raise self._engine.owner.refusal()
        wanted = check_partitions(partitions) if partitions else ()
        gate = self._gate
        if gate.is_troubled:
            self._engine.life.raise_if_over()
        if max_records is not None:
            check_max_records(max_records)
        if max_records_per_partition is not None:
            check_max_records(max_records_per_partition, "max_records_per_partition")
        if gate.is_troubled:
            gate.check()
        timeout_s = timeout_ms / 1000
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
        except ConsumerStoppedError:  # meanwhile
            return {}

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[KT, VT]:
        """Return the next record of the partitions (none named: of any), waiting for it.

        Raises:
            TypeError: One is not a TopicPartition.
            ConsumerStoppedError: The consumer is stopped, or was so meanwhile.
            IllegalStateError: A partition is not assigned; those that a rebalance has taken away
                may be among them, but not alone. Or the last of them was taken away meanwhile.
                One that a rebalance gives back at its end was not. After `subscribe` the call waits
                for the assignment first.
            KafkaError: Once a call, for an error that stands before the next record.
        """
        if not partitions:
            # Another task may not take what is open: that would finish this one's records.
            record = self._ready.cursor.take_own()
            if record is not None:
                return record  # type: ignore[return-value]  # deserialised
        if _get_running_loop() is not self._loop:
            raise self._engine.owner.refusal()
        wanted = check_partitions(partitions) if partitions else ()
        if self._gate.is_troubled:
            self._engine.life.raise_if_over()
        if wanted and self._may_come(wanted):
            await self._until_assigned()
        for tp in wanted:
            self._state.require_known(tp)
        if not self._state.has_any(wanted):
            self._state.partition(wanted[0])
        # Deserialised, if it is to be.
        return await self._gets.one(frozenset(wanted))  # type: ignore[return-value]

    def _may_come(self, wanted: tuple[TopicPartition, ...]) -> bool:
        """Whether none of the partitions is assigned, and a subscription is to bring one of them.

        Not to a rebalance listener, which the assignment waits for.
        """
        parts, state = self._engine.current, self._state
        if parts is None or state.has_any(wanted) or not state.subscribes_any(wanted):
            return False
        return not (parts.membership.is_settled or parts.membership.is_called_by_listener())

    async def _until_assigned(self) -> None:
        """Wait, in a get, until the subscription has its assignment."""
        self._state.enter_get()
        try:
            await self._engine.running.membership.wait_assigned()
        finally:
            self._state.leave_get(self._loop.time())

    def batch(
        self,
        max_records: int | None = None,
        max_hold_ms: float | None = None,
        *,
        timeout_ms: float | None = None,
        max_records_per_partition: int | None = None,
    ) -> BatchScope[KT, VT]:
        """Return a block to process records in, which a rebalance waits for.

        ::

            async with consumer.batch(max_records=500, max_hold_ms=20_000) as batch:
                for record in batch:
                    await handle(record)
                await batch.commit()

        The block is entered when there are records, as `poll` returns. Its end says that they are
        processed: then auto-commit may commit them, and a rebalance has their partitions. One that
        wants them sooner waits, for `max_hold_ms` at most; `await batch.revoking` returns when it
        begins to. Meanwhile a commit inside of the block cannot fail because of it. After that
        `batch.commit` raises BatchRevokedError, and other members read the records again.

        A block that is left by an exception, or cancelled, has processed nothing, but for what was
        committed of it: its records are handed out again, to whoever asks next. (Who would rather
        lose a record than meet it for ever catches the exception inside.) What the application has
        sought in the block stays. A stop waits for the block, unless the block's own task calls it,
        and commits nothing of a block that is still open after that.

        Several tasks may have batches open: of different partitions, as nothing more is handed out
        of one in an open batch, by no kind of get. So each partition's records stay in order. A
        get inside of a block waits for other partitions.

        Args:
            max_records: How many records it has at most; by default as `poll`.
            max_hold_ms: How long a rebalance waits for the block. None: as long as for other work
                (`rebalance_hold_ms`). Never so long that the group would go on without this member:
                that is four fifths of the rebalance timeout, less an interval of heartbeats.
            timeout_ms: How long to wait for the first record; None waits until there is one. When
                the time is up, the batch is empty.
            max_records_per_partition: How many may be of one partition; by default as `poll`.

        With ack_mode="explicit" records in it may be acknowledged and refused one by one; its end
        acknowledges the others, and so does `batch.commit`. Left by an exception, it refuses them.
        There more of its partitions may be handed out meanwhile.

        Raises:
            ValueError: A limit is not a positive int, or `max_hold_ms` is negative.
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        # Imported where it is used: most consumers have no use for it.
        from aiokafka_lite.consumer.delivery.batch import BatchScope

        self._engine.owner.check()
        check_max_records(max_records)
        check_max_records(max_records_per_partition, "max_records_per_partition")
        check_hold(max_hold_ms)

        block = self._block(None if max_hold_ms is None else max_hold_ms / 1000)

        def take() -> Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]:
            return (self._wrapped_take or self._take_batch)(
                block=block,
                timeout_ms=timeout_ms,
                max_records=max_records,
                max_records_per_partition=max_records_per_partition,
            )

        return BatchScope(block, take, self.commit, self._engine.deliver)

    def _block(self, hold_s: float | None) -> Block:
        if self._config.ack_mode != "explicit":
            return OpenBatch(self._state, hold_s)
        from aiokafka_lite.consumer.processing.acked_batch import AckedBatch

        return AckedBatch(self._state, hold_s)

    async def _take_batch(
        self,
        *,
        block: Block,
        timeout_ms: float | None,
        max_records: int | None,
        max_records_per_partition: int | None,
    ) -> dict[TopicPartition, list[ConsumerRecord[KT, VT]]]:
        found = await self._poll(timeout_ms, max_records, max_records_per_partition)
        block.open(found)  # before anybody else runs
        return found

    @overload
    async def run(
        self,
        handler: Callable[[ConsumerRecord[KT, VT]], Coroutine[object, object, object]],
        *,
        concurrency: int = ...,
        order: Order = ...,
        batch_size: None = ...,
        retry: Retry | int | None = ...,
        dead_letter: DeadLetter | str | None = ...,
        breaker: CircuitBreaker | Literal["default"] | None = ...,
        max_uncommitted: int = ...,
        transactions: None = ...,
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Callable[[list[ConsumerRecord[KT, VT]]], Coroutine[object, object, object]],
        *,
        batch_size: int,
        concurrency: int = ...,
        order: Order = ...,
        retry: Retry | int | None = ...,
        dead_letter: DeadLetter | str | None = ...,
        breaker: CircuitBreaker | Literal["default"] | None = ...,
        max_uncommitted: int = ...,
        transactions: None = ...,
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Callable[[ConsumerRecord[KT, VT], Outputs], Coroutine[object, object, object]],
        *,
        transactions: AIOKafkaProducer[Any, Any],
        concurrency: int = ...,
        order: Order = ...,
        batch_size: None = ...,
        retry: Retry | int | None = ...,
        dead_letter: DeadLetter | str | None = ...,
        breaker: CircuitBreaker | Literal["default"] | None = ...,
        max_uncommitted: int = ...,
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Callable[
            [list[ConsumerRecord[KT, VT]], Outputs], Coroutine[object, object, object]
        ],
        *,
        batch_size: int,
        transactions: AIOKafkaProducer[Any, Any],
        concurrency: int = ...,
        order: Order = ...,
        retry: Retry | int | None = ...,
        dead_letter: DeadLetter | str | None = ...,
        breaker: CircuitBreaker | Literal["default"] | None = ...,
        max_uncommitted: int = ...,
    ) -> None: ...
    async def run(
        self,
        handler: Callable[..., Coroutine[object, object, object]],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        order: Order = "key",
        batch_size: int | None = None,
        retry: Retry | int | None = None,
        dead_letter: DeadLetter | str | None = None,
        breaker: CircuitBreaker | Literal["default"] | None = "default",
        max_uncommitted: int = DEFAULT_MAX_UNCOMMITTED,
        transactions: AIOKafkaProducer[Any, Any] | None = None,
    ) -> None:
        """Await a handler for every record, many at a time, until the consumer is stopped.

        ::

            async def handle(record: ConsumerRecord) -> None:
                await database.store(record.value)

            async with AIOKafkaConsumer("orders", group_id="billing") as consumer:
                await consumer.run(handle, concurrency=500)

        A record is finished when its handler returns. With auto-commit, what is committed is the
        first offset that is not finished; what is finished behind it goes into the commit's
        metadata, and is passed over by whoever has the partition next. So after a crash only what
        handlers were at work on is processed again.

        Records of one key (of one partition) are handled one after the other, also across a
        rebalance that takes their partition away and gives it back. A rebalance waits for handlers
        that are at work on what it takes, for `rebalance_hold_ms` at most; then it cancels them.
        By default that is four minutes, of the five for which the group waits for this member.
        So does `stop`, for four fifths of its timeout. Where this call is cancelled, handlers are
        cancelled at once. A handler that was cancelled has not finished its record.

        While it goes on there are no other gets, and `max_poll_interval_ms` does not count.

        Args:
            handler: A coroutine function of a record; with `batch_size` of a list of records.
            concurrency: How many calls of it there are at a time.
            order: "key": records of one key of a partition are handled in order, and those
                without a key in none. "partition": all of a partition in order. None: in no order.
            batch_size: Give the handler lists of up to so many records, of any partitions: what is
                ready just then. If it fails, each record is tried by itself.
            retry: What is tried again, how often and when; a number: so often in all; None: nothing
                is.
            dead_letter: `DeadLetters(topic)`, or the name of a topic for that; or an async function
                that keeps a record (`DeadRecord`) with which nothing is left to try. The record is
                finished once that
                returns. If it raises, it is called again after a pause, and the record is kept.
                None: `run` ends instead, with the handler's error.
            breaker: When to pause because handlers fail one after the other, so that no dead
                letters come of a database that is down; None: never.
            max_uncommitted: How many records may be handed out and not committed. When there are
                so many, a partition is read on only up to its share. The same holds when they take
                half of `max_buffered_bytes`.
            transactions: A started producer with a transactional_id, for exactly-once processing.
                The handler then has a second argument, `outputs`: what it sends by
                `outputs.send(topic, value, key=key)` is written in one transaction with the
                offsets of its records, after it has returned. The records are finished when that
                is committed. The producer is nobody else's until `run` ends.

        Raises:
            TypeError: The handler is no coroutine function of as many arguments; another argument
                has a wrong type; or keys are to be told apart by order="key", and are not hashable.
            ValueError: An argument cannot be used.
            IllegalStateError: It is going on already, or consumer or producer are not started.
            IllegalOperation: With `transactions`: the producer has no transactional_id, or the
                consumer no group_id.
            ConsumerStoppedError: The consumer is stopped already.
            KafkaError: As a get raises it, or as a transaction does that cannot be tried again.
                Handlers at work are waited for first, so they are when a handler's own error ends
                it.
        """
        # Imported where it is used: most consumers have no use for it.
        from aiokafka_lite.consumer.processing.handling import (
            Handling,
            breaker_of,
            dead_letter_of,
            retry_of,
        )
        from aiokafka_lite.consumer.processing.run import Run

        self._engine.owner.check()
        check_handler(handler, 1 if transactions is None else 2)
        if self._config.ack_mode == "explicit":
            raise IllegalStateError(
                'run() acknowledges records itself: leave out ack_mode="explicit"'
            )
        settings = Handling(
            concurrency=concurrency,
            order=order,
            batch_size=batch_size,
            max_uncommitted=max_uncommitted,
            retry=retry_of(retry),
            dead_letter=dead_letter_of(dead_letter),
            breaker=breaker_of(breaker),
        )
        _ = self._engine.running
        run = Run(
            self._state,
            self._engine.buffer,
            handler,
            settings,
            budget=self._engine.budget,
            hold_s=self._config.handler_hold_s,
            end_s=self._config.rebalance_hold_s,
            rng=_rng,
            deliver=self._engine.deliver,
        )
        outbox = None if transactions is None else self._new_outbox(transactions, run)
        # What is kept at the end of all is still finished.
        with run.opened():
            async with self._writing(outbox, run), self._keeping(settings.dead_letter, run, outbox):
                await run.run()

    def _new_outbox(self, producer: AIOKafkaProducer[Any, Any], run: Run) -> Outbox:
        from aiokafka_lite.consumer.processing.outbox import GivenProducer, Outbox

        if self._group_id is None:
            raise IllegalOperation(
                "run(transactions=…) commits the group's offsets in the transactions: the consumer "
                "needs a group_id"
            )
        offsets = self._engine.in_transactions()
        return Outbox(GivenProducer(producer), offsets, run.finish, _rng, run)

    @asynccontextmanager
    async def _writing(self, outbox: Outbox | None, run: Run) -> AsyncIterator[None]:
        """Have handlers' outputs written in transactions, while records are handled."""
        if outbox is None:
            yield
            return
        await outbox.open()
        try:
            run.write_into(outbox)
            yield
        finally:
            await outbox.close(self._config.rebalance_hold_s)

    @asynccontextmanager
    async def _keeping(
        self, dead_letter: DeadLetter | None, run: Run, outbox: Outbox | None
    ) -> AsyncIterator[None]:
        """Keep what dead letters need, while records are handled."""
        from aiokafka_lite.consumer.processing.handling import DeadLetterKeeper, RunContext

        keeper = dead_letter if isinstance(dead_letter, DeadLetterKeeper) else None
        if keeper is not None:
            commits = self._group_id is not None and self._config.enable_auto_commit
            offsets = self._engine.in_transactions() if commits else None
            await keeper.open(RunContext(self._config, self._group_id, offsets, run.finish, outbox))
        delivery = self._delivery
        try:
            if dead_letter is not None and delivery.has_deserializers:
                delivery.keeps_serialized = True
                for cursor in self._state.assignment.values():
                    self._state.refetch(cursor)  # what is buffered was deserialised without
            yield
        finally:
            delivery.keeps_serialized = False
            if keeper is not None:
                await keeper.close()

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
        self._engine.life.raise_if_over()
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

            self._arrow_gets = ArrowGets(self._engine.buffer, self._config.max_poll_records)
        return self._arrow_gets

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[KT, VT]]:
        self._engine.owner.check()
        self._engine.life.raise_if_over()
        self._choose_way()
        self._state.note_reader(iterates=True)
        return self

    def _choose_way(self) -> None:
        """Look which way records come to who iterates."""
        self._is_by_getone = goes_by_getone(self, _ORIGINAL)
        self._iterate_over(NO_RECORDS if self._is_by_getone else self._ready.cursor)

    def _prepare_gets(self) -> None:
        """Look what others have wrapped around the gets."""
        wrap_as_aiokafkas(self, AIOKafkaConsumer, _ORIGINAL)
        self._wrapped_poll = wrap_as_getmany(self._poll, type(self))
        self._wrapped_take = wrap_as_getmany(self._take_batch, type(self))
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
        """Go on behind a record that is too large; raise it where that is not known, or asked."""
        bad = self._delivery.bad
        if error.tp is None or error.next_offset is None or bad.handler is not None:
            raise error
        bad.skipped(error)
        self._state.skip_to(self._state.partition(error.tp), error.next_offset)

    # --- Positions ------------------------------------------------------------------------
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Start the next get of the partition at `offset`; no request is sent.

        What was fetched before is dropped, also what is on its way. For auto-commit the records in
        hand stay unprocessed until the next get, and only then are those passed over done, too.
        While a rebalance is under way a new position holds if the partition comes back with the
        assignment that ends it; so do those of the other seeks. Where it goes to another member,
        that one starts at what is committed.

        Raises:
            ValueError: The offset is not an int, or negative.
            TypeError: `partition` is not a TopicPartition.
            IllegalStateError: It is not assigned.
            ConsumerStoppedError: The consumer is stopped, or is being stopped.
        """
        self._check_change()
        offset = check_offset(offset)
        self._state.seek(self._state.partition(check_partition(partition)), offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Move to the first offset of the partitions, of all assigned if none is named.

        Returns:
            False if the offsets were not found within request_timeout_ms; the search goes on.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned.
        """
        return await self._reset(partitions, EARLIEST_TIMESTAMP)

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Move behind the last record of the partitions; otherwise as `seek_to_beginning`."""
        return await self._reset(partitions, LATEST_TIMESTAMP)

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
        # Looked up each time: after a rebalance it is another state of the same partition.
        state = self._state.assignment.get(tp)
        return state is not None and state.position is None

    async def seek_to_committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, int | None]:
        """Move to the committed offsets; partitions without one stay where they are.

        Records that `run` or `ack_mode="explicit"` has finished behind a committed offset are
        passed over, as after a restart.

        Returns:
            The committed offset of each partition, None where there is none.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned.
            IllegalOperation: The consumer has no group.
        """
        self._engine.owner.check()
        states = self._states(partitions)
        self._require_group()
        with self._engine.until_stopped() as running:
            committed = await running.commits.committed_at_rest([state.tp for state in states])
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
        """Return the offset of the next record to be handed out, waiting until it is known.

        Cancelling it leaves nothing behind.

        Args:
            partition: When it is the only one, its offset alone is returned, as by aiokafka.
            others: With more of them, the result is a dict by partition, as of one moment.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned, or was taken away meanwhile.
            KafkaTimeoutError: They were not all found within request_timeout_ms.
            KafkaError: What keeps one from being found.
        """
        self._engine.owner.check()
        self._gate.check()
        wanted = check_partitions((partition, *others))
        for tp in wanted:
            self._state.partition(tp)

        def are_known() -> bool:
            missing = [tp for tp in wanted if self._awaits_position(tp)]
            for tp in missing:
                if error := self._engine.buffer.sticky_error(self._state.partition(tp)):
                    raise error.with_traceback(None)
            return not missing

        await self._engine.wait_until(are_known, self._request_deadline())
        self._state.settle()
        positions: dict[TopicPartition, int] = {}
        for tp in wanted:
            state = self._state.partition(tp)
            if state.position is None:
                raise KafkaTimeoutError(
                    f"the position of {tp} was not found within "
                    f"{self._config.request_timeout_ms} ms: {state.retry_reason or 'no answer'}"
                ).at(tp)
            positions[tp] = state.position
        return positions if others else positions[wanted[0]]

    # --- Commits --------------------------------------------------------------------------
    async def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commit offsets, by default the positions: all that was handed out.

        Args:
            offsets: For each partition the next offset to read, or that and a string.

        Raises:
            IllegalOperation: The consumer has no group; or an open transaction decides on records
                before an offset that is named, or has sent offsets of its partition.
            IllegalStateError: A partition is not assigned, or nothing is subscribed or assigned.
            CommitFailedError: The group has given the partitions to another member. Or the consumer
                is stopped: a commit counts until `stop` has left the group. Or the offset
                is of records of an earlier assignment: it was handed out before another member may
                have had the partition, and neither handed out nor sought since. (To go there all
                the same, seek first.)
            FencedInstanceIdError: Another consumer uses this one's `group_instance_id`, and has
                taken its place: that is final.
            ValueError, TypeError: `offsets` has another shape.
            KafkaError: The broker refused, or could not be reached in time.
        """
        self._engine.owner.check()
        self._require_group()
        if self._state.mode is SubscriptionMode.NONE:
            raise IllegalStateError(
                "Not subscribed to any topics: subscribe to topics or "
                "assign partitions before a commit"
            )
        await self._engine.commit(offsets)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of the assigned partitions: what `commit()` commits.

        While a transaction is open `commit()` stops before the first record that it decides on.
        Partitions whose position is not known yet are left out.

        Raises:
            WrongLoopError: It is used elsewhere than on its event loop.
        """
        self._engine.owner.check_now()
        return self._state.handed_out_offsets()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return as whom the assigned partitions are held.

        A producer shows it to the group when it commits offsets in a transaction (KIP-447): then
        the group refuses what a member commits that has lost its partitions meanwhile.

        Raises:
            IllegalOperation: The consumer has no group.
            CommitFailedError: The partitions are lost: the group has gone on without this member.
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: It was not started.
        """
        self._engine.owner.check_now()
        self._require_group()
        return self._engine.in_transactions().group()

    def delivery(self) -> DeliveryToCommit:
        """Return all records that the application has in hand, as a value.

        That is what `tx.commit_offsets(consumer)` commits: all that was returned by now, or with
        ack_mode="explicit" all that is not acknowledged, or in a handler of `run` its own records.
        It stays bound to the assignment under which the records were returned.

        Raises:
            IllegalOperation: The consumer has no group; or `run` goes on, and this is no handler.
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: It was not started.
        """
        self._engine.owner.check_now()
        self._require_group()
        return self._engine.deliver(self._state.delivery())

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
        """Return what the group has committed of partitions, assigned or not, in one round trip.

        Args:
            partition: When it is the only one, its offset alone is returned, as by aiokafka.
            others: With more of them, the result is a dict by partition.
            metadata: Return `OffsetAndMetadata` instead of the offsets.

        Returns:
            None for a partition, where nothing is committed.

        Raises:
            IllegalOperation: The consumer has no group.
            TypeError: One is not a TopicPartition.
            KafkaError: The coordinator refused, or could not be reached in time.
        """
        self._engine.owner.check()
        self._require_group()
        wanted = check_partitions((partition, *others))
        with self._engine.until_stopped() as running:
            found = await running.commits.committed(wanted)
        answers: dict[TopicPartition, int | OffsetAndMetadata | None] = {}
        for tp in wanted:
            offset = found[tp]
            answers[tp] = offset if metadata or offset is None else offset.offset
        return answers if others else answers[wanted[0]]

    def _require_group(self) -> str:
        if self._group_id is None:
            raise IllegalOperation("offsets are committed in a group: give a group_id")
        return self._group_id

    # --- Pauses ---------------------------------------------------------------------------
    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out and fetch no more of the partitions; what is buffered stays.

        A rebalance ends it, as with Java's client, also where the partition comes back: pause in
        `on_partitions_assigned`. A pause made while the rebalance is under way stays.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned.
            ConsumerStoppedError: The consumer is stopped, or is being stopped.
        """
        self._check_change()
        for tp in check_partitions(partitions, NAMED_TUPLES):
            self._state.pause(self._state.partition(tp))

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand out and fetch the partitions again; raises as `pause` does."""
        self._check_change()
        for tp in check_partitions(partitions, NAMED_TUPLES):
            self._state.resume(self._state.partition(tp))

    def _check_change(self) -> None:
        """Check that what is read, and from where, can be changed now and will still count."""
        self._engine.owner.check_now()
        self._engine.life.raise_if_over()

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        return {tp for tp, state in self._state.assignment.items() if state.is_paused}

    # --- What the last answers said -------------------------------------------------------
    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the offset behind the last record, as last heard; None if never.

        Raises:
            AssertionError: The partition is not assigned.
        """
        return self._assigned(partition).high_watermark

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the end of what no open transaction holds back, as last heard.

        None if never, or by brokers before Kafka 0.11. Brokers say it at either isolation level.

        Raises:
            AssertionError: The partition is not assigned.
        """
        return self._assigned(partition).last_stable_offset

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """Return when a broker last answered about the partition, in ms since the epoch.

        Raises:
            AssertionError: The partition is not assigned.
        """
        answered_at = self._assigned(partition).last_fetch_at
        if answered_at is None:
            return None
        return int((time.time() - (self._loop.time() - answered_at)) * 1000)

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
            KafkaTimeoutError: They were not all found within request_timeout_ms; names those
                that were not, and the node that has not answered.
        """
        return await self._bounds(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset behind the last record, or the last stable in read_committed.

        Raises as `beginning_offsets` does.
        """
        return await self._bounds(partitions, LATEST_TIMESTAMP)

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
        """Return for each partition the first record at or after a time (ms since the epoch).

        Raises:
            ValueError: A time is negative.
            KafkaTimeoutError: They were not all found within request_timeout_ms.
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
        with self._engine.until_stopped() as running:
            return await self._look_up(running, timestamps)

    async def _look_up(
        self, running: Running, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset]:
        deadline = self._request_deadline()
        cluster = running.cluster
        with cluster.watching({tp.topic for tp in timestamps}):
            if unknown := {tp.topic for tp in timestamps if cluster.view.leader(tp) is None}:
                try:
                    async with timeout_at(deadline):
                        await cluster.refresh(unknown)
                except asyncio.TimeoutError:
                    raise KafkaTimeoutError("no metadata was received in time") from None
            return await running.lookup.find(timestamps, deadline)

    async def topics(self) -> set[str]:
        """Return the names of all topics that may be read, internal ones left out."""
        self._engine.owner.check()
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        with self._engine.until_stopped() as running:
            response = await running.cluster.request_any(request)
        return {
            topic.name
            for topic in response.topics
            if topic.name and not topic.is_internal and not topic.error_code
        }

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic, None if it is not in the metadata."""
        partitions = self._engine.running.cluster.view.partitions_for_topic(topic)
        return None if partitions is None else set(partitions)

    # --- For operators --------------------------------------------------------------------
    def events(self, max_buffered: int = DEFAULT_BUFFERED_EVENTS) -> EventSubscription:
        """Return an iterator of what happens to the consumer from now on: `aiokafka_lite.events`.

        ::

            async for event in consumer.events():
                print(event.name, event)

        May be called before `start`, and any number of times: every iterator gets all events, and
        none holds up the consumer. The iteration ends when the consumer is stopped. Waiting for
        an event may be cancelled; no event is lost by it.

        Args:
            max_buffered: How many events wait for this iterator. When there are more, the oldest
                are dropped, and an event says how many.

        Raises:
            ValueError: `max_buffered` is not positive.
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        self._engine.owner.check_now()
        return self._state.events.subscribe(max_buffered)

    def health(self) -> Health:
        """Return a verdict on the consumer, with reasons that say what to do.

        Works at any time, also before `start`, while it runs and after `stop`. It asks nobody,
        so it may be called as often as a probe likes: some microseconds for each partition that is
        not being fetched just now, less for the others. A thread gets it by
        `loop.call_soon_threadsafe` or `asyncio.run_coroutine_threadsafe`.

        Raises:
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        from aiokafka_lite.consumer.monitoring.health import examine

        self._engine.owner.check_now()

        return examine(self._engine, self._loop.time())

    def explain(self, partition: TopicPartition) -> str:
        """Return a sentence that says why nothing comes of a partition just now.

        While `run` goes on, another names the record that holds the partition's commit back.

        Works at any time and for any partition, assigned or not; asks nobody.

        Raises:
            TypeError: It is not a TopicPartition.
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        from aiokafka_lite.consumer.monitoring.diagnosis import explain

        self._engine.owner.check_now()
        partition = check_partition(partition)
        self._state.settle()
        return explain(self._engine, partition, self._loop.time())

    def metrics(self) -> dict[str, object]:
        """Return the consumer's numbers, as values that `json.dumps` takes.

        Names ending in _total count since the consumer was made; docs/monitoring.md lists all.
        "partitions" and "nodes" are lists of dicts. After a stop the counters stay as they were.

        Raises:
            WrongLoopError: Another loop runs, or this is another thread.
            ForkedError: It was made in another process.
        """
        from aiokafka_lite.consumer.monitoring.metrics import measure

        self._engine.owner.check_now()

        return measure(self._engine, self._loop.time())

    # --- Private names of aiokafka's that programs use (aiokafka_names.py) ------------------
    @property
    def _closed(self) -> bool:
        return self._is_written_off or self._engine.life.is_over

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
        # As in aiokafka there is none before the start.
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
    {
        "getone": AIOKafkaConsumer.getone,
        "getmany": AIOKafkaConsumer.getmany,
        "__anext__": AIOKafkaConsumer.__anext__,
    }
)


def _warn_deprecated(message: str) -> None:
    warnings.warn(message, DeprecationWarning, stacklevel=5)  # beyond `construct`


class _LentListener(ConsumerRebalanceListener):
    """Passes calls on to a listener, which often knows the consumer, without keeping it alive."""

    def __init__(self, listener: ConsumerRebalanceListener) -> None:
        self._listener = weakref.ref(listener)

    @override
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Awaitable[None] | None:
        listener = self._listener()
        return None if listener is None else listener.on_partitions_revoked(revoked)

    @override
    def on_partitions_lost(self, lost: set[TopicPartition]) -> Awaitable[None] | None:
        listener = self._listener()
        return None if listener is None else listener.on_partitions_lost(lost)

    @override
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> Awaitable[None] | None:
        listener = self._listener()
        return None if listener is None else listener.on_partitions_assigned(assigned)
