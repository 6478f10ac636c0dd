"""Writes records without a pause, on a thread of its own, while others die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.spark.alike.writing import Writer, numbered

RECORDS = 25
PAUSE_S = 0.2


class Pump:
    """Writes to each partition of topics in turn until it is stopped.

    Args:
        writer: Whose producer it has to itself meanwhile.
        topics: How many partitions each has.
    """

    def __init__(self, writer: Writer, topics: dict[str, int]) -> None:
        self._writer = writer
        self._topics = topics
        self._between = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)
        self._failure: BaseException | None = None

    def _run(self) -> None:
        first = 0
        try:
            while not self._stopping.wait(PAUSE_S):
                with self._between:
                    self._write_round(first)
                first += RECORDS
        except BaseException as error:  # noqa: BLE001 - raised by whoever stops it
            self._failure = error

    def _write_round(self, first: int) -> None:
        for topic, partitions in self._topics.items():
            for partition in range(partitions):
                self._writer.write(topic, numbered(RECORDS, partition, first=first))

    def change(self, topic: str, partitions: int) -> None:
        """Write to so many partitions of a topic from now on."""
        with self._between:
            self._topics[topic] = partitions

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End, and raise what it failed with."""
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


@contextmanager
def pumping(writer: Writer, topics: dict[str, int]) -> Iterator[Pump]:
    """Write while the block runs."""
    pump = Pump(writer, topics)
    pump.start()
    try:
        yield pump
    finally:
        pump.stop()
