"""A broker process that is killed under load, and clients that remember what they were told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.ports import free_port

START_TIMEOUT_S: Final = 60
QUICK_RECONNECTS: Final[Mapping[str, str | int]] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "socket.connection.setup.timeout.ms": 5_000,
    "log_level": 0,
}


class BrokerProcess:
    """`python -m aiokafka_lite broker` on one port and one directory, again and again."""

    def __init__(self, data_dir: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def start(self) -> None:
        command = [
            sys.executable, "-m", "aiokafka_lite", "broker",
            "--listen", self.address, "--data", str(self._data_dir), "--no-status",
            "--set", "log_cleaner_backoff_ms=20", "--set", "offsets_topic_partitions=2",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline().decode()
            if self.address not in line:
                _, stderr = self._process.communicate(timeout=START_TIMEOUT_S)
                raise RuntimeError(f"the broker does not start: {line!r}\n{stderr.decode()}")
        except BaseException:
            self._process.kill()
            raise

    def kill(self) -> str:
        """Kill it with SIGKILL and return what it had to complain about."""
        assert self._process is not None
        self._process.kill()
        _, stderr = self._process.communicate(timeout=START_TIMEOUT_S)
        return stderr.decode()


class Destination(NamedTuple):
    """Where a record goes."""

    topic: str
    partition: int = 0
    key: bytes | None = None


class Acknowledged:
    """What producers were told is in the log, in the order in which they heard of it."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self._heard = threading.Condition()
        self._counts: dict[str, int] = defaultdict(int)
        self._failure: BaseException | None = None

    @contextmanager
    def while_running(self, client: Callable[[threading.Event], None]) -> Iterator[None]:
        """Run a client in a thread until the block ends; what it raises is raised in the block."""
        stop = threading.Event()

        def run() -> None:
            try:
                client(stop)
            except BaseException as error:  # noqa: BLE001 — raised in the other thread
                with self._heard:
                    self._failure = self._failure or error
                    self._heard.notify_all()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def heard(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        topic, partition, offset, value = (
            message.topic(), message.partition(), message.offset(), message.value()
        )  # fmt: skip
        assert topic is not None
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        with self._heard:
            self.records[topic, partition].append((offset, int(value)))
            self._counts[topic] += 1
            self._heard.notify_all()

    def wait_for_more(self, count: int, *topics: str) -> None:
        """Wait until so many more records of each of the topics have been acknowledged."""
        with self._heard:
            targets = {topic: self._counts[topic] + count for topic in topics}
            are_there = self._heard.wait_for(
                lambda: (
                    self._failure is not None
                    or all(self._counts[topic] >= target for topic, target in targets.items())
                ),
                timeout=60,
            )
            self._raise_if_failed()
            if not are_there:
                raise TimeoutError(f"of {targets} only {dict(self._counts)} were acknowledged")


def producing(
    address: str, acknowledged: Acknowledged, destination: Callable[[int], Destination]
) -> Callable[[threading.Event], None]:
    """Return an idempotent producer that goes on until it is stopped, and then waits for all."""

    def produce(stop: threading.Event) -> None:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
                **QUICK_RECONNECTS,
            }
        )
        number = 0
        while not stop.is_set():
            if len(producer) < 200:
                topic, partition, key = destination(number)
                producer.produce(
                    topic,
                    b"%d" % number,
                    key,
                    partition=partition,
                    on_delivery=acknowledged.heard,
                )
                number += 1
                producer.poll(0)
            else:
                producer.poll(0.01)
        left = producer.flush(60)
        assert not left, f"{left} records were never acknowledged"

    return produce


class GroupReader:
    """A member of a group that commits after each batch and remembers what was accepted."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self.seen: dict[tuple[int, int], int] = {}
        self.committed: dict[int, int] = {}
        self.has_committed = threading.Event()

    def consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 100,
                "fetch.wait.max.ms": 20,
                "coordinator.query.interval.ms": 100,
                **QUICK_RECONNECTS,
            }
        )

    def __call__(self, stop: threading.Event) -> None:
        consumer = self.consumer()
        consumer.subscribe([self._topic])
        try:
            while not stop.is_set():
                for message in consumer.consume(500, timeout=0.05):
                    if message.error() is None:
                        self._saw(message)
                try:
                    self._note(consumer.commit(asynchronous=False) or [])
                except KafkaException:
                    continue  # it was being killed, or there is nothing to commit
        finally:
            consumer.close()

    def _saw(self, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert isinstance(value, bytes)
        before = self.seen.setdefault((partition, offset), int(value))
        assert before == int(value), f"{partition}:{offset} was {before}, now it is {value!r}"

    def _note(self, accepted: list[TopicPartition]) -> None:
        for tp in accepted:
            if tp.error is None and tp.offset >= 0:
                before = self.committed.get(tp.partition, -1)
                assert tp.offset >= before, f"{tp} was read again: {before} had been committed"
                self.committed[tp.partition] = tp.offset
                self.has_committed.set()
