"""The topics that both sources read: one for each thing that a log may hold."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from tests.spark.alike.writing import FIRST_MS, STEP_MS, Record, Writer, numbered
from tests.support.cluster import unique

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
COMPACTION_S: Final = 60.0
LOOK_EVERY_S: Final = 0.2
COMPACTED_KEYS: Final = 5
COMPACTED_ROUNDS: Final = 8
# Of two partitions: every second round has keys of its own, as has the last, whose segment may not
# be compacted; of the others one stays.
COMPACTED_LEFT: Final = 2 * COMPACTED_KEYS * (COMPACTED_ROUNDS // 2 + 2)
MANY_PARTITIONS: Final = 4
# Of different sizes, so that shares of a limit differ; 240 records in all.
MANY: Final = (100, 80, 57, 3)
SPLIT_MS: Final = FIRST_MS + 50 * STEP_MS

COMPACTS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "min.compaction.lag.ms": "0",
}


@contextmanager
def filled(bootstrap_servers: str) -> Iterator[Mapping[str, str]]:
    """Write all topics, and say which name stands for which.

    The names begin with one that only this call uses, which is "all": so a pattern finds them.
    """
    writer = Writer(bootstrap_servers)
    prefix = unique("alike")
    names: dict[str, str] = {"all": prefix}

    def create(name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        names[name] = writer.create(f"{prefix}.{name}", partitions, configs)
        return names[name]

    compacted = create("compacted", 2, COMPACTS)
    _overwrite(writer, compacted)
    _write_codecs(writer, create("codecs", len(CODECS)))
    for codec in CODECS[1:]:  # the broker's own compression is Java's
        _write_numbers(writer, create(codec, 1, {"compression.type": codec}))
    _write_nulls(writer, create("nulls", 2))
    _write_headers(writer, create("headers"))
    _write_timestamps(writer, create("stamped", 1, {"message.timestamp.after.max.ms": str(2**62)}))
    writer.write(create("appended", 1, {"message.timestamp.type": "LogAppendTime"}), numbered(25))
    _write_transactions(writer, create("transactions", 3))
    _write_large(writer, create("large"))
    create("empty", 2)
    many = create("many", MANY_PARTITIONS)
    for partition, count in enumerate(MANY):
        writer.write(many, numbered(count, partition))
    trimmed = create("trimmed", 2)
    for partition in range(2):
        writer.write(trimmed, numbered(40, partition))
    writer.delete_records(trimmed, {0: 17, 1: 40})
    _await_compaction(writer, compacted)
    try:
        yield names
    finally:
        writer.close()


def _write_codecs(writer: Writer, topic: str) -> None:
    """Write a partition of each codec, and then batches of every codec into the first."""
    for partition, codec in enumerate(CODECS):
        writer.write(topic, numbered(60, partition), codec=codec)
    for number, codec in enumerate(CODECS):
        writer.write(topic, numbered(9, 0, first=100 * (number + 1)), codec=codec)


def _write_numbers(writer: Writer, topic: str) -> None:
    writer.write(topic, numbered(70), batch=30)


def _write_nulls(writer: Writer, topic: str) -> None:
    for codec in ("none", "lz4"):
        for partition in range(2):
            writer.write(
                topic,
                [
                    Record(value, key, partition)
                    for value in (None, b"", b"value")
                    for key in (None, b"", b"key")
                ],
                codec=codec,
            )


def _write_headers(writer: Writer, topic: str) -> None:
    writer.write(
        topic,
        [
            Record(b"none"),
            Record(b"one", headers=[("name", b"value")]),
            Record(b"several", headers=[(f"h{n}", b"%d" % n) for n in range(20)]),
            Record(b"null value", headers=[("null", None), ("empty", b"")]),
            Record(b"repeated", headers=[("n", b"1"), ("m", b"x"), ("n", b"2"), ("n", b"1")]),
            Record(b"not ASCII", headers=[("Überschrift", "Größe".encode()), ("标题", b"\xff")]),
            Record(b"no name", headers=[("", b"value")]),
            Record(b"none again"),
            Record(None, headers=[("of a null", b"value")]),
        ],
        batch=4,
    )


def _write_timestamps(writer: Writer, topic: str) -> None:
    """Out of order, with milliseconds, long ago, and far ahead."""
    for timestamp_ms in (
        FIRST_MS,
        FIRST_MS - 5_000,
        FIRST_MS + 1,
        FIRST_MS + 999,
        1,
        951_782_400_000,  # the leap day of 2000
        4_102_444_799_999,  # the last of the century
    ):
        writer.write(topic, [Record(b"%d" % timestamp_ms, timestamp_ms=timestamp_ms)])


def _write_transactions(writer: Writer, topic: str) -> None:
    """Write partitions that end committed, aborted and open, with everything before that."""
    for partition, last in enumerate(("committed", "aborted", "open")):
        writer.write(topic, numbered(5, partition))
        for number, ends in enumerate(("committed", "aborted", "aborted", "committed"), start=1):
            writer.write_transaction(topic, numbered(10, partition, first=100 * number), ends=ends)
        writer.write(topic, numbered(5, partition, first=1000))
        writer.write_transaction(topic, numbered(10, partition, first=2000), ends=last)
    # Read by those only who do not wait for the transaction before them.
    writer.write(topic, numbered(3, 2, first=3000))


def _write_large(writer: Writer, topic: str) -> None:
    """Records that are larger than what a fetch is asked for at most, beside small ones."""
    for number in range(6):
        writer.write(
            topic,
            [Record(b"%d" % number * 700_000, b"large"), Record(b"small")],
            codec="lz4" if number % 2 else "none",
        )


def _overwrite(writer: Writer, topic: str) -> None:
    """Write each key again and again, in batches that begin segments of their own."""
    for round_ in range(COMPACTED_ROUNDS):
        is_repeated = round_ % 2 == 1 and round_ < COMPACTED_ROUNDS - 1
        for partition in range(2):
            writer.write(
                topic,
                [
                    Record(
                        b"round %d" % round_,
                        b"key %d" % (key if is_repeated else key + 100 * (round_ + 1)),
                        partition,
                        timestamp_ms=FIRST_MS + round_ * 10_000,
                    )
                    for key in range(COMPACTED_KEYS)
                ],
            )


def _await_compaction(writer: Writer, topic: str) -> None:
    """Wait until only the newest record of each key is left, outside the last segment."""
    deadline = time.monotonic() + COMPACTION_S
    while (left := len(writer.read(topic, 2))) > COMPACTED_LEFT:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} was not compacted: {left} records are left")
        time.sleep(LOOK_EVERY_S)
