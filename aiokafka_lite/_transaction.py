"""The transaction in whose block the current task is: batches that it reads there end with it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Protocol, TypeAlias

from aiokafka_lite.structs import TopicPartition

# Offset, metadata, and the leader epoch of the record before the offset, or -1 if it is unknown.
DecidedOffsets: TypeAlias = Mapping[TopicPartition, tuple[int, str, int]]


class BlockInTransaction(Protocol):
    """The block of a batch whose records a transaction decides on."""

    def decide(self, transaction: BegunTransaction, *, is_committed: bool) -> None:
        """Note that the transaction is over."""


class BegunTransaction(Protocol):
    """A transaction, from its beginning on."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""

    @property
    def is_settled(self) -> bool:
        """Whether it is decided what becomes of its records: it is over, or will be aborted."""

    def hold(self, block: BlockInTransaction) -> None:
        """Tell a block what becomes of the transaction."""


LATEST: Final[ContextVar[BegunTransaction]] = ContextVar("LATEST")
"""The latest transaction that this task, or the task that has started it, has begun."""


def transaction_around() -> BegunTransaction | None:
    """Return the open transaction that the current task is in."""
    transaction = LATEST.get(None)
    return None if transaction is None or transaction.is_over else transaction
