"""Runs of the command that are killed with SIGKILL, anywhere: the tables are exact in the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.dataset
import pytest

from aiokafka_lite.broker.thread import BrokerThread
from tests.demos.parquet.topic import SCHEMA, Event, produce

KILLS = 6
LONGEST_RUN_S = 240.0


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_tables_are_exact_after_kills_at_any_time(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    out, schema = tmp_path / "tables", tmp_path / "schema.json"
    schema.write_text(SCHEMA)
    events = [Event(i // 4, delay=i, partition=i % 4) for i in range(8000)]
    with BrokerThread() as broker:
        broker.create_topic("killed", partitions=4)
        produce(broker, "killed", events)
        for _ in range(40):
            broker.produce("killed", b"nonsense")
        command = [
            sys.executable, "-m", "demos", "pipeline", "--once",
            "--bootstrap", broker.bootstrap_servers, "--topic", "killed", "--out", str(out),
            "--schema", str(schema), "--event-time", "time", "--measure", "delay",
            "--max-offsets-per-trigger", "500", "--master", "local[2]",
            "--conf", "spark.driver.memory=1g", "--conf", "spark.driver.host=127.0.0.1",
        ]  # fmt: skip
        first = out / "_pipeline" / "commits" / "0.json"
        for kill in range(KILLS):
            process = subprocess.Popen(command, start_new_session=True)
            try:
                # From where it does something; the first run is killed in its first batches.
                started = first if kill == 0 else None
                wait_for_batches(process, out, started)
                time.sleep(rng.uniform(0, 3))
            finally:
                end(process)
        finished = subprocess.run(
            command, check=True, timeout=LONGEST_RUN_S, capture_output=True, text=True
        )
    print(finished.stdout)
    columns = ["kafka_partition", "kafka_offset"]
    places = []
    for table in ("raw", "quarantine"):
        rows = pyarrow.dataset.dataset(out / table, partitioning="hive").to_table(columns=columns)
        places += list(zip(*rows.to_pydict().values(), strict=True))
    assert len(places) == len(set(places)) == len(events) + 40
    aggregate = (
        pyarrow.dataset.dataset(out / "aggregate", partitioning="hive").to_table().to_pylist()
    )
    found = {
        row["window_start"].hour + 24 * (row["window_start"].day - 1): row for row in aggregate
    }
    assert len(found) == len(aggregate)
    for hour in range(34):
        delays = [event.delay for event in events if event.minute // 60 == hour]
        assert (found[hour]["records"], found[hour]["delay_sum"]) == (
            len(delays),
            sum(filter(None, delays)),
        )


def wait_for_batches(process: subprocess.Popen[bytes], out: Path, first: Path | None) -> None:
    """Wait until a run is at its batches: when there is a commit more, or the first one at all."""
    commits = out / "_pipeline" / "commits"
    before = len(list(commits.glob("*.json"))) if commits.is_dir() else 0
    deadline = time.monotonic() + LONGEST_RUN_S
    while process.poll() is None and time.monotonic() < deadline:
        if first is not None and (out / "_pipeline" / "settings.json").exists():
            return
        if commits.is_dir() and len(list(commits.glob("*.json"))) > before:
            return
        time.sleep(0.05)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a run with its JVM and their workers, which is what a machine's failure does."""
    for pid in (*descendants(process.pid), process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def descendants(pid: int) -> list[int]:
    found = []
    try:
        threads = Path(f"/proc/{pid}/task").iterdir()
        children = [
            child for thread in threads for child in (thread / "children").read_text().split()
        ]
    except OSError:
        return []
    for child in children:
        found += [*descendants(int(child)), int(child)]
    return found
