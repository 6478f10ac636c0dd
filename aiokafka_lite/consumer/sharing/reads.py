"""Records that reads of a share consumer return, until they are settled.

Implicit: a read accepts the records that the same task has read before. A task that ends accepts
its records, too, and one that fails or is cancelled releases them. A task that is only a read, as
that of `wait_for(getone(), 1)`, reads for the task that has started it.

Explicit: each record has a receipt, which settles its lease.

Records are deserialised when they are returned. A cancelled read puts all its records back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from aiokafka_lite._record_py import DELIVERY_COUNT, RECEIPT
from aiokafka_lite.consumer.assignment.readers import is_a_read, read_as
from aiokafka_lite.consumer.buffer.chunk import SERIALIZED
from aiokafka_lite.consumer.sharing.leases import AckType, LeasedRecords, LeaseState, LostLeases
from aiokafka_lite.errors import IllegalOperation

if TYPE_CHECKING:
    from aiokafka_lite.consumer.buffer.decode import Delivery
    from aiokafka_lite.consumer.sharing.leases import Record, RecordLease
    from aiokafka_lite.consumer.sharing.life import ShareEngine

Task: TypeAlias = "asyncio.Task[object]"


async def deserialise(delivery: Delivery, record: Record) -> None:
    """Replace a record's key and value, and keep their bytes. An error changes neither."""
    kept = record.key, record.value
    if delivery.deserialize is not None:
        delivery.deserialize(record)
    elif delivery.awaited is not None:
        converted = await delivery.awaited.convert([record])
        if converted.error is not None:
            raise converted.error
        record.key, record.value = converted.pairs[0]  # type: ignore[assignment]
    setattr(record, SERIALIZED, kept)


def _owner() -> Task | None:
    """Return the task for which the current one reads."""
    task = asyncio.current_task()
    starter = read_as(task)
    return starter if is_a_read(task) else task


