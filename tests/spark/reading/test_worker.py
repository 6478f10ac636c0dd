"""What a worker keeps between tasks, and what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.options import SourceOptions, parse_options
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from tests.spark.reading.conftest import options_for, read

SERVERS = "127.0.0.1:1"


def raw(**more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": SERVERS, "subscribe": "t", **more}


def options_of(**more: str) -> SourceOptions:
    return worker.options_of(raw(**more), is_streaming=False)


def test_same_options_are_parsed_once() -> None:
    assert options_of() is options_of()
    assert options_of() is not options_of(failOnDataLoss="false")
    assert options_of() is not worker.options_of(raw(), is_streaming=True)


def test_cluster_serves_all_queries_that_reach_it_alike() -> None:
    with worker.borrowed_cluster(options_of()) as first:
        pass
    with worker.borrowed_cluster(options_of(minPartitions="3")) as second:
        assert second is first
    with worker.borrowed_cluster(options_of(**{"kafka.client.id": "other"})) as third:
        assert third is not first


def test_cluster_is_lent_to_one_at_a_time() -> None:
    options = options_of()
    with worker.borrowed_cluster(options) as first, worker.borrowed_cluster(options) as second:
        assert first is not second
    with worker.borrowed_cluster(options) as again:
        assert again in (first, second)


def test_options_of_others_get_a_cluster_that_is_not_kept() -> None:
    options = parse_options(raw(), is_streaming=False)
    with worker.borrowed_cluster(options) as first:
        pass
    with worker.borrowed_cluster(options) as second:
        assert second is not first


def test_not_more_is_kept_than_there_is_use_for() -> None:
    first = options_of()
    for number in range(3 * worker.MOST_KEPT):
        with worker.borrowed_cluster(options_of(**{"kafka.client.id": str(number)})):
            pass
    with ExitStack() as stack:
        for _ in range(3 * worker.MOST_KEPT):
            stack.enter_context(worker.borrowed_cluster(first))
    assert options_of() is not first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is nothing to fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the broker has a thread
def test_forked_child_reads_by_connections_of_its_own(kafka_broker: BrokerThread) -> None:
    kafka_broker.produce("t", b"v", partition=0)
    options = options_for(kafka_broker.bootstrap_servers)
    wanted = [KafkaOffsetRange("t", 0, 0, 1)]
    assert len(read(options, wanted)) == 1
    pid = os.fork()
    if pid == 0:
        is_right = False
        try:
            mine = options_for(kafka_broker.bootstrap_servers)
            is_right = mine is not options and len(read(mine, wanted)) == 1
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(read(options, wanted)) == 1


def test_reading_imports_nothing_that_takes_long(kafka_broker: BrokerThread) -> None:
    kafka_broker.produce("t", b"v", key=b"k", headers=[("h", b"1")], partition=0)
    script = f"""
import sys
import pyarrow
before = set(sys.modules)
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.spark.reading import read_ranges
from aiokafka_lite.spark.schema import default_schema
raw = {{"kafka.bootstrap.servers": {kafka_broker.bootstrap_servers!r}, "subscribe": "t"}}
options = worker.options_of(raw, is_streaming=False)
schema = default_schema(include_headers=True)
(batch,) = read_ranges([KafkaOffsetRange("t", 0, 0, 1)], options, schema)
assert batch.num_rows == 1
print(*sorted(name for name in set(sys.modules) - before if "." not in name))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert "aiokafka_lite" in imported
    assert not imported & {"pandas", "numpy", "cramjam", "argparse", "email"}
