"""Whatever is killed while a stream is written to Parquet, the table has each record once.

Only in the long form: each test starts drivers with JVMs of their own, for half a minute or more.
The table is what the sink's log says, as Spark reads it. Afterwards nothing is left running.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import pytest

from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from tests.spark.alike.writing import Writer
from tests.spark.chaos.driving import Driver, Job, driving
from tests.spark.chaos.pumping import pumping
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(1200)]

PARTITIONS = 4
KILLS = 10
Row: TypeAlias = tuple[str, int, int, bytes | None, bytes | None]
# Of batches, so that tasks and commits are met in the middle.
BATCH = {"maxOffsetsPerTrigger": "1000", "minPartitions": "4", "minRecordsPerTask": "100"}
# A task that fails is tried again, as it is on a cluster.
RETRIES = {"spark.master": "local[2,4]"}


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_kafka)])
def writer(request: pytest.FixtureRequest) -> Iterator[Writer]:
    """Writes to one broker, embedded or real."""
    if request.param == "real":
        with Writer(request.getfixturevalue("real_kafka")) as writer:
            yield writer
    else:
        with BrokerThread() as broker, Writer(broker.bootstrap_servers) as writer:
            yield writer


class Table:
    """A topic and the job that makes a table of it.

    Args:
        writer: Of the topic's Kafka.
        folder: Where table, checkpoint and what drivers print go.
        settings: Of Spark.
        pattern: Of the topics that are read, in place of one topic.
    """

    def __init__(
        self,
        writer: Writer,
        folder: Path,
        settings: Mapping[str, str] = RETRIES,
        *,
        pattern: str | None = None,
    ) -> None:
        self.writer = writer
        self.topics: dict[str, int] = {}
        subscription = {"subscribePattern": pattern or "", "failOnDataLoss": "false"}
        if pattern is None:
            topic = writer.create(writer.name("chaos"), PARTITIONS)
            self.topics[topic] = PARTITIONS
            subscription = {"subscribe": topic}
        self._folder = folder
        self._settings = settings
        self._options = {
            "kafka.bootstrap.servers": writer.bootstrap_servers,
            "startingOffsets": "earliest",
            **subscription,
        }

    def drive(self, *, is_once: bool = False) -> AbstractContextManager[Driver]:
        """Start a driver; one that reads only what is there does so in one batch."""
        options = {**self._options, **({} if is_once else BATCH)}
        job = Job(str(self._folder), options, self._settings, is_once)
        return driving(job, self._folder / "driver.log")

    def finish(self) -> Counter[Row]:
        """Read what is left, and return how often each row is in the table."""
        with self.drive(is_once=True) as driver:
            assert driver.wait() == 0, driver.printed[-3000:]
            columns = driver.job.rows().to_pydict().values()
        return Counter(zip(*columns, strict=True))

    def assert_equals_the_topics(self) -> None:
        """Assert that the table has each record, with its key and value, once."""
        self.assert_equals(self.finish())

    def assert_equals(self, table: Counter[Row]) -> None:
        """The same of a table that was read."""
        topics: Counter[Row] = Counter()
        for topic, partitions in self.topics.items():
            topics += self.stored(topic, partitions)
        assert topics
        missing, superfluous = topics - table, table - topics
        assert not missing, f"{missing.total()} of {topics.total()}: {sorted(missing)[:3]}"
        assert not superfluous, f"{superfluous.total()}: {sorted(superfluous)[:3]}"

    def stored(self, topic: str, partitions: int) -> Counter[Row]:
        """Return the records of a topic as rows."""
        return Counter((topic, *record) for record in self.writer.read(topic, partitions))


def is_between_log_and_commit(driver: Driver) -> bool:
    return bool(driver.job.logged("offsets") - driver.job.logged("commits"))


def test_driver_is_killed_ten_times(writer: Writer, tmp_path: Path) -> None:
    table = Table(writer, tmp_path)
    random_ = random.Random(17)
    unfinished = 0
    with pumping(writer, table.topics):
        for kill in range(KILLS):
            with table.drive() as driver:
                driver.wait_for_batches(1 + random_.randrange(3))
                if kill % 2:
                    driver.wait_until(lambda: is_between_log_and_commit(driver), "in a batch")
                driver.kill()
                unfinished += is_between_log_and_commit(driver)
    # Or else nothing was killed in the middle of anything.
    assert unfinished >= KILLS // 4
    table.assert_equals_the_topics()


def test_worker_processes_are_killed(writer: Writer, tmp_path: Path) -> None:
    table = Table(writer, tmp_path)
    with pumping(writer, table.topics), table.drive() as driver:
        for _ in range(5):
            driver.wait_for_batches(2)
            driver.wait_until(driver.workers, "in a worker")
            for worker in driver.workers():
                os.kill(worker, signal.SIGKILL)
    table.assert_equals_the_topics()


def test_executors_of_a_cluster_are_killed(writer: Writer, tmp_path: Path) -> None:
    cluster = {
        "spark.master": "local-cluster[2,1,512]",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "600m",
    }
    table = Table(writer, tmp_path, settings=cluster)
    with pumping(writer, table.topics), table.drive() as driver:
        for _ in range(2):
            driver.wait_for_batches(2)
            driver.wait_until(lambda: len(driver.executors()) == 2, "with two executors")
            os.kill(driver.executors()[0], signal.SIGKILL)
        driver.wait_for_batches(2)
    table.assert_equals_the_topics()


@pytest.mark.real_kafka
def test_real_brokers_are_killed_one_after_the_other(tmp_path: Path) -> None:
    try:
        cluster = RealKafka(3, heap_mib=256)
    except KafkaUnavailableError as error:
        unavailable(error)
    with cluster as brokers, Writer(brokers.bootstrap_servers) as writer:
        table = Table(writer, tmp_path)
        with pumping(writer, table.topics), table.drive() as driver:
            for node in brokers.nodes:
                driver.wait_for_batches(2)
                brokers.kill_node(node)
                driver.wait_for_batches(2)
                brokers.start_node(node)
            driver.wait_for_batches(2)
        table.assert_equals_the_topics()


def test_embedded_brokers_are_killed_one_after_the_other(tmp_path: Path) -> None:
    with (
        BrokerThread(BrokerConfig(nodes=3)) as brokers,
        Writer(brokers.bootstrap_servers) as writer,
    ):
        table = Table(writer, tmp_path)
        with pumping(writer, table.topics), table.drive() as driver:
            for node in (1, 2, 3):
                driver.wait_for_batches(2)
                brokers.stop_node(node, clean=False)
                driver.wait_for_batches(2)
                brokers.start_node(node)
            driver.wait_for_batches(2)
        table.assert_equals_the_topics()


def test_partitions_are_added_and_a_topic_is_deleted(writer: Writer, tmp_path: Path) -> None:
    prefix = writer.name("pattern")
    kept, doomed = (writer.create(f"{prefix}.{name}", 2) for name in ("kept", "doomed"))
    table = Table(writer, tmp_path, pattern=f"^{prefix}[.].*")
    table.topics = {kept: 2, doomed: 2}
    with pumping(writer, table.topics) as pump, table.drive() as driver:
        driver.wait_for_batches(3)
        writer.add_partitions(kept, 5)
        pump.change(kept, 5)
        driver.wait_for_batches(3)
        pump.change(doomed, 0)
        of_doomed = table.stored(doomed, 2)
        writer.delete(doomed)
        driver.wait_for_batches(3)
    rows = table.finish()
    read = Counter({row: count for row, count in rows.items() if row[0] == doomed})
    assert read
    assert not read - of_doomed
    table.topics = {kept: 5}
    table.assert_equals(rows - read)