class ShareReads:
    """The reads of a share consumer, as a use of its records."""

    def __init__(self, engine: ShareEngine, delivery: Delivery) -> None:
        config = engine.config
        self._engine = engine
        self._delivery = delivery
        self._is_explicit: Final = config.ack_mode == "explicit"
        self.max_lease_s = math.inf if config.max_lease_ms is None else config.max_lease_ms / 1000
        # How many records the reads that wait have asked for.
        self._asked_count = 0
        # Implicit: the records of each task that are not settled. None: of tasks without a starter.
        self._returned: dict[Task | None, list[LeasedRecords]] = {}

    # --- As a use -------------------------------------------------------------------------
    def want(self) -> int:
        return self._asked_count

    def lost(self, lost: LostLeases) -> None:
        """Do nothing: acknowledgements of these records have no effect any more."""

    async def end(self, until: float, deadline: float, *, is_clean: bool) -> None:
        for returned in self._returned.values():
            self._settle(returned, AckType.ACCEPT if is_clean else AckType.RELEASE)
            returned.clear()

    # --- Reading --------------------------------------------------------------------------
    async def take(self, most: int, timeout_s: float | None = None) -> list[LeasedRecords]:
        """Return at most `most` records, waiting for the first. [] after the timeout."""
        engine, owner = self._engine, _owner()
        if (returned := self._returned.get(owner)) is not None:
            self._settle(returned, AckType.ACCEPT)
            returned.clear()
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        while True:
            engine.check()
            leasing = engine.leasing
            if taken := leasing.take_nowait(most):
                return await self._returned_of(taken, owner)
            engine.changed.clear()
            self._asked_count += most
            try:
                leasing.wanted()
                if not await engine.changed.wait(until):
                    return []
            finally:
                self._asked_count -= most

    async def _returned_of(
        self, taken: list[LeasedRecords], owner: Task | None
    ) -> list[LeasedRecords]:
        if self._delivery.has_deserializers:
            taken = await self._deserialised(taken)
        leasing = self._engine.leasing
        for each in taken:
            if each.range.delivery_count > 1:
                for record in each.records:
                    setattr(record, DELIVERY_COUNT, each.range.delivery_count)
            if self._is_explicit:
                for record in each.records:
                    lease = leasing.lease(each.range, record)
                    setattr(record, RECEIPT, ShareReceipt(self._engine, lease))
            self._engine.record_count += len(each.records)
        if not self._is_explicit:
            if owner is not None and owner not in self._returned:
                owner.add_done_callback(self._ended)
            self._returned.setdefault(owner, []).extend(taken)
        return taken

    async def _deserialised(self, taken: list[LeasedRecords]) -> list[LeasedRecords]:
        """Deserialise records up to a bad one. If it is the first, release it and raise."""
        engine = self._engine
        done: list[LeasedRecords] = []
        left = list(taken)
        try:
            while left:
                each = left[0]
                for position, record in enumerate(each.records):
                    try:
                        if not hasattr(record, SERIALIZED):  # by a cancelled read
                            await deserialise(self._delivery, record)
                    except Exception:
                        good, rest = each.records[:position], each.records[position:]
                        if good or done:
                            left[0] = LeasedRecords(each.range, rest)
                            return [*done, *([LeasedRecords(each.range, good)] if good else [])]
                        left[0] = LeasedRecords(each.range, rest[1:])
                        engine.settle(LeasedRecords(each.range, rest[:1]), AckType.RELEASE)
                        raise
                done.append(left.pop(0))
            return done
        except asyncio.CancelledError:
            left = [*done, *left]
            raise
        finally:
            if left := [each for each in left if len(each)]:
                engine.leasing.put_back(left)

    # --- Implicit acknowledgements --------------------------------------------------------
    def _ended(self, task: Task) -> None:
        returned = self._returned.pop(task, [])
        has_failed = task.cancelled() or task.exception() is not None
        self._settle(returned, AckType.RELEASE if has_failed else AckType.ACCEPT)

    def _settle(self, returned: Sequence[LeasedRecords], ack_type: AckType) -> None:
        for each in returned:
            self._engine.settle(each, ack_type)


class ShareReceipt:
    """Settles the lease of one record, on the loop of its consumer."""

    __slots__ = ("_engine", "_is_refused", "_lease")

    def __init__(self, engine: ShareEngine, lease: RecordLease) -> None:
        self._engine = engine
        self._lease = lease
        # It is released after a delay.
        self._is_refused = False

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as None: another process cannot acknowledge the record."""
        return type(None), ()

    @property
    def lease_ms(self) -> float:
        now = self._engine.owner.loop.time()
        is_held = self._lease.state is LeaseState.HELD
        return max(0.0, self._lease.until - now) * 1000 if is_held else 0.0

    def ack(self) -> bool:
        return self._settle(AckType.ACCEPT)

    def reject(self) -> bool:
        return self._settle(AckType.REJECT)

    def nack(self, delay_ms: float) -> bool:
        if not delay_ms >= 0:
            raise ValueError(f"the delay of nack() must not be negative, but is {delay_ms!r} ms")
        if not delay_ms:
            return self._settle(AckType.RELEASE)
        self._engine.owner.check_now()
        if self._is_refused or self._lease.state is not LeaseState.HELD:
            return False
        self._is_refused = True
        self._engine.owner.loop.call_later(delay_ms / 1000, self._release)
        return True

    def _release(self) -> None:
        self._is_refused = False
        if self._engine.current is not None:  # otherwise the stop has released it
            self._settle(AckType.RELEASE)

    def _settle(self, ack_type: AckType) -> bool:
        self._engine.owner.check_now()
        parts = self._engine.parts
        if self._is_refused or parts is None or parts.leasing is None:
            return False
        return parts.leasing.settle(self._lease, ack_type)

    def delivery(self) -> object:
        raise IllegalOperation(
            "a transaction cannot commit a record of a share group, which has no offsets: "
            "acknowledge the record after the transaction has committed"
        )
