"""The parts of a producer between start and stop, and why nothing can be sent when that is so.

Tasks, all in one scope:

    cluster refresh            metadata (client/)
    connect to leader N        while a leader cannot be sent anything (sender.py)
    new producer id            when the epochs of one are used up
    add partitions, end        of a transaction (transactions.py)
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import LoopEndedError, TaskScope, own_copy
from aiokafka_lite.client.arguments import authenticator, check_text
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.config import DEFAULT_MAX_FRAME_BYTES
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.errors import (
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
from aiokafka_lite.producing.batch import ProducerBatch, ProducerIdAndEpoch, Tell
from aiokafka_lite.producing.config import AnyProducerConfig
from aiokafka_lite.producing.identity import CurrentIdentity
from aiokafka_lite.producing.outcomes import is_fatal
from aiokafka_lite.producing.partition_queue import PartitionQueue
from aiokafka_lite.producing.sender import BatchSender
from aiokafka_lite.producing.transactions import (
    ABOUT_PRODUCER,
    ProducerTransaction,
    Transactions,
)
from aiokafka_lite.protocol.messages.init_producer_id import InitProducerIdRequest
from aiokafka_lite.structs import RecordMetadata

log = logging.getLogger(__name__)

# Longest backoff of what is tried again here.
LONGEST_BACKOFF_S: Final = 1.0
# InitProducerId has a field for it also without a transaction.
NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1


class Intake:
    """Where records go in. It outlives engines; the engine that there is writes it.

    Attributes:
        accumulator: Takes records; None while none are taken.
    """

    __slots__ = ("accumulator",)

    def __init__(self) -> None:
        self.accumulator: Accumulator | None = None


class ProducerEngine:
    """Everything of a producer that needs brokers. Made by `start`, used up by `stop`.

    Attributes:
        config: The producer's.
        cluster: Metadata and connections.
        accumulator: Records on their way.
        sender: What takes them to brokers.
        transactions: Of a producer with a transactional id; otherwise None.
        fatal: The error after which nothing can be done any more, None as long as that is not so.
        on_end: Called when the producer can do nothing more, or is stopped, while it is lent.
    """

    def __init__(
        self,
        config: AnyProducerConfig,
        gate: Intake,
        rng: random.Random,
        *,
        tell: Tell | None = None,
    ) -> None:
        self.config = config
        self._gate = gate
        self.fatal: KafkaError | None = None
        self._is_running = False
        # Who has the transactions to itself (lease.py); None: nobody.
        self._borrower: str | None = None
        self.on_end: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._rng = rng
        self._scope = TaskScope("produce", on_failure=self._task_failed)
        client = config.client_config(max_frame_bytes=DEFAULT_MAX_FRAME_BYTES)
        mechanism = config.mechanism(config.sasl_oauth_token_provider)
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
            on_change=self._set_gate,
            fail=self.fail,
        )

    @property
    def transaction(self) -> ProducerTransaction | None:
        """The transaction that is open; None without one."""
        return None if self.transactions is None else self.transactions.current

    # --- Start and stop --------------------------------------------------------------------
    async def start(self) -> None:
        """Connect, and get a producer id.

        Raises: as Cluster.start, and KafkaError if there is no producer id.
        """
        deadline = self._loop.time() + self.config.request_timeout_s
        await self.cluster.start()
        if self.transactions is None:
            await self._renew(deadline)
        else:
            await self.transactions.start(deadline)
        self._is_running = True
        self._set_gate()

    def _set_gate(self) -> None:
        """Let records in, or keep them out."""
        is_open = self._is_running and self.fatal is None and self._borrower is None
        if self.transactions is not None:
            is_open &= self.transactions.takes_records
        self._gate.accumulator = self.accumulator if is_open else None

    def lend_to(self, borrower: str | None) -> None:
        """Let nobody but one caller have transactions; None: let all have them again."""
        self._borrower = borrower
        self.on_end = None
        self._set_gate()

    @property
    def ended(self) -> KafkaError | None:
        """The error that whoever has the transactions to itself raises; None: it may go on."""
        if self.fatal is None and not self._is_running:
            return ProducerClosed("the producer was stopped")
        return self.fatal

    def _note_end(self) -> None:
        self._is_running = False
        self._set_gate()
        if self.on_end is not None:
            self.on_end()

    def raise_if_lent(self) -> None:
        """Refuse what is only for who has the transactions to itself.

        Raises:
            IllegalOperation: Somebody has.
        """
        if self._borrower is not None:
            raise IllegalOperation(f"the producer is in use: {self._borrower}")

    async def finish(self) -> None:
        """Wait until everything sent has an outcome; a transaction that is open is aborted."""
        self._note_end()
        if self.transactions is not None:
            # A commit that is under way may leave a transaction that has to be aborted.
            while (ending := self.transactions.ending) or self.transactions.is_open:
                await asyncio.wait([ending or self.transactions.begin_abort()])
        await self.accumulator.flush()

    async def close(self) -> None:
        """End all tasks and connections; what was not acknowledged fails. Idempotent."""
        self.abort(ProducerClosed("the producer was stopped before the record was acknowledged"))
        await self.cluster.close()
        await self._scope.close()

    def abort(self, error: KafkaError) -> None:
        """Stop at once; waits for nothing."""
        self._note_end()
        self.sender.close()
        self.accumulator.fail_all(error)
        self.accumulator.close()
        self._scope.cancel_all()
        if self.transactions is not None:
            self.transactions.settle()
        self.cluster.abort()

    def _task_failed(self, error: BaseException) -> None:
        """Let nobody wait for what a task that died was to do."""
        failure: KafkaError
        if isinstance(error, LoopEndedError):
            failure = ProducerClosed("the event loop ended before the producer was stopped")
        else:
            failure = KafkaError(f"a background task of the producer died of {error!r}: a bug")
        failure.__cause__ = error
        self.fail(failure)

    def fail(self, error: KafkaError) -> None:
        """Do nothing any more: every later call raises this error."""
        if self.fatal is None:
            self.fatal = error
            self._set_gate()
            if not isinstance(error, ProducerClosed):
                log.error("the producer can do nothing any more: %s", error)
            elif not self.accumulator.is_empty:
                log.warning("%s: records that it was to send may be lost", error)
            self.sender.close()
            self.accumulator.fail_all(error)
            if self.transactions is not None:
                self.transactions.fail(error)
            if self.on_end is not None:
                self.on_end()

    def forked(self, error: KafkaError) -> None:
        """Take no records, and send none, in a forked child; without a word, and no I/O."""
        self.fatal = error
        self._set_gate()
        self.sender.close()
        self.accumulator.fail_all(error)

    def raise_if_fatal(self) -> None:
        """Raise the error after which nothing can be done any more, if there was one."""
        if self.fatal is not None:
            raise own_copy(self.fatal)

    def refusal(self) -> BaseException:
        """Return what to raise while no records are taken."""
        if self.fatal is not None:
            return own_copy(self.fatal)
        if self._is_running and self._borrower is not None:
            return IllegalOperation(f"the producer is in use: {self._borrower}")
        if self._is_running and self.transactions is not None:
            return self.transactions.refusal()
        return IllegalStateError("the producer is not started: await producer.start() first")

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
        """Get a producer id that nobody has had, for a producer without transactions."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS
        )
        backoff = Backoff(self.config.retry_backoff_s, LONGEST_BACKOFF_S, self._rng)
        while True:
            try:
                answer = await self.cluster.request_any(request)
                if answer.error_code != NoError.errno:
                    error_class = for_code(answer.error_code)
                    raise error_class(f"no producer id: {error_class.description}")
                break
            except KafkaError as error:
                delay_s = backoff.next_delay_s()
                if not error.retriable:
                    raise
                if self._loop.time() + delay_s >= deadline:
                    raise KafkaTimeoutError(f"no broker gave a producer id: {error}") from error
            await asyncio.sleep(delay_s)
        self.identity.renew(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
        self.sender.wake_all(self.accumulator.queues())

    # --- What the sender asks and tells ----------------------------------------------------
    def _admit(self, queue: PartitionQueue) -> bool:
        return self.transactions is None or self.transactions.admit(queue)

    def _batch_failed(self, batch: ProducerBatch, error: KafkaError) -> KafkaError:
        """Take note of a batch that is lost; returns what its senders are told."""
        if self.transactions is not None and isinstance(error, ABOUT_PRODUCER):
            error = self.transactions.explained(error, "sending a record in")
        if is_fatal(error):
            self.fail(error)
        elif self.transactions is not None:
            self.transactions.spoil(error)
        return error

    def _records_lost(self, error: KafkaError) -> bool:
        """Let the transaction that has written records be aborted; False if it is ending."""
        if self.transactions is None or not self.transactions.takes_records:
            return False
        self.transactions.spoil(error)
        return True

    # --- Topics ----------------------------------------------------------------------------
    async def append_in_time(
        self,
        append: Callable[..., asyncio.Future[RecordMetadata] | None],
        topic: str,
        partition: int | None,
        size_bytes: int,
    ) -> asyncio.Future[RecordMetadata]:
        """Put a record or a batch in, once its topic is known and there is room.

        Raises: what `append` raises, as `until_known`, and
            KafkaTimeoutError: There was no room in time.
            IllegalArgumentError: There never is so much room.
            UnknownTopicOrPartitionError: The partition was gone when there was.
        """
        deadline = self._loop.time() + self.config.request_timeout_s
        if not self.accumulator.has(topic, partition):
            await self.until_known(topic, partition, deadline)
        self.accumulator.raise_if_never_fits(size_bytes)
        if (future := append(is_in_turn=False)) is not None:
            return future

        def append_in_turn() -> asyncio.Future[RecordMetadata] | None:
            future = append(is_in_turn=True)
            if future is None and not self.accumulator.has(topic, partition):
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted, or recreated with fewer partitions, while the "
                    "record waited for room"
                )
            return future

        return await self.accumulator.in_turn(append_in_turn, deadline)

    async def until_known(self, topic: str, partition: int | None, deadline: float) -> None:
        """Wait until metadata have a topic, and the partition if one is named.

        Raises:
            TypeError, ValueError: Requests cannot name the topic.
            ProducerClosed: The producer was stopped meanwhile.
            UnknownTopicOrPartitionError: They do not have it at the deadline; of a topic that is
                known, a partition that is not there after metadata were asked for again.
            KafkaError: The topic cannot be written to at all: it may not be, or its name is not
                allowed.
        """
        check_text("a topic's name", topic)
        accumulator = self.accumulator
        backoff = Backoff(self.config.retry_backoff_s, LONGEST_BACKOFF_S, self._rng)
        try:
            async with timeout_at(deadline):
                while True:
                    accumulator.add_topic(topic)
                    self.cluster.watch_another(self, topic)
                    view = await self._refreshed(topic)
                    found = None if view is None else view.topics.get(topic)
                    error = None if found is None else found.error
                    if error is not None and not error.retriable:
                        raise error(f"cannot send to topic {topic!r}")
                    if accumulator.is_known(topic):
                        break
                    await asyncio.sleep(backoff.next_delay_s())
        except asyncio.TimeoutError:
            unknown = self.cluster.unknown_topics.text([topic])
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} is not there after request_timeout_ms="
                f"{self.config.request_timeout_ms}{f' ({unknown})' if unknown else ''}: "
                "create it, or allow brokers to"
            ) from None
        except KafkaError as error:
            if not self._is_running:
                raise ProducerClosed("the producer was stopped meanwhile") from error
            raise
        finally:
            if not accumulator.is_known(topic) and accumulator.drop_topic(topic):
                self.cluster.unwatch(self, topic)
        count = accumulator.partition_count(topic)
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopicOrPartitionError(
                f"{topic!r} has no partition {partition}: it has {count}, numbered from 0"
            )

    async def _refreshed(self, topic: str) -> ClusterView | None:
        """Return metadata that are fresh as far as a topic goes; None if that failed for now."""
        try:
            return await self.cluster.refresh([topic])
        except KafkaError as error:
            if not error.retriable:
                raise
            return None
