"""A short storm of a share group on one node; and its verdict, which sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.sharing.course import ShareStorm
from tests.chaos.sharing.journal import Did, Journal, Row, rows_of
from tests.chaos.sharing.member import LIVES
from tests.chaos.sharing.verdict import judge
from tests.support.cluster import KafkaHandle, unique

RECORDS = 20_000
RATE = 1_000
PARTITIONS = 4
LONGEST_S = 120.0


@pytest.mark.slow
@pytest.mark.real_kafka
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", LIVES)
async def test_a_share_group_loses_nothing_in_a_storm(
    real_kafka: str, tmp_path: Path, client: str
) -> None:
    topic = await KafkaHandle("real", real_kafka).create_topic(partitions=PARTITIONS)
    storm = ShareStorm(
        real_kafka, topic, unique("storm"), tmp_path, client=client, partitions=PARTITIONS, seed=1
    )
    verdict = await storm.run(RECORDS, RATE, LONGEST_S)
    assert {"kill", "stop", "join", "cut"} <= storm.faults.keys()
    assert not verdict.problems, storm.report(verdict, 0)


def row(did: Did, at_s: float, who: str = "a", count: int = 0) -> Row:
    return Row(did, 0, 0, count, at_s, who)


BEGUN, FINISHED, CANCELLED, LOST = Did
FIRST = row(BEGUN, 1.0, count=1)
AGAIN = (row(BEGUN, 9.0, "b", 2), row(FINISHED, 9.1, "b"))


@pytest.mark.parametrize(
    ("rows", "killed_at", "found"),
    [
        ((FIRST, row(FINISHED, 1.1)), {}, []),
        ((), {}, ["never delivered"]),
        ((FIRST,), {}, ["archived"]),
        ((FIRST, row(CANCELLED, 1.1)), {}, ["archived"]),
        ((FIRST, row(CANCELLED, 1.1), *AGAIN), {}, []),
        ((FIRST, row(FINISHED, 1.1), *AGAIN), {}, ["though"]),
        ((FIRST, row(FINISHED, 1.1), row(LOST, 9.5), *AGAIN), {}, []),
        ((FIRST, row(FINISHED, 1.1), *AGAIN), {"a": 1.2}, []),
        ((FIRST, row(FINISHED, 1.1), *AGAIN), {"a": 8.0}, ["though"]),
        ((FIRST, row(FINISHED, 1.1), *AGAIN), {"b": 1.2}, ["though"]),
        ((FIRST, *AGAIN), {}, ["though"]),
        ((FIRST, *AGAIN), {"a": 5.0}, []),
        (
            (row(BEGUN, 1.0, count=2), row(CANCELLED, 1.1), *AGAIN),
            {},
            ["the delivery count does not grow"],
        ),
    ],
)
def test_the_verdict_on_a_share_group_sees(
    rows: tuple[Row, ...], killed_at: dict[str, float], found: list[str]
) -> None:
    problems = judge({0: 1}, rows, killed_at).problems
    assert len(problems) == len(found), problems
    for text, words in zip(problems, found, strict=True):
        assert words in text


def test_a_journal_returns_what_a_member_has_noted(tmp_path: Path) -> None:
    path = tmp_path / "member-1.rows"
    journal = Journal(path)
    journal.note(BEGUN, 3, 1 << 40, 2)
    journal.note(FINISHED, 3, 1 << 40)
    journal.close()
    begun, finished = rows_of(path)
    assert (begun.did, begun.partition, begun.offset) == (BEGUN, 3, 1 << 40)
    assert (begun.delivery_count, begun.who) == (2, "member-1")
    assert finished.did is FINISHED
    assert finished.at_s >= begun.at_s
