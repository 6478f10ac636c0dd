"""A short storm with all kinds of clients; and its verdict, which sees what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aiokafka_lite.simulation.history import Kind
from tests.chaos.storm.journal import COPY, INPUT, Journal, events_of, value_of
from tests.chaos.storm.verdict import judge_events
from tests.support.real_kafka import KafkaUnavailableError, java_command, kafka_libs
from tests.support.required import unavailable

COUNT = 6
# Slower than the nodes of a busy machine.
RATE = 1000


@pytest.mark.real_kafka
@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_storm_loses_nothing_and_copies_once(tmp_path: Path) -> None:
    try:
        java_command(), kafka_libs()
    except KafkaUnavailableError as error:
        unavailable(error)
    options = ["--seconds", "60", "--rate", str(RATE), "--home", str(tmp_path)]
    command = [sys.executable, "-m", "tests.chaos.storm", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("topic", "copy", "read", "found"),
    [
        ("012345", "012345", "012345", []),
        ("01234", "01234", "01234", ["input: acknowledged, lost", "copy: acknowledged, lost"]),
        ("012345", "01245", "012345", ["copy: acknowledged, lost"]),
        ("012345", "0123453", "012345", ["copy: written twice", "copy: reorder"]),
        ("012435", "012345", "012435", ["input: reorder"]),
        ("012345", "012345", "01234", ["loop: unseen"]),
        ("012345", "012345", "01245", ["loop: unseen", "loop: poll skip"]),
        ("012345", "012345", "0123345", ["loop: non-monotonic poll"]),
    ],
)
def test_the_verdict_sees(
    tmp_path: Path, topic: str, copy: str, read: str, found: list[str]
) -> None:
    journal = Journal(tmp_path)
    for number in range(COUNT):
        journal.note(Kind.ACKED, "producer", 0, topic.find(str(number)), number)
    for who, numbers in (("run-0", topic), ("loop-1", read)):
        journal.note(Kind.ASSIGNED, who, 0)
        for each in numbers:
            journal.note(Kind.RETURNED, who, 0, topic.index(each), int(each))
    journal.close()
    logs = {
        name: {offset: value_of(int(number)) for offset, number in enumerate(log)}
        for name, log in ((INPUT, topic), (COPY, copy))
    }
    verdict = judge_events(0, events_of(0, journal.paths[0], COUNT), logs)
    assert [each.rule for each in verdict.violations] == found
    assert len(verdict.repeats["loop"]) == len(read) - len(set(read))
