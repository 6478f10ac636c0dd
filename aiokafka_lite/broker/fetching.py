"""Reading what a Fetch request asks for, now or when there is enough.

Reference: kafka.server.ReplicaManager.readFromLog and DelayedFetch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiokafka_lite.broker.epochs import UNDEFINED_EPOCH
from aiokafka_lite.broker.fetch_session import FetchTarget
from aiokafka_lite.broker.topics import NO_EPOCH, Partition, PartitionKey
from aiokafka_lite.errors import (
    BrokerResponseError,
    KafkaError,
    NoError,
    OffsetOutOfRangeError,
    UnknownError,
)
from aiokafka_lite.protocol.messages.fetch import EpochEndOffset, PartitionData

READ_COMMITTED: Final = 1
NO_OFFSET: Final = -1

Find = Callable[[FetchTarget], "Partition | type[BrokerResponseError]"]


@dataclass(frozen=True)
class FetchLimits:
    """How much to wait for and how much to return at most."""

    min_bytes: int
    max_bytes: int
    isolation_level: int


class Findings(NamedTuple):
    """What was read.

    Attributes:
        results: One for each target, in order.
        size: Bytes of all record sets.
        is_final: Waiting would not help: a partition has an error, or its log diverged.
    """

    results: list[tuple[FetchTarget, PartitionData]]
    size: int
    is_final: bool


class FetchRead:
    """One request's reading: may be tried several times, each from the start.

    Args:
        targets: What to read, in order: the first ones get most of `limits.max_bytes`.
        find: Returns a target's partition, or the error to answer where there is none. Looked up
            for every try: topics come and go while a long poll waits.
    """

    def __init__(self, targets: Sequence[FetchTarget], limits: FetchLimits, find: Find) -> None:
        self._targets = targets
        self._limits = limits
        self._find = find
        # Those of the latest `read` that exist: any of them changing is worth another try.
        self._served: list[FetchTarget] = []
        self.keys: list[PartitionKey] = []

    def read(self) -> Findings:
        """Read every partition, within the limits."""
        results = []
        self._served, self.keys = [], []
        left, size, is_final = self._limits.max_bytes, 0, False
        for target in self._targets:
            partition = self._find(target)
            if isinstance(partition, Partition):
                self._served.append(target)
                self.keys.append(partition.key)
                # The first batch of the first partition that has any is sent whatever its size,
                # or its reader would never get past it (KIP-74).
                data = self._read(target, partition, left, at_least_one=size == 0)
                read = len(data.records or b"")
                size, left = size + read, max(left - read, 0)
                is_final = is_final or data.error_code != NoError.errno or _diverges(data)
            else:
                data = error_data(target, partition)
            results.append((target, data))
        return Findings(results, size, is_final)

    def is_worth_answering(self) -> bool:
        """Say, without reading, whether there is enough or something is wrong by now."""
        available = 0
        for target in self._served:
            partition = self._find(target)
            if not isinstance(partition, Partition):
                return True
            try:
                partition.check_leader(target.current_leader_epoch)
                available += partition.log.bytes_from(target.fetch_offset, target.max_bytes)
            except KafkaError:
                return True
            if available >= self._limits.min_bytes:
                return True
        return False

    def _read(
        self, target: FetchTarget, partition: Partition, left: int, *, at_least_one: bool
    ) -> PartitionData:
        log = partition.log
        try:
            partition.check_leader(target.current_leader_epoch)
            diverging = self._diverging(target, partition)
            max_bytes = min(target.max_bytes, left)
            records = (
                log.read(target.fetch_offset, max_bytes, at_least_one=at_least_one)
                if diverging is None
                else b""
            )
        except BrokerResponseError as error:
            data = error_data(target, type(error))
            data.aborted_transactions = None
            return data
        is_committed = self._limits.isolation_level == READ_COMMITTED
        data = PartitionData(
            partition_index=target.key.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if is_committed else None,
            records=records,
        )
        if diverging is not None:
            data.diverging_epoch = diverging
        return data

    @staticmethod
    def _diverging(target: FetchTarget, partition: Partition) -> EpochEndOffset | None:
        """Return where the log of the reader and this one part, if they do (KIP-595)."""
        if target.last_fetched_epoch == NO_EPOCH:
            return None
        end = partition.end_of_epoch(target.last_fetched_epoch)
        if end.epoch == UNDEFINED_EPOCH:
            raise OffsetOutOfRangeError(f"epoch {target.last_fetched_epoch} is not known")
        if end.epoch < target.last_fetched_epoch or end.end_offset < target.fetch_offset:
            return EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
        return None


def error_data(target: FetchTarget, error: type[BrokerResponseError]) -> PartitionData:
    """Return the answer for a partition that cannot be read."""
    return PartitionData(
        partition_index=target.key.partition,
        error_code=error.errno or UnknownError.errno,
        high_watermark=NO_OFFSET,
        records=b"",
    )


def _diverges(data: PartitionData) -> bool:
    return data.diverging_epoch.epoch != UNDEFINED_EPOCH
