"""The process that writes: librdkafka's idempotent producer, acks=all, at a steady pace.

    python -m tests.support.failover.writer BOOTSTRAP TOPIC PARTITIONS RATE JOURNAL

Each value is the record's number in its partition, from 0, and the time at which it was handed to
the producer. It stops when its standard input ends, once everything is acknowledged.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Final

import confluent_kafka

from tests.support.failover.journal import UNKNOWN_OFFSET, Failed, JournalWriter, Written

VALUE: Final = struct.Struct(">qq")
FLUSH_S: Final = 0.2
LAST_S: Final = 60.0


def main(bootstrap_servers: str, topic: str, partitions: int, rate: float, path: Path) -> None:
    """Write until the standard input ends."""
    journal = JournalWriter(path)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            # A broker that hangs is given up in time; by default that takes a minute.
            "socket.timeout.ms": 4_000,
            # No record may be given up: then the run would prove nothing.
            "message.timeout.ms": 300_000,
        }
    )
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    began = shown = time.monotonic()
    number = 0
    while not ended.is_set():
        now = time.monotonic()
        while number <= (now - began) * rate:
            sequence, index = divmod(number, partitions)
            sent_ns = time.monotonic_ns()
            producer.produce(
                topic,
                VALUE.pack(sequence, sent_ns),
                partition=index,
                on_delivery=partial(_delivered, journal, sequence, sent_ns),
            )
            number += 1
        producer.poll(1 / rate)
        if now - shown > FLUSH_S:
            shown = now
            journal.flush()
    left = producer.flush(LAST_S)
    journal.close()
    if left:
        sys.exit(f"{left} records were not acknowledged within {LAST_S:g} s")


def _delivered(
    journal: JournalWriter,
    sequence: int,
    sent_ns: int,
    error: confluent_kafka.KafkaError | None,
    message: confluent_kafka.Message,
) -> None:
    now_ns = time.monotonic_ns()
    if error is not None:
        journal.note(Failed(str(error), now_ns))
        return
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    if offset is None or offset < 0:
        # It was sent twice, as the first answer was lost: the broker says only that it has it.
        offset = UNKNOWN_OFFSET
    journal.note(Written(partition, sequence, offset, sent_ns, now_ns))


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
