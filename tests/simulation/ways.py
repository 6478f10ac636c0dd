"""The ways in which a member reads: each reads until its member stops."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from aiokafka_lite import _compat
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    BatchRevokedError,
    CommitFailedError,
    IllegalOperation,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    TransactionAbortableError,
)
from aiokafka_lite.processing import DeadLetters, Retry
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing.producer import TransactionBlock
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.simulation.cluster import DEAD, OUTPUT, SECOND
from tests.simulation.handlers import TRANSACTION_MS, Handlers, changing_concurrency
from tests.simulation.handling import DELAYS_S, RETRY
from tests.simulation.plan import HANDLERS, LETTERS, READS
from tests.simulation.rules import fails
from tests.support.inside import read_from

if TYPE_CHECKING:
    from tests.simulation.member import Member

Consumer: TypeAlias = AIOKafkaConsumer[Any, Any]
Record: TypeAlias = "ConsumerRecord[Any, Any] | Row"
Way: TypeAlias = Callable[["Member", Consumer], Awaitable[None]]

REQUEST_MS: Final = 5_000
READ_S: Final = 0.5
MOST: Final = 20
LIST_SIZE: Final = 4
CONCURRENCY: Final = 10
# How often a record is not acknowledged, but returned again.
NACKED: Final = 0.05
# The share of transactions that are given up, and of those in which another one is used.
GIVEN_UP: Final = 0.05
LATE: Final = 0.1
# After so long some members cancel what they do.
CANCELLED_AFTER_S: Final = (0.01, 0.5, 2.0, 6.0)
# What has a block of records, or its transaction, come to nothing: its records are returned again.
TAKEN_AWAY: Final = (BatchRevokedError, CommitFailedError, TransactionAbortableError)


class UnusableRecordError(Exception):
    """The handler cannot use the record."""


def place(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


# --- Reads whose next one finishes ----------------------------------------------------------
async def _async_for(member: Member, consumer: Consumer) -> None:
    if member.plan.habit != "times out":
        async for record in consumer:
            await member.handle([record])
            if member.must_end:
                break
        return
    iterator = aiter(consumer)
    while not member.must_end:
        found = await member.read(iterator.__anext__())
        await member.handle([] if found is None else [found])


async def _getone(member: Member, consumer: Consumer) -> None:
    while not member.must_end:
        record = await member.read(consumer.getone())
        await member.handle([] if record is None else [record])


async def _getmany(member: Member, consumer: Consumer) -> None:
    while not member.must_end:
        found = await member.read(consumer.getmany(timeout_ms=READ_S * 1000), READ_S)
        await member.handle([record for records in (found or {}).values() for record in records])


async def _poll(member: Member, consumer: Consumer) -> None:
    while not member.must_end:
        found = await member.read(consumer.poll(READ_S * 1000, MOST), READ_S)
        await member.handle([record for records in (found or {}).values() for record in records])


class Row(NamedTuple):
    """A row of an Arrow batch."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


async def _arrow(member: Member, consumer: Consumer) -> None:
    while not member.must_end:
        rows = await member.read(consumer.poll_arrow(READ_S * 1000, MOST), READ_S)
        if rows is not None:
            columns = rows.select(Row._fields).to_pydict()
            await member.handle([Row(*row) for row in zip(*columns.values(), strict=True)])


# --- Blocks and acknowledgements ------------------------------------------------------------
@contextmanager
def _finishing(member: Member, records: Iterable[Record]) -> Iterator[None]:
    """Owe no commit of these records if the block raises: they are returned again."""
    try:
        yield
    except BaseException:
        for record in records:
            member.handled_to.pop(place(record), None)
        raise


async def _batch(member: Member, consumer: Consumer) -> None:
    while not member.must_end:
        try:
            async with consumer.batch(max_records=MOST, timeout_ms=READ_S * 1000) as batch:
                with member.handling(), _finishing(member, batch):
                    await member.handle([*batch])
                    await batch.commit()
        except BatchRevokedError as error:
            member.note_error(error, "batch: ")


