"""Ranges of offsets become Arrow batches in a task.

The next Fetch is sent before the first record is decoded. For large ranges a thread receives the
next response during the decoding. For small ranges a thread would cost more than it saves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from aiokafka_lite.records.arrow import ArrowColumns
from aiokafka_lite.records.record_set import RecordSet
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.fetching import FetchedChunk, Fetching
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.process import settle
from aiokafka_lite.spark.ranges import KafkaOffsetRange

# Spark copies a batch's rows one by one: those of a few MiB are still in the processor's caches.
ROWS_PER_BATCH: Final = 10_000
# Keys, values and headers of a batch of several rows.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
# The decompressed size of a batch. A record may be as large as the limit of the producer
# (max.request.size), and readers of a topic cannot leave it out.
MAX_INFLATED_BYTES: Final = 1 << 30
# With more bytes left, a thread is worth its cost.
THREAD_FROM_BYTES: Final = 8 * 1024 * 1024


def read_ranges(
    ranges: Sequence[KafkaOffsetRange],
    options: SourceOptions,
    schema: pa.Schema,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of some ranges, each exactly once, in order of offsets within a range.

    Rows of several ranges may share a batch. The iterator may be closed early.
    """
    settle()
    with worker.borrowed_cluster(options) as cluster:
        fetching = Fetching(
            ranges,
            options,
            cluster,
            worker.record_sizes(),
            clock=clock,
            sleep=sleep,
        )
        answers = _answers(fetching)
        try:
            yield from _batches(answers, options, schema)
        finally:
            answers.close()
            fetching.close()


def _answers(fetching: Fetching) -> Generator[list[FetchedChunk], None, None]:
    """Yield the chunks of each response. If there are many responses, a thread receives them."""
    answers = fetching.answers()
    while (chunks := next(answers, None)) is not None:
        yield chunks  # the caller empties it, so that its memory is reused
        if fetching.left_bytes >= THREAD_FROM_BYTES:
            break
    else:
        return
    yield from prefetched(answers, fetching.close)


def _batches(
    answers: Iterator[list[FetchedChunk]], options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    arrow = ArrowColumns(schema, byte_limit=MAX_BATCH_BYTES, missing_timestamp_ms=-1)
    columns = arrow.columns
    is_first = True
    for chunks in answers:
        chunks.reverse()
        while chunks:
            yield from _filled(arrow, _record_set(chunks.pop(), options))
        if is_first and columns.rows:
            is_first = False
            yield arrow.finish()
    if columns.rows:
        yield arrow.finish()


def _filled(arrow: ArrowColumns, record_set: RecordSet) -> Iterator[pa.RecordBatch]:
    columns = arrow.columns
    while True:
        added = record_set.take_columns(columns, ROWS_PER_BATCH - columns.rows)
        if columns.rows >= ROWS_PER_BATCH or columns.is_full:
            yield arrow.finish()
        elif not added:
            return


def _record_set(chunk: FetchedChunk, options: SourceOptions) -> RecordSet:
    progress = chunk.progress
    return RecordSet(
        progress.topic,
        progress.partition,
        chunk.records,
        fetch_offset=chunk.fetch_offset,
        end_offset=progress.end,
        check_crcs=options.check_crcs,
        aborted=chunk.aborted,
        max_batch_bytes=MAX_INFLATED_BYTES,
    )


T = TypeVar("T")


def prefetched(source: Iterator[T], interrupt: Callable[[], None]) -> Generator[T, None, None]:
    """Yield another iterator's items, of which a thread makes the next one ahead, until closed.

    The thread starts on the next item when the previous one is taken, so the caller has released
    the one before. `interrupt` makes a waiting source fail soon.
    """
    from concurrent.futures import ThreadPoolExecutor  # late: only for large ranges

    with ThreadPoolExecutor(1, thread_name_prefix="kafka-fetch") as thread:
        made = thread.submit(next, source, None)
        try:
            while (item := made.result()) is not None:
                made = thread.submit(next, source, None)
                yield item
        finally:
            interrupt()
