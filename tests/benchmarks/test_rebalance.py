"""Members that are replaced in turn, as a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from benchmarks.catalogue import FULL, QUICK, scenarios
from benchmarks.contestants import MEMBER_LITE_CONSUMER
from benchmarks.contestants.members import CLASSIC, CONSUMER, MEMBERS
from benchmarks.figures import REBALANCE, REPEATED
from benchmarks.goals import GOALS, Limit
from benchmarks.measure import RunError, Workload
from benchmarks.replacements import NS, Receipt, Report, Window, judge
from benchmarks.scenarios import Scenario
from benchmarks.tasks import rebalance
from tests.support.rounds import LONG

WINDOW = Window(10 * NS, 20 * NS)


def report(began_s: float, *rows: tuple[int, int, float]) -> Report:
    """What a member says that was handed these: partition, offset, and second."""
    receipts = [Receipt(partition, offset, int(at_s * NS)) for partition, offset, at_s in rows]
    return Report("1.0", int(began_s * NS), receipts)


def judged(*reports: Report, written: int) -> dict[str, float]:
    """What is said of a group whose last member took another's place."""
    return judge(reports, [len(reports) - 1], written, WINDOW)


def scenario(size: object = FULL) -> Scenario:
    chosen = scenarios(QUICK if size is QUICK else FULL)
    return next(each for each in chosen if each.name == "rebalance")


# --- The verdict ----------------------------------------------------------------------------
def test_a_silence_is_that_of_a_partition_that_moves_if_another_member_ends_it() -> None:
    stays = report(0, (0, 0, 9.5), (0, 1, 12), (0, 2, 19.5), (1, 0, 10))
    joins = report(11.0, (1, 1, 14), (1, 2, 19.5))
    figures = judged(stays, joins, written=6)
    assert figures == {
        "moves_s": 4.0,
        "stays_s": 7.5,
        "joiner_s": 3.0,
        "lost": 0.0,
        "repeated": 0.0,
        "errors": 0.0,
    }
    assert figures.keys() == {figure.key for figure in REBALANCE}


def test_a_partition_that_comes_back_has_stayed() -> None:
    figures = judged(report(0, (0, 0, 11), (0, 1, 13)), report(0, (1, 0, 19)), written=3)
    assert (figures["moves_s"], figures["stays_s"]) == (0, 7)  # the last until the end


def test_a_partition_that_nobody_reads_any_more_is_silent_to_the_end() -> None:
    figures = judged(report(0, (0, 0, 11)), report(0, (1, 0, 19)), written=2)
    assert figures["stays_s"] == 9


def test_silences_outside_of_the_replacements_do_not_count() -> None:
    figures = judged(
        report(0, (0, 0, 1), (0, 1, 10), (0, 2, 20), (0, 3, 29)), report(0, (1, 0, 20)), written=5
    )
    assert figures["stays_s"] == 10


def test_what_came_twice_or_never_is_counted() -> None:
    figures = judged(
        report(0, (0, 0, 11), (0, 1, 12), (0, 1, 13)),
        replace(report(0, (0, 1, 14), (0, 4, 15)), errors=["fenced", "fenced"]),
        written=5,
    )
    assert (figures["lost"], figures["repeated"], figures["errors"]) == (2, 2, 2)


def test_a_report_survives_its_way_to_another_process() -> None:
    said = Report("2.1", 5, [Receipt(0, 1, 2), Receipt(3, 4, 5)], ["it broke"])
    text = said.to_json()
    assert Report.from_json(text) == said
    assert "\n" not in text


# --- The scenario ---------------------------------------------------------------------------
@pytest.mark.parametrize("size", [FULL, QUICK])
def test_every_client_takes_part_by_every_protocol_that_it_speaks(size: object) -> None:
    subjects = [each.subject.split(":") for each in scenario(size).contestants]
    assert {client for client, _ in subjects} == MEMBERS.keys()
    for client in ("ours", "confluent"):
        assert {p for name, p in subjects if name == client} == {*CLASSIC, CONSUMER}
    assert scenario(size).rounds == 1, "the best of several would hide what was lost"


def test_no_record_of_ours_may_be_lost_or_come_twice() -> None:
    ours = [each for each in scenario().contestants if each.subject.startswith("ours:")]
    goals = [each for each in GOALS if type(each) is Limit and each.scenario == "rebalance"]
    for key in ("lost", "repeated", "errors"):
        judged_so = {each.ours for each in goals if each.figure.key == key and each.bound == 0}
        assert judged_so == set(ours)
    assert Limit("rebalance", MEMBER_LITE_CONSUMER, REPEATED, 0) in goals


# --- A run ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(BrokerConfig()) as thread:
        yield thread
        thread.raise_if_failed()


@pytest.mark.parametrize(
    "subject",
    [
        "ours:consumer",
        *(
            pytest.param(subject, marks=pytest.mark.slow)
            for subject in ("ours:cooperative-sticky", "confluent:range", "aiokafka:range")
        ),
    ],
)
async def test_a_member_is_replaced(
    broker: BrokerThread, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not LONG:
        monkeypatch.setattr(rebalance, "MEMBER_COUNT", 2)
        monkeypatch.setattr(rebalance, "RATE", 500)
    workload = Workload(broker.bootstrap_servers, passes=1, settle_s=0.5)
    measurement = await rebalance.measure(subject, workload)
    assert measurement.records > rebalance.RATE
    assert measurement.figures.keys() == {figure.key for figure in REBALANCE}
    assert measurement.figures["lost"] == 0
    assert measurement.figures["repeated"] == 0
    assert 0 < measurement.figures["joiner_s"] < workload.wait_s
    assert measurement.figures["moves_s"] > 0


async def test_a_member_that_fails_says_why(broker: BrokerThread) -> None:
    with pytest.raises(RunError, match="KeyError: 'nobody'"):
        await rebalance.measure("nobody:range", Workload(broker.bootstrap_servers, passes=1))
