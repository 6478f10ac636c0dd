"""Logs of partitions, written and read without a broker."""

from __future__ import annotations

from pathlib import Path

from aiokafka_lite import records
from aiokafka_lite.broker.configs import parse_topic_config
from aiokafka_lite.broker.log.partition_log import AppendResult, PartitionLog, TopicConfig
from aiokafka_lite.broker.log.storage import FolderStore, LogStore
from aiokafka_lite.records import BatchHeader, iter_batches

MEGABYTE = 1 << 20
T0 = 1_700_000_000_000


def batch(
    count: int = 1,
    *,
    timestamp: int = T0,
    size: int = 50,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    rows = [(timestamp + n, b"key", b"x" * size, ()) for n in range(count)]
    return records.build_batch(
        rows,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def append(log: PartitionLog, built: bytes, *, epoch: int = 0) -> AppendResult:
    ((header, _),) = iter_batches(memoryview(built))
    return log.append(header, built, leader_epoch=epoch)


def open_log(store: LogStore) -> PartitionLog:
    return PartitionLog(store, run_slowly=lambda work: work())


def headers(view: memoryview) -> list[BatchHeader]:
    return [header for header, _ in iter_batches(view)]


def reopen(folder: Path, segment_bytes: int = MEGABYTE) -> PartitionLog:
    return open_log(FolderStore(folder, segment_bytes))


def contents(log: PartitionLog) -> list[tuple[int, bytes]]:
    """Return (base offset, bytes) of every batch."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        for header, view in iter_batches(log.read(offset, MEGABYTE)):
            found.append((header.base_offset, bytes(view)))
            offset = header.last_offset + 1
    return found


def topic_config(**overrides: str) -> TopicConfig:
    given = {name.replace("_", "."): value for name, value in overrides.items()}
    return parse_topic_config(given, {})


class Clock:
    """The wall clock of a broker under test."""

    def __init__(self) -> None:
        self.now_ms = T0

    def __call__(self) -> int:
        return self.now_ms
