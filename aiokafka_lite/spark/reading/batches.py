"""What a task does: ranges of offsets become Arrow batches.

Records go from the answer's bytes into the columns' memory, and that is all that is done for each
of them. The next Fetch is on its way before the first is decoded. Where there is much to read a
thread receives an answer while the one before it is decoded and handed on to Spark; a small range
ends before a thread would have paid for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from aiokafka_lite.records.arrow import ArrowColumns
from aiokafka_lite.records.record_set import RecordSet
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.process import settle
from aiokafka_lite.spark.reading.fetching import Fetching
from aiokafka_lite.spark.reading.prefetch import Prefetch
from aiokafka_lite.spark.reading.progress import FetchedChunk

if TYPE_CHECKING:
    from aiokafka_lite.spark.options import SourceOptions
    from aiokafka_lite.spark.ranges import KafkaOffsetRange

# Spark copies a batch's rows one by one: those of a few MiB are still in the processor's caches.
ROWS_PER_BATCH: Final = 10_000
# Keys, values and headers of a batch of several rows.
MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
# What a compressed batch may become. A record may be as large as producers are allowed to make it
# (max.request.size), and nobody who reads a topic can choose which of them to take.
MAX_INFLATED_BYTES: Final = 1 << 30
# From here on a thread pays.
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

    Rows of several ranges may share a batch. Closing the iterator early is fine at any time.

    Args:
        ranges: What to read; empty ones are passed over.
        options: How to; by `worker.options_of`, so that connections are kept for later tasks.
        schema: Of the batches, see `schema.arrow_schema`.
        clock: Tells the time in seconds.
        sleep: Waits for so many seconds; by default no longer than until the iterator is closed.

    Raises:
        DataLossError: Offsets are gone, and failOnDataLoss is true.
        ReadTimeoutError: A partition brought nothing for kafkaConsumer.pollTimeoutMs.
        KafkaError: A record cannot be decoded, or the cluster cannot be read; names the place.
    """
    settle()
    with worker.borrowed_cluster(options) as cluster:
        fetching = Fetching(
            ranges,
            options,
            cluster,
            worker.fetch_template(options),
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
    """Yield the chunks of each answer; if there are many answers, a thread receives them."""
    answers = fetching.answers()
    while (chunks := next(answers, None)) is not None:
        yield chunks  # emptied by whoever takes it, so that its memory serves again
        if fetching.left_bytes >= THREAD_FROM_BYTES:
            break
    else:
        return
    prefetch = Prefetch(answers, "kafka-fetch", fetching.close)
    try:
        yield from prefetch
    finally:
        prefetch.close()


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
    """Add all of a record set's rows; yield the batches that became full."""
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
        may_block=True,
    )
