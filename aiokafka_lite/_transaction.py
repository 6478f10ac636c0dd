"""The transaction around the current task: batches that it reads there end with it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

from aiokafka_lite.structs import TopicPartition

# Offset, metadata, and the leader epoch of the record before the offset, or -1 if it is unknown.
DecidedOffsets: TypeAlias = Mapping[TopicPartition, tuple[int, str, int]]


class BlockInTransaction(Protocol):
    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None: ...


class BegunTransaction(Protocol):
    @property
    def is_over(self) -> bool: ...

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is certain: it is over, or will be aborted."""

    def hold(self, block: BlockInTransaction) -> None:
        """Notify a block of the transaction's outcome."""


LATEST: Final[ContextVar[BegunTransaction]] = ContextVar("LATEST")
"""The latest transaction that this task, or the task that has started it, has begun."""


def transaction_around() -> BegunTransaction | None:
    transaction = LATEST.get(None)
    return None if transaction is None or transaction.is_over else transaction
