"""`async with consumer.batch()`: records whose partitions stay assigned until the block ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
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
    from aiokafka_lite.consumer.assignment.work import DeliveredRecords
    from aiokafka_lite.consumer.commits.transactional import DeliveryToCommit
    from aiokafka_lite.structs import ConsumerRecord

Commit = Callable[[Mapping[TopicPartition, int] | None], Awaitable[None]]
Deliver = Callable[["DeliveredRecords"], "DeliveryToCommit"]


class Revoking:
    """Set when a rebalance waits for the batch: ``await batch.revoking`` waits until then.

    It stays set, because the partitions are revoked when the block ends, or after its time limit.
    Without a group it is never set.
    """

    __slots__ = ("_batch", "_loop")

    def __init__(self, batch: Block) -> None:
        self._batch = batch
        self._loop = asyncio.get_running_loop()

    def is_set(self) -> bool:
        """Whether a rebalance waits for the batch, or has revoked partitions of it."""
        return self._batch.revoking.is_set()

    async def wait(self) -> None:
        """Wait until a rebalance waits for the batch. May be cancelled."""
        await self._batch.revoking.wait()

    def __await__(self) -> Generator[object, None, None]:
        return self.wait().__await__()

    @property
    def left_s(self) -> float:
        """Seconds until the rebalance stops waiting; infinity without one, 0 after the limit."""
        return max(0.0, self._batch.until - self._loop.time())


class Batch(Sequence["ConsumerRecord[KT, VT]"], Generic[KT, VT]):
    """The records of an ``async with consumer.batch()`` block, empty after its timeout.

    Attributes:
        by_partition: The records by partition, in order.
        records: All records, one partition after the other.
        revoking: Set when a rebalance waits for this batch.
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
        """Commit the records of the batch, and no others.

        A rebalance can only delay the commit while the batch holds its partitions. If the call is
        cancelled, the offsets may or may not be committed.

        Raises:
            BatchRevokedError: Partitions were revoked by `max_hold_ms`, the group's removal of
                this member, or `stop`. The other partitions are committed.
            IllegalStateError: The block has ended.
            IllegalOperation: The consumer has no group, or an open transaction commits the batch.
            KafkaError: The broker rejected the commit, or could not be reached in time.
        """
        batch = self._batch
        if not batch.is_open or batch.is_left:
            raise IllegalStateError(
                "the batch's `async with` block has ended: call commit() inside the block"
            )
        if batch.is_enlisted:
            raise IllegalOperation(
                "an open transaction will commit this batch, so do not call commit(): if the "
                "transaction aborted, the batch's records would be skipped"
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
                f"{BatchRevokedError.cause}, so other members will read the records of {names} "
                f"again{why}. To commit in time, {BatchRevokedError.remedy}",
                partitions=lost,
            ) from cause

    def delivery(self) -> DeliveryToCommit:
        """Return the batch's records for `tx.commit_offsets(batch)`, in the block or after it.

        If the transaction is aborted, the records are returned again.

        Raises:
            IllegalStateError: The records have already been returned again, or acknowledged.
            IllegalOperation: The consumer has no group.
            ConsumerStoppedError: The consumer is stopped.
        """
        self._batch.require_delivered()
        return self._deliver(self._batch.delivery())


@dataclass(eq=False, repr=False)
class BatchScope(Generic[KT, VT]):
    """The `async with` block of one batch, returned by `consumer.batch()`."""

    _batch: Block
    _take: Callable[[], Awaitable[dict[TopicPartition, list[ConsumerRecord[KT, VT]]]]]
    _commit: Commit
    _deliver: Deliver
    _is_used: bool = field(default=False, init=False)

    async def __aenter__(self) -> Batch[KT, VT]:
        """Wait for records, and open the block. A cancelled wait takes no records."""
        if self._is_used:
            raise IllegalStateError(
                "a batch() block can be entered only once: call consumer.batch() again"
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
        """Finish the records, or after an exception return them again."""
        self._batch.close(is_done=exc_type is None)
