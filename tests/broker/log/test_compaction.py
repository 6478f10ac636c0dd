"""Compaction: what is kept, where it is found, what a crash leaves."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite import records
from aiokafka_lite.broker import maintenance
from aiokafka_lite.broker.log.partition_log import PartitionLog, TopicConfig
from aiokafka_lite.broker.log.storage import FolderStore, MemoryStore
from aiokafka_lite.broker.maintenance import cleanable, compact
from aiokafka_lite.records import Codec, ControlType, decode_all, iter_batches
from aiokafka_lite.structs import ConsumerRecord
from tests.broker.log.conftest import OpenLog
from tests.broker.log.keyed import DAY_MS, Row, keyed
from tests.broker.logs import MEGABYTE, T0, append, headers, open_log, topic_config

Record: TypeAlias = ConsumerRecord

ALWAYS = topic_config(cleanup_policy="compact", min_cleanable_dirty_ratio="0")


def run(log: PartitionLog, config: TopicConfig = ALWAYS, now_ms: int = T0 + DAY_MS) -> None:
    for _ in compact(log, config, now_ms):
        pass


def roll(log: PartitionLog) -> None:
    """Append a record that starts a new segment, so that all before it may be compacted."""
    log.configure(topic_config(segment_ms="1"))
    append(log, keyed((b"rolled", b""), timestamp=T0 + 2 * DAY_MS + 10 * log.log_end_offset))
    log.configure(topic_config())


def read_all(log: PartitionLog) -> list[Record]:
    """Read as a consumer does: on from behind the last batch."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        view = log.read(offset, MEGABYTE)
        found += (record for record in decode_all(view) if record.offset >= offset)
        end = headers(view)[-1].last_offset + 1
        assert end > offset
        offset = end
    return found


def rows(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in read_all(log) if r.key != b"rolled"]


