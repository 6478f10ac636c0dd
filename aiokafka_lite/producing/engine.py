"""The parts of a producer between start and stop, and the error when it cannot send."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from aiokafka_lite._chance import Chance
from aiokafka_lite._compat import Self, override, timeout
from aiokafka_lite._tasks import LoopEndedError, TaskScope, own_copy
from aiokafka_lite._virtual import chance_for
from aiokafka_lite.client.arguments import authenticator, check_text
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import DEFAULT_MAX_FRAME_BYTES
from aiokafka_lite.client.life import Life, Stage
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.errors import (
    ForkedError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    ProducerClosed,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.producing.accumulator import Accumulator
from aiokafka_lite.producing.batch import Output, ProducerBatch, ProducerIdAndEpoch, Tell
from aiokafka_lite.producing.config import AnyProducerConfig
from aiokafka_lite.producing.partition_queue import CurrentIdentity, PartitionQueue
from aiokafka_lite.producing.sender import BatchSender, is_fatal
from aiokafka_lite.producing.transactions import (
    ABOUT_PRODUCER,
    ProducerTransaction,
    Transactions,
)
from aiokafka_lite.protocol.messages.transactions import InitProducerIdRequest
from aiokafka_lite.structs import RecordMetadata

log = logging.getLogger(__name__)

# InitProducerId has a field for it also without a transaction.
NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1


class ProducerLife(Life["ProducerEngine"]):
    """`accumulator` is the entry of records, None while the producer takes no records."""

    kind = "producer"
    started_twice = IllegalStateError
    stopped_error = ProducerClosed

    def __init__(
        self,
        config: AnyProducerConfig,
        rng: Chance,
        loop: asyncio.AbstractEventLoop,
        tell: Tell | None = None,
    ) -> None:
        super().__init__(loop, partial(ProducerEngine, config, rng, self, tell))
        self.accumulator: Accumulator | None = None

    @override
    def _entered(self, stage: Stage) -> None:
        if (engine := self.parts) is not None:
            self.open_or_close()
            if stage in (Stage.FINISHING, Stage.ABANDONED) and engine.on_end is not None:
                engine.on_end()

    def open_or_close(self) -> None:
        """Take records, or take no more, after a change that decides about it."""
        engine = self.current if self.stage is Stage.RUNNING else None
        if engine is not None and engine.takes_records:
            self.accumulator = engine.accumulator
        else:
            self.accumulator = None

    @property
    def fatal(self) -> KafkaError | None:
        """The error after which every call fails."""
        return self.error if isinstance(self.error, KafkaError) else None

    def raise_if_fatal(self) -> None:
        if self.error is not None:
            raise own_copy(self.error)

    @override
    def refusal(self) -> BaseException:
        if self.is_stopping:
            return self.stopped()
        if self.error is not None:
            return own_copy(self.error)
        if self.stage is Stage.RUNNING and (refusal := self.running.refusal()) is not None:
            return refusal
        return self.not_started()

    def forked(self) -> None:
        """Take and send no records in a forked child, without I/O and log lines."""
        error = ForkedError(
            "this forked process does not send the record, because only the parent process sends it"
        )
        self.die(error)
        if self.parts is not None:
            self.parts.fail_records(error)


class ProducerEngine:
    """The parts that need brokers; `on_end` is called when a lent producer fails or is stopped."""

    def __init__(
        self,
        config: AnyProducerConfig,
        rng: Chance,
        life: ProducerLife,
        tell: Tell | None,
    ) -> None:
        self.config = config
        self.life = life
        # The caller that has borrowed the transactions (lease.py).
        self._borrower: str | None = None
        self.on_end: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._rng = rng
        self._scope = TaskScope("produce", on_failure=self._task_failed)
        client = config.client_config(max_frame_bytes=DEFAULT_MAX_FRAME_BYTES)
        mechanism = config.mechanism(config.sasl_oauth_token_provider, rng)
        self.cluster = Cluster(
            client, scope=self._scope, rng=rng, authenticate=authenticator(mechanism, client)
        )
        self.identity = CurrentIdentity(self._renew_soon)
        self.sender = BatchSender(
            config,
            self.cluster,
            self.identity,
            self._scope,
            rng,
            admit=self._admit,
            on_failed=self._batch_failed,
        )
        self.accumulator = Accumulator(
            config,
            self._loop,
            rng,
            wake=self.sender.wake,
            give_up=self.sender.expired,
            why_unsent=self.sender.why_unsent,
            on_loss=self._records_lost,
            tell=tell,
        )
        self.sender.serve(self.accumulator)
        self.transactions = self._make_transactions()
        # In this order: partitions are there before they have leaders.
        for each in (self.accumulator, self.sender):
            self.cluster.add_listener(each.view_changed, on_topics=each.view_changed)

    def _make_transactions(self) -> Transactions | None:
        if self.config.transactional_id is None:
            return None
        return Transactions(
            self.config,
            self.config.transactional_id,
            self.cluster,
            self.identity,
            self.accumulator,
            self.sender,
            self._scope,
            self._rng,
            on_change=self.life.open_or_close,
            fail=self.fail,
        )

    @property
    def transaction(self) -> ProducerTransaction | None:
        return None if self.transactions is None else self.transactions.current

    # --- Start and stop --------------------------------------------------------------------
    async def connect_and_start(self) -> None:
        deadline = self._loop.time() + self.config.request_timeout_s
        await self.cluster.start()
        if self.transactions is None:
            await self._renew(deadline)
        else:
            await self.transactions.start(deadline)

    @property
    def takes_records(self) -> bool:
        transactions = self.transactions
        return self._borrower is None and (transactions is None or transactions.takes_records)

    def lend_to(self, borrower: str | None) -> None:
        """None ends the reservation."""
        self._borrower = borrower
        self.on_end = None

    @property
    def ended(self) -> KafkaError | None:
        if self.life.fatal is None and self.life.stage is not Stage.RUNNING:
            return ProducerClosed("the producer was stopped")
        return self.life.fatal

    def raise_if_lent(self) -> None:
        if self._borrower is not None:
            raise self._lent()

    def _lent(self) -> IllegalOperation:
        return IllegalOperation(
            f"the application cannot use this producer now, because {self._borrower}"
        )

    async def finish(self, timeout_s: float | None) -> None:
        """Wait until each record has an outcome, within the timeout."""
        try:
            async with timeout(timeout_s):
                if self.transactions is not None:
                    # A commit that is under way may leave a transaction that has to be aborted.
                    while (ending := self.transactions.ending) or self.transactions.is_open:
                        await asyncio.wait([ending or self.transactions.begin_abort()])
                await self.accumulator.flush()
        except asyncio.TimeoutError:
            pass

    async def stop(self, deadline: float) -> None:
        self._abort(
            ProducerClosed(
                "the producer was stopped before the record was acknowledged. The broker may have "
                "written the record"
            )
        )
        await self.cluster.close()
        await self._scope.close()

    def give_up(self) -> None:
        self._abort(ProducerClosed("the producer was garbage-collected without stop()"))

    def drop(self) -> None:
        self._scope.drop_all()
        self.cluster.pool.hang_up()

    def _abort(self, error: KafkaError) -> None:
        """Stop without waiting. Unacknowledged records fail with the error."""
        self.fail_records(error)
        self.accumulator.close()
        self._scope.cancel_all()
        if self.transactions is not None:
            self.transactions.settle()
        self.cluster.abort()

    def _task_failed(self, error: BaseException) -> None:
        failure: KafkaError
        if isinstance(error, LoopEndedError):
            failure = ProducerClosed("the event loop ended before producer.stop() was called")
        else:
            failure = KafkaError(
                f"a bug in aiokafka_lite: a background task of the producer failed with {error!r}"
            )
        failure.__cause__ = error
        self.fail(failure)

    def fail(self, error: KafkaError) -> None:
        if self.life.die(error):
            if not isinstance(error, ProducerClosed):
                log.error("the producer has failed permanently: %s", error)
            elif not self.accumulator.is_empty:
                log.warning("%s: unsent records of this producer may be lost", error)
            self.fail_records(error)
            if self.transactions is not None:
                self.transactions.fail(error)
            if self.on_end is not None:
                self.on_end()

    def fail_records(self, error: KafkaError) -> None:
        self.sender.close()
        self.accumulator.fail_all(error)

    def refusal(self) -> BaseException | None:
        if self._borrower is not None:
            return self._lent()
        return None if self.transactions is None else self.transactions.refusal()

    # --- Producer ids ----------------------------------------------------------------------
    def _renew_soon(self) -> None:
        deadline = self._loop.time() + self.config.delivery_timeout_s
        self._scope.spawn(self._renew_or_fail(deadline), name="new producer id")

    async def _renew_or_fail(self, deadline: float) -> None:
        try:
            await self._renew(deadline)
        except KafkaError as error:
            self.fail(error)

    async def _renew(self, deadline: float) -> None:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS
        )
        started_at = self._loop.time()
        backoff = Backoff(self.config.retry_backoff_s, LONGEST_BACKOFF_S, self._rng)
        while True:
            try:
                answer = await self.cluster.request_any(request)
                if answer.error_code != NoError.errno:
                    error_class = for_code(answer.error_code)
                    raise error_class(
                        f"the broker assigned no producer id: {error_class.description}"
                    )
                break
            except KafkaError as error:
                delay_s = backoff.next_delay_s()
                if not error.retriable:
                    raise
                if self._loop.time() + delay_s >= deadline:
                    raise KafkaTimeoutError(
                        "no broker assigned a producer id within "
                        f"{self._loop.time() - started_at:.1f} s. The last error was: {error}"
                    ) from error
            await asyncio.sleep(delay_s)
        self.identity.renew(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
        self.sender.wake_all(self.accumulator.queues())

    # --- Callbacks of the sender ---------------------------------------------------------------
    def _admit(self, queue: PartitionQueue) -> bool:
        return self.transactions is None or self.transactions.admit(queue)

    def _batch_failed(self, batch: ProducerBatch, error: KafkaError) -> KafkaError:
        if self.transactions is not None and isinstance(error, ABOUT_PRODUCER):
            error = self.transactions.explained(error, "sending a record in")
        if is_fatal(error):
            self.fail(error)
        elif self.transactions is not None:
            self.transactions.spoil(error)
        return error

    def _records_lost(self, error: KafkaError) -> bool:
        """Make the transaction of written records abort; False if it is ending."""
        if self.transactions is None or not self.transactions.takes_records:
            return False
        self.transactions.spoil(error)
        return True

    # --- Topics ----------------------------------------------------------------------------
    async def append(
        self, output: Output, must_wait: Callable[[], object]
    ) -> asyncio.Future[RecordMetadata]:
        """Append a record as `append_in_time`. `must_wait` may raise instead, before each try."""

        def append(*, is_in_turn: bool) -> asyncio.Future[RecordMetadata] | None:
            if must_wait():
                return None
            return self.accumulator.append(*output, is_in_turn=is_in_turn)

        return await self.append_in_time(append, output.topic, output.partition, output.size)

    async def append_in_time(
        self,
        append: Callable[..., asyncio.Future[RecordMetadata] | None],
        topic: str,
        partition: int | None,
        size_bytes: int,
    ) -> asyncio.Future[RecordMetadata]:
        """Append a record or a batch, once the metadata have its topic and there is room.

        Raises the errors of `append` and `until_known`, KafkaTimeoutError, and IllegalArgumentError
        for a record that is larger than the buffer memory.
        """
        limit_s = self.config.request_timeout_s
        deadline = self._loop.time() + limit_s
        if not self.accumulator.has(topic, partition):
            await self.until_known(topic, partition, limit_s)
        self.accumulator.raise_if_never_fits(size_bytes)
        if (future := append(is_in_turn=False)) is not None:
            return future

        def append_in_turn() -> asyncio.Future[RecordMetadata] | None:
            future = append(is_in_turn=True)
            if future is None and not self.accumulator.has(topic, partition):
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted, or recreated with fewer partitions, while the "
                    "record waited for free space in buffer_memory"
                )
            return future

        return await self.accumulator.in_turn(append_in_turn, deadline)

    async def partition_count(self, topic: str, limit_s: float = math.inf) -> int:
        if not self.accumulator.has(topic, None):
            await self.until_known(topic, None, min(limit_s, self.config.request_timeout_s))
        return self.accumulator.partition_count(topic)

    async def until_known(self, topic: str, partition: int | None, limit_s: float) -> None:
        """Wait until the metadata have a topic, and the partition if given.

        Raises:
            TypeError, ValueError: Requests cannot name the topic.
            ProducerClosed: The producer was stopped during the wait.
            UnknownTopicOrPartitionError: The topic is missing after the limit, or the partition
                after one refresh.
            KafkaTimeoutError: No broker returned a leader, or that there is no topic.
            KafkaError: The client may not write to the topic, or its name is not allowed.
        """
        check_text("a topic's name", topic)
        accumulator = self.accumulator
        backoff = Backoff(self.config.retry_backoff_s, LONGEST_BACKOFF_S, self._rng)
        is_missing = False
        try:
            async with timeout(limit_s):
                while True:
                    accumulator.add_topic(topic)
                    self.cluster.watch_another(self, topic)
                    view = await self._refreshed(topic)
                    found = None if view is None else view.topics.get(topic)
                    error = None if found is None else found.error
                    if view is not None:
                        is_missing = found is None or error is UnknownTopicOrPartitionError
                    if error is not None and not error.retriable:
                        raise error(f"cannot send to topic {topic!r}: {error.description}")
                    if accumulator.is_known(topic):
                        break
                    await asyncio.sleep(backoff.next_delay_s())
        except asyncio.TimeoutError:
            limit = f"{limit_s:g} s"
            if limit_s == self.config.request_timeout_s:
                limit = f"request_timeout_ms={self.config.request_timeout_ms}"
            if not is_missing:
                raise KafkaTimeoutError(
                    f"brokers did not return a leader of topic {topic!r} within {limit}: check the "
                    "brokers"
                ) from None
            if unknown := self.cluster.unknown_topics.text([topic]):
                limit += f" ({unknown})"
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} was not found within {limit}: create the topic, or "
                "set auto.create.topics.enable=true on the brokers"
            ) from None
        except KafkaError as error:
            if self.life.stage is not Stage.RUNNING and self.life.fatal is None:
                raise ProducerClosed("the producer was stopped during the call") from error
            raise
        finally:
            if not accumulator.is_known(topic) and accumulator.drop_topic(topic):
                self.cluster.unwatch(self, topic)
        count = accumulator.partition_count(topic)
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has no partition {partition}: its highest partition number is "
                f"{count - 1}"
            )

    async def _refreshed(self, topic: str) -> ClusterView | None:
        try:
            return await self.cluster.refresh([topic])
        except KafkaError as error:
            if not error.retriable:
                raise
            return None


# The size of unacknowledged records, in bytes, at which `send` waits. Less than buffer_memory,
# which limits the size of one record here: more records would only age behind a slow connection.
MOST_WAITING_BYTES: Final = 2 << 20


class LostRecords(NamedTuple):
    """Records that were not acknowledged because of one error, with their numbers from 1."""

    numbers: Sequence[int]
    error: KafkaError

    @property
    def at_fault(self) -> Sequence[int]:
        """The records that the broker names in its error (KIP-467), or all if it names none."""
        return [self.numbers[index] for index in self.error.batch_indexes] or self.numbers


class BulkProducer:
    """Writes records like `AIOKafkaProducer`, and numbers them in the order of `send`.

    The config has no transactional id. `on_loss` is called when records are not acknowledged.
    """

    def __init__(self, config: AnyProducerConfig, on_loss: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        chance = chance_for(config.seed, config.chance_name, loop)
        self._life = ProducerLife(config, chance, loop, self._tell)
        self._on_loss = on_loss
        self.acknowledged_count = 0
        self.losses: list[LostRecords] = []

    async def __aenter__(self) -> Self:
        await self._life.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, timeout: float | None = None) -> None:
        """Send buffered records, and wait up to a timeout, or `delivery_timeout_ms`. Idempotent."""
        await self._life.stop(timeout)

    def send_nowait(self, output: Output) -> bool:
        """Put a record into a batch. Return False if the record has to wait (`send`)."""
        accumulator = self._life.accumulator
        return (
            accumulator is not None
            and accumulator.used_bytes < MOST_WAITING_BYTES
            and accumulator.append(*output) is not None
        )

    async def send(self, output: Output) -> None:
        """Put a record into a batch once there is room. Raises as `AIOKafkaProducer.send`."""
        engine = self._life.running

        def must_wait() -> bool:
            self._life.raise_if_fatal()
            return engine.accumulator.used_bytes >= MOST_WAITING_BYTES

        await engine.append(output, must_wait)

    def _tell(self, numbers: Sequence[int], outcome: RecordMetadata | KafkaError) -> None:
        if isinstance(outcome, RecordMetadata):
            self.acknowledged_count += len(numbers)
        elif numbers:
            self.losses.append(LostRecords(numbers, outcome))
            self._on_loss()