async def _acks(member: Member, consumer: Consumer) -> None:
    while not member.must_end:
        record = await member.read(consumer.getone())
        if record is None:
            continue
        await member.handle([record])
        if member.rng.random() < NACKED:
            record.nack(member.rng.choice((0, 20)))
        else:
            record.ack()


async def _acks_in_batch(member: Member, consumer: Consumer) -> None:
    while not member.must_end:
        try:
            async with consumer.batch(max_records=MOST, timeout_ms=READ_S * 1000) as batch:
                with member.handling():
                    await _acknowledge(member, [*batch])
        except BatchRevokedError as error:
            member.note_error(error, "batch: ")


async def _acknowledge(member: Member, records: Sequence[ConsumerRecord[Any, Any]]) -> None:
    """Acknowledge some of the records. The end of the block does so with the others."""
    member.note_returned(records)
    for record in records:
        await member.process(record)
        member.note_handled(record)
        if member.rng.random() < NACKED:
            record.nack()
        elif member.rng.random() < 0.5:
            record.ack()


# --- run ------------------------------------------------------------------------------------
def _handler(
    member: Member,
) -> Callable[[ConsumerRecord[Any, Any]], Coroutine[object, object, None]]:
    async def handle(record: ConsumerRecord[Any, Any]) -> None:
        member.note_returned([] if is_delayed(record) else [record])
        await member.process(record)
        if member.plan.way in LETTERS and fails(record.value or b""):
            raise UnusableRecordError(record.value)
        member.fail_at_times([record])
        member.note_handled(record)
        await member.commit_own(record)

    return handle