def test_newest_record_of_each_key_is_kept_at_its_offset(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    append(log, keyed((b"a", b"0"), (b"b", b"1"), (b"a", b"2")))
    append(log, keyed((b"c", b"3"), (b"b", b"4")))
    append(log, keyed((b"b", b"5")))
    roll(log)
    before = {record.offset: record for record in read_all(log)}
    run(log)
    assert rows(log) == [(2, b"a", b"2"), (3, b"c", b"3"), (5, b"b", b"5")]
    for record in read_all(log):
        assert record == before[record.offset]  # time, headers, ...
    assert [(h.base_offset, h.last_offset, h.count) for h in headers(log.read(0, MEGABYTE))] == [
        (0, 2, 1), (3, 4, 1), (5, 5, 1),
    ]  # fmt: skip


def test_batches_with_nothing_left_go_and_reads_find_what_is_next(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for number in range(20):
        append(
            log,
            keyed(
                (b"k%d" % (number % 2), b"x"),
                (b"only%d" % number if number % 5 == 0 else b"k0", b"y"),
            ),
        )
    roll(log)
    run(log)
    kept = [record.offset for record in read_all(log)]
    assert kept == [1, 11, 21, 31, 38, 39, 40]
    for offset in range(41):
        first = headers(log.read(offset, 1))[0]
        following = next(at for at in kept if at >= offset)
        assert first.base_offset <= following <= first.last_offset
        assert log.bytes_from(offset, MEGABYTE) == sum(
            len(view) for start in [offset] for view in _views(log, start)
        )


def _views(log: PartitionLog, offset: int) -> list[memoryview]:
    views = []
    while offset < log.log_end_offset:
        views.append(log.read(offset, MEGABYTE))
        offset = headers(views[-1])[-1].last_offset + 1
    return views


def test_last_segment_is_left_alone(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for _ in range(3):
        append(log, keyed((b"a", b"0")))
    run(log)
    assert len(rows(log)) == 3
    assert cleanable(log, ALWAYS, T0) is None


def test_pass_starts_when_enough_was_not_seen_yet(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    config = topic_config(cleanup_policy="compact", min_cleanable_dirty_ratio="0.5")
    for number in range(100):
        append(log, keyed((b"%d" % number, b"x" * 10)))
    roll(log)
    run(log, config)
    assert log.clean_end == 100
    append(log, keyed((b"1", b"new")))
    roll(log)
    run(log, config)  # a hundredth is new
    assert len(rows(log)) == 101
    run(log)
    assert len(rows(log)) == 100
    assert log.clean_end == log.segments[-1].base_offset


def test_log_with_more_keys_than_a_pass_remembers_is_compacted_by_several(
    new_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MAX_KEYS", 4)
    log = new_log(MEGABYTE)
    for _ in range(2):
        for first in range(0, 6, 2):
            append(log, keyed((b"%d" % first, b""), (b"%d" % (first + 1), b"")))
    roll(log)
    run(log)
    assert log.clean_end == 4  # two batches have as many keys as a pass remembers
    assert len(rows(log)) == 12
    run(log)
    assert log.clean_end == 8
    run(log)
    assert log.clean_end == 12
    assert [offset for offset, _, _ in rows(log)] == [6, 7, 8, 9, 10, 11]


def test_records_younger_than_the_lag_are_left_alone(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for minute in range(4):
        append(log, keyed((b"a", b"0"), timestamp=T0 + minute * 60_000))
        append(log, keyed((b"a", b"1"), timestamp=T0 + minute * 60_000))
        log.configure(topic_config(segment_ms="59000"))
    config = topic_config(
        cleanup_policy="compact", min_cleanable_dirty_ratio="0", min_compaction_lag_ms="120000"
    )
    run(log, config, now_ms=T0 + 3 * 60_000)
    assert [offset for offset, _, _ in rows(log)] == [3, 4, 5, 6, 7]


def test_segments_behind_one_that_is_too_young_are_left_alone(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for timestamp in (T0, T0 + DAY_MS, T0, T0):
        append(log, keyed((b"a", b"0"), (b"a", b"1"), timestamp=timestamp))
        log.configure(dataclasses.replace(topic_config(), segment_ms=-(2**62)))
    assert len(log.segments) == 4
    config = topic_config(
        cleanup_policy="compact", min_cleanable_dirty_ratio="0", min_compaction_lag_ms="1000"
    )
    run(log, config, now_ms=T0 + DAY_MS)
    assert [offset for offset, _, _ in rows(log)] == [1, 2, 3, 4, 5, 6, 7]
    assert log.clean_end == 2


def test_overdue_records_start_a_pass_whatever_the_ratio(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for _ in range(2):
        append(log, keyed((b"a", b"0")))
    roll(log)
    config = topic_config(
        cleanup_policy="compact", min_cleanable_dirty_ratio="1", max_compaction_lag_ms="1000"
    )
    run(log, config, now_ms=T0 + 1000)
    assert len(rows(log)) == 2
    run(log, config, now_ms=T0 + 1001)
    assert len(rows(log)) == 1


def test_tombstone_stays_for_its_time_and_takes_the_key_along(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    config = topic_config(
        cleanup_policy="compact", min_cleanable_dirty_ratio="0", delete_retention_ms="1000"
    )

    def passed(now_ms: int) -> list[tuple[int, bytes | None, bytes | None]]:
        append(log, keyed((b"other", b"%d" % now_ms)))
        roll(log)
        run(log, config, now_ms)
        return [row for row in rows(log) if row[1] != b"other"]

    append(log, keyed((b"a", b"0"), (b"b", b"1"), (b"a", None)))
    before = read_all(log)
    assert passed(T0 + 500) == [(1, b"b", b"1"), (2, b"a", None)]
    (header, *_) = headers(log.read(0, MEGABYTE))
    assert header.delete_horizon_ms == T0 + 1500
    assert [r for r in read_all(log) if r.offset < 3] == before[1:]  # with their own times
    assert passed(T0 + 1499) == [(1, b"b", b"1"), (2, b"a", None)]
    assert passed(T0 + 1500) == [(1, b"b", b"1")]


def test_last_batch_of_a_producer_stays_if_empty(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for sequence in range(3):
        append(log, keyed((b"a", b"0"), producer=0, seq=sequence))
    append(log, keyed((b"a", b"new")))
    roll(log)
    run(log)
    assert rows(log) == [(3, b"a", b"new")]
    first = headers(log.read(0, MEGABYTE))[0]
    assert (first.base_offset, first.count, first.producer_id, first.base_sequence) == (2, 0, 0, 2)
    assert append(log, keyed((b"a", b"0"), producer=0, seq=2)).is_duplicate
    append(log, keyed((b"a", b"0"), producer=0, seq=3))
    roll(log)
    run(log)  # it is not the last one any more
    assert rows(log) == [(5, b"a", b"0")]
    assert headers(log.read(0, MEGABYTE))[0].base_offset == 4


def test_records_without_a_key_go_and_the_last_batch_of_a_pass_stays_if_empty(
    new_log: OpenLog,
) -> None:
    log = new_log(MEGABYTE)
    append(log, records.build_batch([(T0, None, b"0", ()), (T0, b"a", b"1", ())]))
    append(log, records.build_batch([(T0, None, b"2", ())]))
    roll(log)
    run(log)
    assert rows(log) == [(1, b"a", b"1")]
    assert [(h.base_offset, h.count) for h in headers(log.read(0, MEGABYTE))] == [(0, 1), (2, 0)]
    assert log.offset_of_newest() == (3, T0 + 2 * DAY_MS + 30)
    roll(log)
    run(log)
    assert [(h.base_offset, h.count) for h in headers(log.read(0, MEGABYTE))] == [(0, 1), (3, 1)]


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_batches_stay_compressed(new_log: OpenLog, codec: str) -> None:
    log = new_log(MEGABYTE)
    append(log, keyed(*((b"%d" % (n % 10), b"x" * n) for n in range(50)), codec=codec))
    append(log, keyed((b"3", None), codec=codec))
    roll(log)
    before = {record.offset: record for record in read_all(log)}
    run(log)
    assert [offset for offset, _, _ in rows(log)] == [40, 41, 42, *range(44, 51)]
    assert all(record == before[record.offset] for record in read_all(log))
    found = headers(log.read(0, MEGABYTE))
    assert [header.codec.name.lower() for header in found] == [codec, codec]


def test_times_are_found_among_what_is_left(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for minute in range(10):
        append(log, keyed((b"%d" % (minute % 3), b""), timestamp=T0 + minute * 60_000))
        log.configure(topic_config(segment_ms="150000"))
    assert log.offset_at_time(T0) == (0, T0)
    run(log)
    kept = [(record.offset, record.timestamp) for record in read_all(log)]
    assert len(kept) < 10
    for minute in range(11):
        at = T0 + minute * 60_000
        assert log.offset_at_time(at) == next((each for each in kept if each[1] >= at), None)


def test_append_time_is_kept(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for number in range(3):
        built = keyed((b"a", b"0"), (b"b", b"1"))
        ((header, _),) = iter_batches(memoryview(built))
        log.append(header, built, leader_epoch=4, append_time_ms=T0 + 10 * number)
    roll(log)
    run(log)
    kept = [record for record in read_all(log) if record.key != b"rolled"]
    assert [(record.offset, record.timestamp, record.timestamp_type) for record in kept] == [
        (4, T0 + 20, 1), (5, T0 + 20, 1),
    ]  # fmt: skip
    assert headers(log.read(0, MEGABYTE))[0].leader_epoch == 4


def test_views_handed_out_stay_as_they_were(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for number in range(50):
        append(log, keyed((b"%d" % (number % 3), b"x" * 100)))
    roll(log)
    views = [log.read(offset, MEGABYTE) for offset in range(50)]
    before = [bytes(view) for view in views]
    run(log)
    assert log.size < len(before[0])
    assert [bytes(view) for view in views] == before


def test_segments_are_put_together_up_to_their_size_and_else_left_as_they_are(
    new_log: OpenLog,
) -> None:
    log = new_log(MEGABYTE)
    for number in range(8):
        log.configure(topic_config(segment_ms="1"))
        append(log, keyed((b"%d" % number, b"x"), timestamp=T0 + 10 * number))
    before = [*log.segments]
    size = before[0].size
    run(log, dataclasses.replace(ALWAYS, segment_bytes=2 * size - 1))
    assert (log.clean_end, log.segments) == (7, before)
    append(log, keyed((b"8", b"x"), timestamp=T0 + 80))
    run(log, dataclasses.replace(ALWAYS, segment_bytes=2 * size))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    assert len(rows(log)) == 9


def test_small_segments_are_put_together(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for number in range(20):
        log.configure(topic_config(segment_ms="1"))
        append(log, keyed((b"%d" % (number % 5), b"x"), timestamp=T0 + 10 * number))
    assert len(log.segments) == 20
    run(log)
    assert len(log.segments) == 2
    assert [offset for offset, _, _ in rows(log)] == [14, 15, 16, 17, 18, 19]


@pytest.mark.parametrize(
    "disturb",
    ["truncate", "truncate to the last", "delete records", "retention", "go on", "delete"],
)
def test_log_that_is_changed_meanwhile_is_left_to_the_next_pass(
    new_log: OpenLog, disturb: str
) -> None:
    log = new_log(MEGABYTE)
    for number in range(30):
        log.configure(topic_config(segment_ms="1"))
        append(log, keyed((b"%d" % (number % 5), b"x"), timestamp=T0 + 10 * number))
    steps = compact(log, ALWAYS, T0 + DAY_MS)
    for _ in range(40):
        next(steps)
    if disturb == "truncate":
        log.truncate_to(10)
    elif disturb == "delete records":
        log.delete_before(10)
    elif disturb == "truncate to the last":
        log.truncate_to(29)
    elif disturb == "retention":
        log.expire_segments(10)
    elif disturb == "go on":
        log.expire_segments(1)
        for number in range(30, 35):
            append(log, keyed((b"%d" % (number % 5), b"x"), timestamp=T0 + 10 * number))
    else:
        log.delete()
    before = rows(log)
    for _ in steps:
        pass
    assert rows(log) == before
    assert log.clean_end == 0


def test_log_can_be_cut_where_it_was_compacted(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for number in range(10):
        append(log, keyed((b"a" if number < 8 else b"%d" % number, b"x")))
    roll(log)
    run(log)
    assert [header.base_offset for header in headers(log.read(0, MEGABYTE))] == [7, 8, 9]
    assert log.truncate_to(9) == 9
    assert append(log, keyed((b"a", b"y"))).base_offset == 9
    assert log.truncate_to(3) == 0  # there was nothing left before 7
    assert append(log, keyed((b"a", b"y"))).base_offset == 0


@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=4), max_size=30
    ),
    passes=st.sets(st.integers(0, 30), max_size=5),
    segment=st.integers(1, 6),
)
def test_what_is_left_is_what_a_table_would_have(
    batches: Sequence[Sequence[tuple[int, bool]]], passes: set[int], segment: int
) -> None:
    log = open_log(MemoryStore(MEGABYTE))
    table: dict[bytes, tuple[int, bytes | None]] = {}
    clean_end = 0
    everything: dict[int, tuple[bytes, bytes | None]] = {}
    for number, batch in enumerate(batches):
        log.configure(topic_config(segment_ms=str(segment)))
        pairs: list[Row] = [(b"%d" % key, b"v" if has_value else None) for key, has_value in batch]
        base = append(log, keyed(*pairs, timestamp=T0 + 2 * number)).base_offset
        everything.update({base + n: pair for n, pair in enumerate(pairs)})
        if number in passes:
            run(log, now_ms=T0 + number)
            clean_end = max(clean_end, log.clean_end)
    for offset, (key, value) in everything.items():
        if offset < clean_end:
            table[key] = (offset, value)
    kept = {offset for offset, _ in table.values()}
    expected = [
        (offset, *pair)
        for offset, pair in everything.items()
        if offset >= clean_end or offset in kept
    ]
    assert rows(log) == expected


# Crashes


def snapshot(log: PartitionLog) -> tuple[object, ...]:
    return rows(log), log.log_end_offset, log.epochs.entries, log.producers.snapshot()


def filled(
    folder: Path, run_slowly: Callable[[Callable[[], None]], None], batches: int = 30
) -> PartitionLog:
    log = PartitionLog(FolderStore(folder, MEGABYTE), run_slowly=run_slowly)
    for number in range(batches):
        log.configure(topic_config(segment_ms="1"))
        append(
            log,
            keyed((b"%d" % (number % 4), b"x"), timestamp=T0 + 10 * number, producer=3, seq=number),
        )
    return log


def test_crash_at_any_step_leaves_the_log_as_it_was_or_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = filled(tmp_path / "a", lambda work: work(), 8)
    before = snapshot(original)
    run(original)
    after = snapshot(original)
    assert before != after

    class CrashError(BaseException):
        pass

    def crash_at(step: int, folder: Path) -> bool:
        """Stop at the so manieth change to the names in the folder; say whether there was one."""
        log = filled(folder, lambda work: work(), 8)
        steps = 0

        def counting(change: Callable[..., object]) -> Callable[..., object]:
            def changed(*args: object, **options: object) -> object:
                nonlocal steps
                if steps == step:
                    raise CrashError
                steps += 1
                return change(*args, **options)

            return changed

        with monkeypatch.context() as patched:
            for name in ("replace", "unlink"):
                patched.setattr(Path, name, counting(getattr(Path, name)))
            try:
                run(log)
            except CrashError:
                return True
        return False

    step, seen = 0, []
    while crash_at(step, tmp_path / "crashed"):
        again = open_log(FolderStore(tmp_path / "crashed", MEGABYTE))
        seen.append(snapshot(again))
        append(again, keyed((b"9", b"9")))
        again.close()
        assert not [
            *(tmp_path / "crashed").glob("*.cleaned"),
            *(tmp_path / "crashed").glob("*.swap"),
        ]
        shutil.rmtree(tmp_path / "crashed")
        step += 1
    assert step > 10
    first = seen.index(after)
    assert all(each == before for each in seen[:first])
    assert all(each == after for each in seen[first:])
    assert first > 0


def test_compacted_log_survives_a_kill(tmp_path: Path) -> None:
    log = filled(tmp_path, lambda work: work())
    run(log)
    before = snapshot(log)
    again = open_log(FolderStore(tmp_path, MEGABYTE))
    assert snapshot(again) == before
    assert again.clean_end == log.clean_end
    again.close()


def test_log_compacted_twice_before_the_disk_has_settled_is_whole(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []
    log = filled(tmp_path, waiting.append)
    run(log)
    for number in range(5):
        log.configure(topic_config(segment_ms="1"))
        append(log, keyed((b"%d" % number, b"y"), timestamp=T0 + DAY_MS + 10 * number))
    run(log)
    log.truncate_to(33)
    before = snapshot(log)
    for work in waiting:
        work()
    again = open_log(FolderStore(tmp_path, MEGABYTE))
    assert snapshot(again) == before
    again.close()


def test_gaps_are_known_of_after_a_restart(tmp_path: Path) -> None:
    log = filled(tmp_path, lambda work: work())
    run(log)
    log.close()
    again = open_log(FolderStore(tmp_path, MEGABYTE))
    offsets: Mapping[int, int] = {
        offset: headers(again.read(offset, 1))[0].last_offset for offset in range(30)
    }
    assert all(last >= offset for offset, last in offsets.items())
    again.close()


# Transactions


def transactional(*pairs: Row, producer: int, seq: int) -> bytes:
    return records.build_batch(
        [(T0, key, value, ()) for key, value in pairs],
        producer_id=producer,
        producer_epoch=0,
        base_sequence=seq,
        is_transactional=True,
    )


def marker(control_type: ControlType, *, producer: int) -> bytes:
    return records.control_batch(
        control_type, producer_id=producer, producer_epoch=0, timestamp_ms=T0
    )


def layout(log: PartitionLog) -> list[tuple[int, int, bool]]:
    """Return (base offset, records, is it a marker) of every batch but those that roll."""
    return [
        (header.base_offset, header.count, header.is_control)
        for view in _views(log, log.log_start_offset)
        for header, batch in iter_batches(view)
        if not any(record.key == b"rolled" for record in decode_all(batch))
    ]


SHORT = topic_config(
    cleanup_policy="compact", min_cleanable_dirty_ratio="0", delete_retention_ms="1000"
)


def test_aborted_records_go_at_once_and_their_marker_after_a_tombstones_time(
    new_log: OpenLog,
) -> None:
    log = new_log(MEGABYTE)
    append(log, keyed((b"a", b"0")))
    append(log, transactional((b"a", b"1"), (b"b", b"2"), producer=7, seq=0))
    append(log, transactional((b"c", b"3"), producer=7, seq=2))
    append(log, marker(ControlType.ABORT, producer=7))
    append(log, transactional((b"d", b"4"), producer=7, seq=3))
    append(log, marker(ControlType.COMMIT, producer=7))
    aborted = log.producers.transactions.aborted_within
    kept = [(0, 1, False), (4, 1, True), (5, 1, False), (6, 1, True)]

    def passed(now_ms: int) -> list[tuple[int, int, bool]]:
        roll(log)
        run(log, SHORT, now_ms)
        return layout(log)

    # The marker stays: its records were there when the pass began. The one of a commit, too.
    assert passed(T0 + 500) == kept
    assert [each.last_offset for each in aborted(0, 100)] == [4]
    # Now it is needless: its time begins.
    assert passed(T0 + 600) == kept
    assert passed(T0 + 1599) == kept
    assert passed(T0 + 1600) == [(0, 1, False), (5, 1, False), (6, 1, True)]
    # Or a reader would take the next transaction's records for aborted ones.
    assert aborted(0, 100) == []
    assert [offset for offset, _, _ in rows(log)] == [0, 5]


def test_records_behind_an_open_transaction_are_left_alone(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for _ in range(2):
        append(log, keyed((b"a", b"0")))
        roll(log)
    append(log, transactional((b"b", b"1"), producer=7, seq=0))
    roll(log)
    for _ in range(2):
        append(log, keyed((b"b", b"0")))
    roll(log)
    run(log)
    assert [offset for offset, _, _ in rows(log)] == [2, 4, 6, 7]
    append(log, marker(ControlType.COMMIT, producer=7))
    roll(log)
    run(log)
    assert [offset for offset, _, _ in rows(log)] == [2, 7]


def test_records_up_to_an_open_transaction_are_compacted(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    for _ in range(2):
        append(log, keyed((b"a", b"0")))
    log.configure(dataclasses.replace(topic_config(), segment_ms=-(2**62)))
    append(log, transactional((b"b", b"1"), producer=7, seq=0))
    assert log.segments[-1].base_offset == log.last_stable_offset == 2
    run(log)
    assert [offset for offset, _, _ in rows(log)] == [1, 2]


def test_marker_goes_in_time_if_its_transaction_has_no_records(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    append(log, keyed((b"a", b"0")))
    append(log, marker(ControlType.ABORT, producer=7))  # 1: of nothing
    append(log, transactional((b"b", b"2"), producer=8, seq=0))
    append(log, marker(ControlType.COMMIT, producer=8))  # 3: its record stays
    append(log, transactional((b"c", b"4"), producer=8, seq=1))
    append(log, marker(ControlType.COMMIT, producer=8))  # 5: its record goes
    append(log, transactional((b"c", b"6"), producer=9, seq=0))
    append(log, marker(ControlType.COMMIT, producer=9))
    append(log, transactional((b"d", b"8"), producer=8, seq=2))
    append(log, marker(ControlType.COMMIT, producer=8))
    append(log, transactional((b"d", b"9"), producer=7, seq=0))
    append(log, marker(ControlType.COMMIT, producer=7))
    kept = [(0, 1, False), (2, 1, False), (3, 1, True)]
    for now_ms in (T0, T0 + 1, T0 + 1_001, T0 + 2_002, T0 + 3_003):
        roll(log)
        run(log, SHORT, now_ms)
    assert layout(log)[:3] == kept
    assert 5 not in [offset for offset, count, _ in layout(log) if count]


def test_aborted_record_does_not_supersede(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    append(log, keyed((b"a", b"0")))
    append(log, transactional((b"a", b"1"), producer=7, seq=0))
    append(log, transactional((b"a", b"2"), producer=8, seq=0))
    append(log, marker(ControlType.ABORT, producer=8))
    append(log, marker(ControlType.ABORT, producer=7))
    roll(log)
    run(log)
    assert rows(log) == [(0, b"a", b"0")]


def test_record_committed_after_an_abort_of_its_producer_supersedes(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    append(log, keyed((b"a", b"0")))
    for sequence, outcome in enumerate((ControlType.ABORT, ControlType.COMMIT)):
        append(log, transactional((b"a", b"x"), producer=7, seq=sequence))
        append(log, marker(outcome, producer=7))
    roll(log)
    run(log)
    assert rows(log) == [(3, b"a", b"x")]


def test_marker_that_went_is_not_found_again_after_a_kill(tmp_path: Path) -> None:
    def reopened() -> PartitionLog:
        return open_log(FolderStore(tmp_path, MEGABYTE))

    log = reopened()
    append(log, transactional((b"a", b"1"), producer=7, seq=0))
    append(log, marker(ControlType.ABORT, producer=7))
    append(log, transactional((b"a", b"2"), producer=7, seq=1))
    append(log, marker(ControlType.COMMIT, producer=7))
    for now_ms in (T0, T0 + 1, T0 + 1001):
        roll(log)
        run(log, SHORT, now_ms)
    again = reopened()
    assert layout(again) == layout(log) == [(2, 1, False), (3, 1, True)]
    assert again.producers.transactions.aborted_within(0, 100) == []
    again.close()
