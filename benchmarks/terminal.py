"""`aiokafka-lite cat` beside kcat: a topic to /dev/null, whole processes, in turns.

    python -m benchmarks.terminal --bootstrap HOST:PORT [--records 5000000] [--rounds 5]

The topic is made and filled on the first run, and is there for the next.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from aiokafka_lite.cli.asking import find
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.errors import for_code
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import TopicPartition

PARTITIONS = 4
BATCH_RECORDS = 1_000
VALUE_BYTES = 100


class Taken(NamedTuple):
    """What a process took, in seconds."""

    wall_s: float
    cpu_s: float


def fill(cluster: BlockingCluster, topic: str, record_count: int) -> None:
    """Create the topic and fill it, unless it is there."""
    if topic in cluster.look(None).topics:
        return
    forever = CreatableTopicConfig(name="retention.ms", value="-1")
    wanted = CreatableTopic(
        name=topic, num_partitions=PARTITIONS, replication_factor=-1, configs=[forever]
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)
    for created in cluster.request(cluster.view.controller_id, request).topics:
        if created.error_code:
            raise for_code(created.error_code)(created.error_message or topic)
    while not all(cluster.view.leader(TopicPartition(topic, each)) for each in range(PARTITIONS)):
        time.sleep(0.1)
        cluster.look([topic])
    at_ms = int(time.time() * 1000)
    batch = build_batch(
        [(at_ms, b"key-%d" % n, b"%0*d" % (VALUE_BYTES, n), ()) for n in range(BATCH_RECORDS)]
    )
    for number in range(record_count // BATCH_RECORDS):
        partition = number % PARTITIONS
        leader = cluster.view.partition(TopicPartition(topic, partition))
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        produced = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        assert leader is not None
        answer = cluster.request(leader.leader, produced)
        for outcome in answer.responses[0].partition_responses:
            if outcome.error_code:
                raise for_code(outcome.error_code)(outcome.error_message or topic)


def run(command: list[str]) -> Taken:
    """Run a process whose output nobody reads, and say what it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with open(os.devnull, "wb") as nowhere:
        subprocess.run(command, stdout=nowhere, check=True)
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(wall_s, cpu_s)


def count_lines(command: list[str]) -> int:
    """Return how many lines a command prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        stdout, count = process.stdout, 0
        while chunk := stdout.read(1 << 20):
            count += chunk.count(b"\n")
        return count


def main() -> None:
    """Compare, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    topic = f"bench-terminal-{options.records}"
    cluster = BlockingCluster(ClientConfig(bootstrap_servers=options.bootstrap))
    try:
        fill(cluster, topic, options.records)
        cluster.look([topic])
        tps = [TopicPartition(topic, each) for each in range(PARTITIONS)]
        begins, ends, *_ = find(cluster, tps)
        held = sum(ends.values()) - sum(begins.values())
    finally:
        cluster.close()
    ours = [sys.executable, "-m", "aiokafka_lite", "cat", topic, "-b", options.bootstrap]
    commands = {"aiokafka-lite cat": ours}
    if shutil.which("kcat"):
        commands["kcat -C -e -q"] = ["kcat", "-b", options.bootstrap, "-C", "-t", topic, "-e", "-q"]
    for name, command in commands.items():
        assert count_lines(command) == held, f"{name} does not print all {held} records"
    taken: dict[str, list[Taken]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            taken[name].append(run(command))
    print(f"{held:,} records of {VALUE_BYTES} bytes, medians of {options.rounds} runs in turns")
    for name, runs in taken.items():
        wall_s, cpu_s = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:20} {wall_s:8.2f} s  {held / wall_s:12,.0f} records/s  {cpu_s:6.2f} s of CPU")


if __name__ == "__main__":
    main()
