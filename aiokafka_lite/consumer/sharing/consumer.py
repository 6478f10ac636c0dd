"""AIOKafkaShareConsumer: the public calls; the engine and its parts implement them."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Literal, cast

from aiokafka_lite._arguments import NUMBER
from aiokafka_lite._compat import KT, VT, Self
from aiokafka_lite._settings import takes_arguments_of
from aiokafka_lite._virtual import chance_for
from aiokafka_lite.client.arguments import check_partition
from aiokafka_lite.client.life import StartableClient
from aiokafka_lite.consumer.buffer.decode import make_delivery
from aiokafka_lite.consumer.caller import running_loop
from aiokafka_lite.consumer.config import check_max_records, check_topics, seconds
from aiokafka_lite.consumer.events import DEFAULT_BUFFERED_EVENTS, Events
from aiokafka_lite.consumer.monitoring.diagnosis import words_of
from aiokafka_lite.consumer.sharing.config import ShareConfig, check_lease
from aiokafka_lite.consumer.sharing.life import ShareEngine
from aiokafka_lite.consumer.sharing.monitoring import ShareHealth, examine, explain, measure
from aiokafka_lite.consumer.sharing.reads import ShareReads
from aiokafka_lite.errors import ConsumerStoppedError, DeserializationError, IllegalStateError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.handlers import ByTopic, Middleware, Router
    from aiokafka_lite.consumer.processing.handling import (
        ByError,
        CircuitBreaker,
        DeadLetter,
        Handling,
        Retry,
    )
    from aiokafka_lite.consumer.processing.limits import Concurrency
    from aiokafka_lite.consumer.sharing.leases import LeasedRecords
    from aiokafka_lite.consumer.sharing.run import OnLeaseLost, ShareRun
    from aiokafka_lite.events import EventSubscription

DEFAULT_STOP_TIMEOUT_S: Final = 10.0
# The concurrent handler calls of `run`.
DEFAULT_CONCURRENCY: Final = 100


class AIOKafkaShareConsumer(StartableClient, Generic[KT, VT]):
    """Reads records of a share group (KIP-932): a queue, whose members share all partitions.

    ::

        async with AIOKafkaShareConsumer("jobs", group_id="ocr", bootstrap_servers="host") as c:
            await c.run(handle, concurrency=64)

    The broker leases each record to one member, and delivers it again if the lease ends without an
    acknowledgement. This consumer leases as many records as handlers are free, or as reads ask
    for, and renews the leases (KIP-1222) until the records are settled. A connection that is lost
    ends the leases of its records: other members may process them, too. Records are in no order.

    Needs Kafka 4.2 or later. The group decides on the start (`share.auto.offset.reset`, by default
    latest), the isolation level, the time of a lock and the number of deliveries.

    All methods raise TypeError or ValueError for an invalid argument, WrongLoopError on another
    loop or thread, and ForkedError in a forked child. Reads raise IllegalStateError before `start`
    and without a subscription, and ConsumerStoppedError from `stop` on.

    Raises:
        TypeError: An argument of AIOKafkaConsumer has no meaning here. The message says where its
            effect is set.
        RuntimeError: No event loop is running.
        InsecureConfigError: Credentials would be sent to another machine without TLS, which
            `allow_plaintext_credentials` permits in a safe network.
    """

    @takes_arguments_of(ShareConfig)
    def __init__(self, config: ShareConfig[KT, VT]) -> None:
        topics = check_topics(config.topics)
        self._loop = running_loop()
        self._config = config
        self._source_traceback = traceback.extract_stack() if self._loop.get_debug() else None
        events = Events()
        chance = chance_for(config.seed, config.chance_name, self._loop)
        self._delivery = make_delivery(config, events)
        # Background tasks must not keep the callables alive, which often refer to the consumer.
        lent = cast("ShareConfig", config.without_callables())
        self._engine = ShareEngine(lent, events, chance)
        self._engine.topics = topics
        self._reads = ShareReads(self._engine, self._delivery)
        self._engine.use = self._reads
        self._run: ShareRun | None = None

    def __repr__(self) -> str:
        config = self._config
        return (
            f"<{type(self).__name__} of {config.client_id!r} in share group {config.group_id!r}, "
            f"{self._engine.stage.value}>"
        )

    # --- Start and stop -------------------------------------------------------------------
    async def start(self) -> None:
        """Connect and, with a subscription, join the group.

        Returns when the group has this member. The first records of a new group follow about a
        second later. A failure or a cancellation leaves no connection, and `start` may be called
        again.

        Raises:
            KafkaConnectionError: No bootstrap server could be reached.
            GroupAuthorizationFailedError: The principal may not join the group.
            UnsupportedVersionError: The broker has no share groups.
            KafkaError: The group is full, or the group id belongs to a group of another type.
            AssertionError: The consumer was started before.
        """
        self._engine.owner.check()
        await self._engine.start()

    async def stop(self, timeout: float = DEFAULT_STOP_TIMEOUT_S) -> None:
        """Settle all records, leave the group and disconnect.

        Waits for running handlers of `run` for four fifths of `timeout` at most, and then cancels
        them. Records of implicit reads are accepted. All others are released, so that other members
        get them at once.

        Returns within `timeout` seconds, even if brokers do not respond. Waiting reads raise
        ConsumerStoppedError, `getmany` returns {}, and iterations end. A second call waits for the
        first. A cancellation leaves no task and no socket, and the broker releases the records.

        Args:
            timeout: Seconds.
        """
        NUMBER.check("timeout", timeout)
        self._engine.owner.check()
        if self._run is not None:
            self._run.note_stopper()
        await self._engine.stop_as(timeout, is_clean=True)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Stop. After an exception, the records that were read last are released."""
        self._engine.owner.check()
        if isinstance(exc, Exception) and not self._engine.is_over:
            self._engine.left_by = words_of(exc)
        await self._engine.stop_as(DEFAULT_STOP_TIMEOUT_S, is_clean=exc_type is None)

    def __del__(self) -> None:
        engine: ShareEngine | None = getattr(self, "_engine", None)
        if engine is None or engine.is_over or engine.owner.is_forked or engine.has_failed_to_start:
            return
        engine.forgotten(self, self._source_traceback)

    # --- Subscription ---------------------------------------------------------------------
    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to topics, replacing a subscription. Share groups have no patterns.

        Records of other topics that were not returned yet are released.

        Raises:
            ValueError: There is no topic.
            ConsumerStoppedError: The consumer is stopped.
        """
        self._engine.owner.check_now()
        names = check_topics(topics)
        if not names:
            raise ValueError("topics must have at least one topic: to end a subscription, stop()")
        if self._engine.is_stopping:
            raise self._engine.stopped()
        self._engine.topics = names
        if self._engine.current is not None:
            self._engine.current.subscribe(names)

    def subscription(self) -> frozenset[str]:
        """Return the topics of the subscription."""
        return self._engine.topics

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that the broker has assigned, which other members may have, too."""
        parts = self._engine.parts
        return set() if parts is None or parts.leasing is None else set(parts.leasing.assignment)

    # --- Reads ----------------------------------------------------------------------------
    async def getone(self) -> ConsumerRecord[KT, VT]:
        """Return the next record, as soon as there is one.

        With ack_mode="implicit", it accepts the records that this task has read before. A
        cancellation loses no record: it stays the first one to be returned, and its lease is
        renewed. The call does not wait for acknowledgements.

        Raises:
            DeserializationError: A deserialiser refuses the record, which is released. The broker
                archives it after `share.delivery.count.limit` deliveries.
            IllegalStateError: `run` is active, or there is no subscription.
            KafkaError: The group has refused this member.
        """
        (taken,) = await self._take(1, None)
        # With deserialisers a record is of their types.
        return taken.records[0]  # type: ignore[return-value]

    async def getmany(
        self, *, max_records: int | None = None, timeout_ms: float | None = 0
    ) -> dict[TopicPartition, list[ConsumerRecord[KT, VT]]]:
        """Return the records that are there, by partition, and else wait for the first.

        Otherwise as `getone`.

        Args:
            max_records: The most records in all. None: `max_poll_records`.
            timeout_ms: How long to wait for the first record, in milliseconds. None: no limit.
        """
        check_max_records(max_records)
        self._engine.raise_if_over()
        most = self._config.max_poll_records if max_records is None else max_records
        found: dict[TopicPartition, list[ConsumerRecord[KT, VT]]] = {}
        try:
            taken = await self._take(most, None if timeout_ms is None else seconds(timeout_ms))
        except ConsumerStoppedError:  # during the call
            return found
        for each in taken:
            found.setdefault(each.range.partition.tp, []).extend(
                each.records  # type: ignore[arg-type]  # likewise
            )
        return found

    async def _take(self, most: int, timeout_s: float | None) -> list[LeasedRecords]:
        self._engine.owner.check()
        if self._run is not None:
            raise IllegalStateError("consumer.run() is active, and its handlers get all records")
        self._engine.run_failure = ""
        return await self._reads.take(most, timeout_s)

    def __aiter__(self) -> Self:
        self._engine.owner.check()
        self._engine.raise_if_over()
        return self

    async def __anext__(self) -> ConsumerRecord[KT, VT]:
        """Return the next record as `getone`. The iteration ends when the consumer is stopped."""
        try:
            return await self.getone()
        except ConsumerStoppedError:
            raise StopAsyncIteration from None

    # --- Processing -----------------------------------------------------------------------
    async def run(
        self,
        handler: Callable[..., object] | Router | ByTopic,
        *,
        concurrency: int | Concurrency = DEFAULT_CONCURRENCY,
        middleware: Sequence[Middleware] = (),
        retry: Retry | int | None = None,
        dead_letter: Literal["reject"] | DeadLetter | str | ByError | None = None,
        breaker: CircuitBreaker | Literal["default"] | None = "default",
        timeout_s: float | None = None,
        max_lease_ms: float | None = None,
        on_lease_lost: OnLeaseLost = "cancel",
        stop_on: Iterable[int] | Literal["default"] = "default",
    ) -> None:
        """Call a handler for every record, many concurrently, until the consumer is stopped.

        ::

            async def handle(record: ConsumerRecord) -> None:
                await ocr(record.value)

            async with AIOKafkaShareConsumer("jobs", group_id="ocr") as consumer:
                await consumer.run(handle, concurrency=64, retry=Retry(attempts=5))

        A record is accepted when its handler returns. Its lease is renewed while the handler runs,
        while the record waits for another attempt, and while its dead letter is written. So
        `record.delivery_count` counts processes that died or lost their connection, not attempts.
        At most `concurrency` handlers run, 1,000 more records wait for retries and dead letters,
        and only as many records are leased.

        If `stop` ends `run`, running handlers have the time of `stop` before they are cancelled,
        and ten seconds if an error ends it. If `run` is cancelled, they are cancelled at once. The
        records that are left are released.

        Args:
            handler: As of `AIOKafkaConsumer.run`: a function of a record, async or plain, a typed
                one, or several by topic. A plain function runs in one of `concurrency` threads,
                which cannot be cancelled.
            concurrency: The most concurrent calls of the handler.
            middleware: Async functions around each call of the handler, the outermost first.
            retry: Which errors are retried, how often and when. A number: that many attempts in
                all. None: one attempt. Without `topic` and `delays`.
            dead_letter: Receives the records that have no attempts left. "reject": the group
                delivers the record to no member any more. Brokers with share.version 2 may write it
                to their own dead letters (KIP-1191). Otherwise as of `AIOKafkaConsumer.run`, and
                the record is accepted. None: `run` raises the error, and releases the record.
            breaker: When to pause because handlers fail one after the other. While it is open, the
                records that have not been tried are released. None: never.
            timeout_s: The longest time of one call of the handler, in seconds. None: no limit.
            max_lease_ms: How long the lease of a record is renewed, with its retries. After that,
                the lease is lost when its lock ends. None: no limit.
            on_lease_lost: "cancel": the handler of a record whose lease is lost is cancelled. The
                CancelledError has a `LeaseLostError` as its cause. "finish": it may finish, without
                effect. In both cases the event `LeaseLost` is published.
            stop_on: Signals that stop the consumer, as of `AIOKafkaConsumer.run`.

        Raises:
            TypeError: The handler is not a function with these arguments.
            ValueError: A subscribed topic has no handler, or `stop_on` was passed outside of the
                main thread.
            InvalidValueError, DeserializationError: A value is invalid, and there is no
                `dead_letter`, to which its record would go at once.
            NoHandlerError: A record of another topic without a handler was read.
            IllegalStateError: `run` is already active, or ack_mode is "explicit".
            KafkaError: The group has refused this member.
        """
        # Imported here: most consumers have no use for it.
        from aiokafka_lite.consumer.processing.draining import Draining, signals_of
        from aiokafka_lite.consumer.processing.handlers import Handlers, kinds_of
        from aiokafka_lite.consumer.processing.handling import (
            Handling,
            breaker_of,
            dead_letter_of,
            retry_of,
        )
        from aiokafka_lite.consumer.processing.threads import HandlerThreads
        from aiokafka_lite.consumer.sharing.run import ShareRun

        self._engine.owner.check()
        handlers = Handlers(handler, 0, middleware)
        check_lease(max_lease_ms)
        if on_lease_lost not in ("cancel", "finish"):
            raise ValueError(f'on_lease_lost must be "cancel" or "finish", not {on_lease_lost!r}')
        if self._config.ack_mode == "explicit":
            raise IllegalStateError(
                'run() acknowledges records itself: leave out ack_mode="explicit"'
            )
        policy = handlers.policy(retry_of(retry))
        if policy.topic is not None:
            raise ValueError(
                "Retry(topic=…) is for AIOKafkaConsumer: in a share group, a record that waits for "
                "its retry delays no other record. Pass first_delay_ms and max_delay_ms"
            )
        if self._delivery.has_deserializers:
            policy = replace(policy, dead=(*kinds_of(policy.dead), DeserializationError))
        settings = Handling(
            concurrency=concurrency,
            order=None,
            batch_size=None,
            max_uncommitted=1,  # without effect: leases limit the records
            retry=policy,
            dead_letter=dead_letter_of(dead_letter, is_shared=True),
            breaker=breaker_of(breaker),
            timeout_s=timeout_s,
        )
        signals = signals_of(stop_on)
        _ = self._engine.running
        if self._run is not None:
            raise IllegalStateError("consumer.run() is already active")
        if topics := handlers.topics_to_subscribe(
            self._engine.topics, is_subscribed=bool(self._engine.topics)
        ):
            self.subscribe(topics)
        threads = HandlerThreads(lambda: run.is_closing)
        run = ShareRun(
            self._engine,
            self._delivery,
            handlers.compose(threads),
            settings,
            math.inf if max_lease_ms is None else max_lease_ms / 1000,
            on_lease_lost,
        )
        draining = Draining(signals, self.stop, run, is_default=stop_on == "default")
        self._engine.run_failure = ""
        try:
            async with draining, AsyncExitStack() as stack:
                stack.callback(threads.close)
                await self._keep(settings, run, stack)
                stack.enter_context(run.opened())
                self._run = run
                stack.callback(setattr, self, "_run", None)
                await run.run()
        except Exception as error:
            # As text: the error would keep the caller's frames alive, and so the consumer.
            self._engine.run_failure = words_of(error)
            raise

    async def _keep(self, settings: Handling, run: ShareRun, stack: AsyncExitStack) -> None:
        """Open the dead letters."""
        from aiokafka_lite.consumer.processing.handling import RunContext

        group_id = self._config.group_id
        context = RunContext(self._config, group_id, False, run.reads, None, None, {}, stack)
        for keeper in settings.keepers:
            await keeper.open(context)
            stack.push_async_callback(keeper.close)

    # --- For operators --------------------------------------------------------------------
    def events(self, max_buffered: int = DEFAULT_BUFFERED_EVENTS) -> EventSubscription:
        """Return the consumer's events from now on, as `AIOKafkaConsumer.events`.

        `LeaseLost` names the records that may be processed twice.
        """
        self._engine.owner.check_now()
        return self._engine.events.subscribe(max_buffered)

    def health(self) -> ShareHealth:
        """Return whether the consumer works, and the problems with their remedies."""
        self._engine.owner.check_now()
        return examine(self._engine, self._run, self._loop.time())

    def explain(self, partition: TopicPartition) -> str:
        """Return in a sentence why a partition has no records now, or what happens to its first."""
        self._engine.owner.check_now()
        return explain(self._engine, self._run, check_partition(partition), self._loop.time())

    def metrics(self) -> dict[str, object]:
        """Return metrics as plain values.

        Names that end in _total count since the consumer was created.
        """
        self._engine.owner.check_now()
        return measure(self._engine, self._run, self._loop.time())
