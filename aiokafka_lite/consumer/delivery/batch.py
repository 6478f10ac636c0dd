"""`async with consumer.batch()`: records that hold their partitions until they are processed.

The block is the unit of work. A rebalance that wants one of its partitions waits for its end, and
only its end counts the records as processed. So within it a commit is as good as ever, and the
application knows where it stands without asking for more records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, overload

from aiokafka_lite._compat import KT, VT, override
from aiokafka_lite.consumer.assignment.batches import Block
from aiokafka_lite.errors import (
    BatchRevokedError,
    CommitFailedError,
    IllegalOperation,
    IllegalStateError,
)
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.assignment.delivery import DeliveredRecords
    from aiokafka_lite.consumer.commits.transactional import DeliveryToCommit
    from aiokafka_lite.structs import ConsumerRecord

Commit = Callable[[Mapping[TopicPartition, int] | None], Awaitable[None]]
Deliver = Callable[["DeliveredRecords"], "DeliveryToCommit"]


class Revoking:
    """Tells a batch's block that a rebalance waits for it: ``await batch.revoking`` until then.

    Once it is set it stays so: what the rebalance wants goes when the block ends, or when the time
    is up. A group-less consumer's never is.
    """

    __slots__ = ("_batch", "_loop")

    def __init__(self, batch: Block) -> None:
        self._batch = batch
        self._loop = asyncio.get_running_loop()

    def is_set(self) -> bool:
        """Whether a rebalance waits for the batch, or has taken partitions of it."""
        return self._batch.revoking.is_set()

    async def wait(self) -> None:
        """Wait until one does; may be cancelled."""
        await self._batch.revoking.wait()

    def __await__(self) -> Generator[object, None, None]:
        return self.wait().__await__()

    @property
    def left_s(self) -> float:
        """For how many seconds it still waits; infinity while none does, 0 when time is up."""
        return max(0.0, self._batch.until - self._loop.time())


class Batch(Sequence["ConsumerRecord[KT, VT]"], Generic[KT, VT]):
    """Records in the block of ``async with consumer.batch() as batch``; empty if the time was up.

    Attributes:
        by_partition: The records by partition, in their order.
        records: All of them, one partition after the other.
        revoking: Set when a rebalance waits for this batch, to be awaited; `revoking.is_set()` says
            whether one does, `revoking.left_s` for how many seconds it still will.
    """

    __slots__ = ("_batch", "_commit", "_deliver", "by_partition", "records", "revoking")

    def __init__(
        self,
        by_partition: Mapping[TopicPartition, list[ConsumerRecord[KT, VT]]],
        batch: Block,
        commit: Commit,
        deliver: Deliver,
    ) -> None:
        self.by_partition = by_partition
        self.records = [record for records in by_partition.values() for record in records]
        self.revoking = Revoking(batch)
        self._batch = batch
        self._commit = commit
        self._deliver = deliver

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} records of {sorted(self.by_partition)}>"

    @override
    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[KT, VT]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord[KT, VT]]: ...
    @override
    def __getitem__(
        self, index: int | slice
    ) -> ConsumerRecord[KT, VT] | list[ConsumerRecord[KT, VT]]:
        """Return a record, or for a slice a list of them."""
        return self.records[index]

    async def commit(self) -> None:
        """Commit the batch: all its records, and nothing that other tasks work on.

        While the batch holds its partitions no rebalance makes this fail; it may have to wait for
        the end of one. When it is cancelled the offsets may or may not have been committed.

        Raises:
            BatchRevokedError: Partitions went before this: `max_hold_ms` was over, or the group
                went on without this member, or the consumer was stopped. What is still held is
                committed.
            IllegalStateError: The block has ended.
            IllegalOperation: The consumer has no group; or an open transaction commits the batch.
            KafkaError: The broker refused, or could not be reached in time.
        """
        batch = self._batch
        if not batch.is_open or batch.is_left:
            raise IllegalStateError("the batch's block has ended: commit inside the block")
        if batch.is_enlisted:
            raise IllegalOperation(
                "an open transaction commits this batch. If it were also committed here, its "
                "records would be skipped even if the transaction is aborted"
            )
        cause: CommitFailedError | None = None
        lost = batch.lost()
        if held := batch.held():
            try:
                await self._commit(batch.to_commit())
            except CommitFailedError as error:
                cause, lost = error, lost | held
        if lost:
            names = ", ".join(f"{tp.topic}/{tp.partition}" for tp in sorted(lost))
            why = "" if cause is None else f" ({cause})"
            raise BatchRevokedError(
                f"{BatchRevokedError.cause}: other members read the records of {names} "
                f"again{why}. To avoid that, {BatchRevokedError.remedy}",
                partitions=lost,
            ) from cause

    def delivery(self) -> DeliveryToCommit:
        """Return the batch's records as a value, which `tx.commit_offsets(batch)` commits.

        Also after its block: if the transaction is aborted, the records are returned again.

        Raises:
            IllegalStateError: Its records are returned again already; or they are acknowledged.
            IllegalOperation: The consumer has no group.
            ConsumerStoppedError: The consumer is stopped.
        """
        self._batch.require_delivered()
        return self._deliver(self._batch.delivery())


class BatchScope(Generic[KT, VT]):
    """What `consumer.batch()` returns: the block of one batch.

    Args:
        batch: The block.
        take: Waits for records, and opens the block as they are handed out.
        commit: Commits offsets.
        deliver: Makes a delivery ready for a transaction.
    """

    __slots__ = ("_batch", "_commit", "_deliver", "_is_used", "_take")

    def __init__(
        self,
        batch: Block,
        take: Callable[[], Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]],
        commit: Commit,
        deliver: Deliver,
    ) -> None:
        self._batch = batch
        self._take = take
        self._commit = commit
        self._deliver = deliver
        self._is_used = False

    async def __aenter__(self) -> Batch[KT, VT]:
        """Wait for records, and open the block; when it is cancelled nothing was taken."""
        if self._is_used:
            raise IllegalStateError(
                "a batch can be entered only once: call consumer.batch() for the next one"
            )
        self._is_used = True
        try:
            found = await self._take()
        except BaseException:
            self._batch.close(is_done=False)
            raise
        return Batch(found, self._batch, self._commit, self._deliver)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """End the block: its records are processed, or left by an exception handed out again."""
        self._batch.close(is_done=exc_type is None)