def _shape(member: Member) -> dict[str, Any]:
    """Return options of `run` that decide when records begin: in half of the seeds, some."""
    by_change: dict[str, Any] = {"concurrency": None}
    options: tuple[dict[str, Any], ...] = (
        {"concurrency": CONCURRENCY, "max_per_second": 300},
        {**by_change, "fair": True, "priority": {SECOND: 3}},
        by_change,
    )
    turn, has_some = divmod(member.plan.seed // 2, 2)
    shape: dict[str, Any] = (
        options[turn % len(options)] if has_some else {"concurrency": CONCURRENCY}
    )
    if shape["concurrency"] is None:
        shape["concurrency"] = changing_concurrency(CONCURRENCY)
    return shape


def _shape_lists(member: Member) -> dict[str, Any]:
    """Return the same for lists."""
    shape = _shape(member)
    if "fair" not in shape and member.plan.seed % 4 > 1:
        shape["batch_wait_ms"] = 150
        shape["batch_by"] = ("key", "partition", None)[member.plan.seed % 3]
    return shape


async def _run(member: Member, consumer: Consumer) -> None:
    await consumer.run(_handler(member), retry=Retry(), **_shape(member))


async def _run_by_partition(member: Member, consumer: Consumer) -> None:
    await consumer.run(
        _handler(member),
        **_shape(member),
        order="partition",
        retry=Retry(),
    )


async def _run_lists(member: Member, consumer: Consumer) -> None:
    async def finish(records: list[ConsumerRecord[Any, Any]]) -> None:
        member.note_returned(records)
        for record in records:
            await member.process(record)
        for record in records:
            member.note_handled(record)

    await consumer.run(finish, batch_size=LIST_SIZE, retry=Retry(), **_shape_lists(member))


def _retry_of(member: Member) -> Retry:
    """Return two attempts, and on some seeds further ones after delays in topics."""
    delays: dict[str, Any] = {}
    if member.plan.has_delays:
        delays = {"topic": RETRY, "delays": DELAYS_S, "after": 2}
    return Retry(attempts=2, first_delay_ms=50, max_delay_ms=200, **delays)


def is_delayed(record: ConsumerRecord[Any, Any]) -> bool:
    """Whether a record was read from a delay topic: its own partition may be another member's."""
    return read_from(record).topic != record.topic


async def _run_with_letters(member: Member, consumer: Consumer, letters: DeadLetters) -> None:
    await consumer.run(
        _handler(member),
        **_shape(member),
        retry=_retry_of(member),
        dead_letter=letters,
        breaker=None,
    )


async def _dead_letters(member: Member, consumer: Consumer) -> None:
    async with AsyncExitStack() as stack:
        producer = None
        if member.plan.seed % 2:  # its letters fail soon, and are written again
            given = AIOKafkaProducer[Any, Any](
                bootstrap_servers=member.cluster.bootstrap_servers,
                client_id=f"{member.name}-letters",
                request_timeout_ms=REQUEST_MS,
                delivery_timeout_ms=REQUEST_MS,
            )
            producer = await stack.enter_async_context(given)
        await _run_with_letters(member, consumer, DeadLetters(DEAD, producer=producer))


async def _letters_in_transactions(member: Member, consumer: Consumer) -> None:
    letters = DeadLetters(
        DEAD,
        transactional_id=f"letters-{member.slot}",
        transaction_timeout_ms=TRANSACTION_MS,
    )
    await _run_with_letters(member, consumer, letters)


# --- Transactions ---------------------------------------------------------------------------
@asynccontextmanager
async def _copying(member: Member) -> AsyncIterator[AIOKafkaProducer[Any, Any]]:
    async with AIOKafkaProducer(
        bootstrap_servers=member.cluster.bootstrap_servers,
        client_id=f"{member.name}-copy",
        transactional_id=f"copy-{member.slot}",
        transaction_timeout_ms=TRANSACTION_MS,
        request_timeout_ms=REQUEST_MS,
        metadata_max_age_ms=5_000,
    ) as producer:
        yield producer


async def _copy(member: Member, consumer: Consumer) -> None:
    async def copy(record: ConsumerRecord[Any, Any], outputs: Any) -> None:
        await _copy_all(member, [record], outputs)

    async with _copying(member) as producer:
        await consumer.run(copy, retry=Retry(), transactions=producer, **_shape(member))


async def _copy_with_letters(member: Member, consumer: Consumer) -> None:
    """Copy in transactions, which also have the dead letters."""

    async def copy(record: ConsumerRecord[Any, Any], outputs: Any) -> None:
        await _copy_all(member, [record], outputs)

    async with _copying(member) as producer:
        await consumer.run(
            copy,
            **_shape(member),
            retry=_retry_of(member),
            transactions=producer,
            dead_letter=DeadLetters(DEAD),
            breaker=None,
        )


async def _copy_lists(member: Member, consumer: Consumer) -> None:
    async def copy(records: list[ConsumerRecord[Any, Any]], outputs: Any) -> None:
        await _copy_all(member, records, outputs)

    async with _copying(member) as producer:
        await consumer.run(
            copy,
            batch_size=LIST_SIZE,
            retry=Retry(),
            transactions=producer,
            **_shape_lists(member),
        )


async def _copy_all(
    member: Member, records: Sequence[ConsumerRecord[Any, Any]], outputs: Any
) -> None:
    member.note_returned([each for each in records if not is_delayed(each)])
    for record in records:
        await member.process(record)
        outputs.send(OUTPUT, record.value or b"", key=record.key)
        if member.plan.way in LETTERS and fails(record.value or b""):
            raise UnusableRecordError(record.value)
    member.fail_at_times(records)
    for record in records:
        member.note_handled(record)


async def _run_handlers(member: Member, consumer: Consumer) -> None:
    """Call `run` as the handling of the plan has it."""
    assert member.plan.handling is not None
    handlers = Handlers(member, member.plan.handling)
    async with AsyncExitStack() as stack:
        arguments = handlers.arguments()
        if member.plan.copies:
            arguments["transactions"] = await stack.enter_async_context(_copying(member))
        await consumer.run(handlers.given(), **arguments)


async def _copy_batches(member: Member, consumer: Consumer) -> None:
    """Do what copy() of docs/producing.md does, and give some of the transactions up."""
    async with _copying(member) as producer:
        while not member.must_end:
            try:
                async with consumer.batch(max_records=MOST, timeout_ms=READ_S * 1000) as batch:
                    if records := [*batch]:
                        with (
                            member.handling(),
                            suppress(_GivenUpError),
                            _finishing(member, records),
                        ):
                            await _copy_batch(member, producer, batch, records)
                if member.transaction is not None and not member.transaction.is_committed:
                    member.note_error(TransactionAbortableError("given up"), "batch: ")
            except TAKEN_AWAY as error:
                member.note_error(error, "batch: ")


class _GivenUpError(Exception):
    """The application gives a transaction up."""


async def _copy_batch(
    member: Member,
    producer: AIOKafkaProducer[Any, Any],
    batch: Any,
    records: Sequence[ConsumerRecord[Any, Any]],
) -> None:
    member.note_returned(records)
    former, transaction = member.transaction, producer.transaction()
    member.transaction = transaction
    before = dict(member.handled_to)
    is_begun = False
    try:
        async with transaction as tx:
            is_begun = True
            for record in records:
                await tx.send(OUTPUT, record.value or b"", key=record.key)
            for record in records:
                await member.process(record)
                member.note_handled(record)
            if former is not None and member.rng.random() < LATE:
                await _send_late(member, former)
            tx.commit_offsets(batch)
            if member.is_wild and member.rng.random() < GIVEN_UP:
                raise _GivenUpError
    finally:
        if not transaction.is_committed:
            member.handled_to = before  # a stop commits no record of an aborted transaction
        if is_begun and transaction.is_committed is None and producer.fatal_error is None:
            member.note_error(AssertionError("the block of a transaction ended before that did"))


async def _send_late(member: Member, former: TransactionBlock[Any, Any]) -> None:
    """Send in a transaction that is over, while another one is open."""
    try:
        await former.send(OUTPUT, b"late-0")
    except (IllegalOperation, IllegalStateError, KafkaError):
        return
    member.note_error(AssertionError("a transaction that is over takes a record"))


async def _in_tasks(member: Member, consumer: Consumer, way: Way) -> None:
    """Read in several tasks. The first error ends all."""
    tasks = [asyncio.ensure_future(way(member, consumer)) for _ in range(member.plan.tasks)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "async for": _async_for,
        "getone": _getone,
        "getmany": _getmany,
        "poll": _poll,
        "arrow": _arrow,
        "batch": _batch,
        "acks": _acks,
        "acks in batch": _acks_in_batch,
        "run": _run,
        "run by partition": _run_by_partition,
        "run lists": _run_lists,
        "dead letters": _dead_letters,
        "letters in transactions": _letters_in_transactions,
        "copy": _copy,
        "copy lists": _copy_lists,
        "copy with letters": _copy_with_letters,
        "copy batches": _copy_batches,
        HANDLERS: _run_handlers,
    }
)


async def read(member: Member, consumer: Consumer) -> None:
    """Read in the member's way. Some members cancel that again and again."""

    async def read_on() -> None:
        if member.plan.tasks > 1:
            await _in_tasks(member, consumer, WAYS[member.plan.way])
        else:
            await WAYS[member.plan.way](member, consumer)

    is_cancelled = member.plan.habit == "times out" and member.plan.way not in (*READS, "acks")
    while is_cancelled and member.is_wild:
        try:
            async with _compat.timeout(member.rng.choice(CANCELLED_AFTER_S)):
                await read_on()
        except asyncio.TimeoutError:
            member.note_error(KafkaTimeoutError("cancelled"), "batch: ")
    if not member.must_end:
        await read_on()
