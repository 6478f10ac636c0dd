"""The judge of a course sees what is lost, repeated, out of order, and late."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.failover.journal import (
    UNKNOWN_OFFSET,
    Entry,
    Failed,
    Journal,
    JournalWriter,
    Rebalanced,
    Received,
    Written,
)
from tests.support.failover.verdict import (
    NS,
    Findings,
    Window,
    effect_on_writer,
    judge,
    judge_all,
    longest_gap_ns,
)

COUNT = 10
EVERYTHING = Window("all", 0, 100 * NS)


def journal_of(path: Path, *entries: Entry) -> Journal:
    writer = JournalWriter(path)
    for entry in entries:
        writer.note(entry)
    writer.close()
    journal = Journal(path)
    journal.read_on()
    return journal


def received(sequence: int, at_s: float, offset: int | None = None) -> Received:
    offset = sequence if offset is None else offset
    return Received(0, sequence, offset, sequence * NS, int(at_s * NS))


@pytest.fixture
def writer(tmp_path: Path) -> Journal:
    """Ten records of one partition, sent one a second, acknowledged half a second later."""
    return journal_of(
        tmp_path / "writer", *(Written(0, n, n, n * NS, n * NS + NS // 2) for n in range(COUNT))
    )


def judged(writer: Journal, path: Path, *entries: Entry) -> Findings:
    given = Rebalanced(is_assigned=True, partitions=[0], at_ns=0)
    return judge(writer, journal_of(path / "reader", given, *entries), [EVERYTHING])


def in_order(*sequences: int) -> list[Received]:
    return [received(sequence, 10 + place) for place, sequence in enumerate(sequences)]


def test_each_record_once_in_order_is_faithful(writer: Journal, tmp_path: Path) -> None:
    findings = judged(writer, tmp_path, *in_order(*range(COUNT)))
    assert findings.is_faithful
    assert findings.records == COUNT


def test_a_record_that_never_came_is_lost(writer: Journal, tmp_path: Path) -> None:
    findings = judged(writer, tmp_path, *in_order(0, 1, 2, 3, 5, 6, 7, 8, 9))
    assert (findings.lost, findings.disordered, findings.repeated) == (1, 0, 0)
    assert not findings.is_faithful


def test_a_record_that_came_twice_is_repeated(writer: Journal, tmp_path: Path) -> None:
    findings = judged(writer, tmp_path, *in_order(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9))
    assert (findings.lost, findings.disordered, findings.repeated) == (0, 0, 1)
    assert not findings.is_faithful


def test_a_record_behind_a_later_one_is_out_of_order(writer: Journal, tmp_path: Path) -> None:
    findings = judged(writer, tmp_path, *in_order(0, 2, 1, 3, 4, 5, 6, 7, 8, 9))
    assert (findings.lost, findings.disordered, findings.repeated) == (0, 1, 0)
    assert not findings.is_faithful


def test_a_record_at_another_offset_than_it_was_written_to_is_unknown(
    writer: Journal, tmp_path: Path
) -> None:
    findings = judged(writer, tmp_path, *in_order(*range(9)), received(9, 20, offset=8))
    assert findings.unknown == 1
    assert not findings.is_faithful


def test_a_record_that_the_log_has_twice_is_owed_twice(writer: Journal, tmp_path: Path) -> None:
    """The writer was told one offset of it, or none."""
    writer.written[9] = writer.written[9]._replace(offset=UNKNOWN_OFFSET)
    log = {(0, offset): min(offset, 9) for offset in range(COUNT + 1)}
    once = journal_of(tmp_path / "once", *in_order(*range(COUNT)))
    twice = journal_of(tmp_path / "twice", *in_order(*range(COUNT)), received(9, 30, offset=10))
    found = judge_all(writer, {"once": once, "twice": twice}, [EVERYTHING], log)
    assert found["twice"].is_faithful
    assert (found["once"].lost, found["once"].unknown) == (1, 0)


def test_a_new_assignment_may_repeat_but_is_a_rebalance(writer: Journal, tmp_path: Path) -> None:
    taken = Rebalanced(is_assigned=False, partitions=[0], at_ns=15 * NS)
    given = Rebalanced(is_assigned=True, partitions=[0], at_ns=16 * NS)
    again = [received(n, 17 + n) for n in range(3, COUNT)]
    findings = judged(writer, tmp_path, *in_order(0, 1, 2, 3, 4), taken, given, *again)
    assert (findings.lost, findings.disordered, findings.repeated) == (0, 0, 0)
    assert findings.rebalances == 2
    assert not findings.is_faithful


def test_errors_are_told(writer: Journal, tmp_path: Path) -> None:
    assert judged(writer, tmp_path, Failed("broken", 3)).failures == ("broken",)


def test_silence_is_the_time_between_records_around_a_fault(
    writer: Journal, tmp_path: Path
) -> None:
    times = [1, 2, 3, 10, 11, 30]
    assert longest_gap_ns(times, Window("", 4, 12)) == 19
    assert longest_gap_ns(times, Window("", 4, 10)) == 7
    assert longest_gap_ns(times, Window("", 1, 3)) == 7
    assert longest_gap_ns([], Window("", 4, 10)) == 6
    reader = journal_of(
        tmp_path / "reader",
        *(received(n, n + 0.75) for n in range(5)),
        *(received(n, n + 20) for n in range(5, COUNT)),
    )
    window = Window("kill", 5 * NS, 40 * NS)
    effect = judge(writer, reader, [window]).effects["kill"]
    assert effect.partition_silence_s == effect.silence_s == 25 - 4.75
    assert effect_on_writer(writer, Window("kill", 5 * NS, 9 * NS)).silence_s == 1


def test_late_is_what_could_be_had_before(writer: Journal, tmp_path: Path) -> None:
    first = journal_of(tmp_path / "a", *(received(n, n + 0.25) for n in range(COUNT)))
    second = journal_of(tmp_path / "b", *(received(n, n + 2.5) for n in range(COUNT)))
    found = judge_all(writer, {"a": first, "b": second}, [EVERYTHING])
    assert found["a"].effects["all"].late_s == 0
    assert found["b"].effects["all"].late_s == 2.25
    assert found["b"].effects["all"].age_p99_s == 2.5
    assert found["b"].median_silence_s(["all"]) == found["b"].effects["all"].partition_silence_s


def test_what_was_not_fetched_before_a_silence_is_not_late_during_it(
    writer: Journal, tmp_path: Path
) -> None:
    """The leader dies at 4.6 s; its records can be had from 9.5 s on."""
    writer.written[5:] = [each._replace(acked_ns=int(9.5 * NS)) for each in writer.written[5:]]
    missed_one = journal_of(
        tmp_path / "reader",
        *(received(n, n + 0.6) for n in range(4)),
        *(received(n, 10) for n in range(4, COUNT)),
    )
    effect = judge_all(writer, {"a": missed_one}, [Window("kill", 4 * NS, 11 * NS)])["a"].effects
    assert effect["kill"].late_s == 0.5
    assert effect["kill"].partition_silence_s == 6.4


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.read_on()
    path.write_text('["Failed", "a", 1]\n["Fail')
    journal.read_on()
    assert [failure.reason for failure in journal.failures] == ["a"]
    with path.open("a") as file:
        file.write('ed", "b", 2]\n')
    journal.read_on()
    assert [failure.reason for failure in journal.failures] == ["a", "b"]
