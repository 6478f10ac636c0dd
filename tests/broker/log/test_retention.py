"""Old segments are deleted: by age, by size, on a timer or when asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.log.partition_log import PartitionLog, count_expired
from aiokafka_lite.broker.log.storage import FolderStore
from aiokafka_lite.errors import OffsetOutOfRangeError
from tests.broker.log.conftest import OpenLog
from tests.broker.logs import MEGABYTE, T0, Clock, append, batch, contents, open_log, topic_config
from tests.broker.wire import eventually, fetch, fetch_partition
from tests.support.wire import RawClient

SIZE = len(batch())
HOUR_MS = 3_600_000


def hourly(new_log: OpenLog, hours: Sequence[int]) -> PartitionLog:
    """Make a log with a segment of one batch for each hour given."""
    log = new_log(SIZE)
    for hour in hours:
        append(log, batch(timestamp=T0 + hour * HOUR_MS))
    assert len(log.segments) == len(hours)
    return log


@pytest.fixture
def new_small_log(tmp_path: Path) -> OpenLog:
    """Make logs whose segments are as small as they are asked to be: those in files are."""
    return lambda segment_bytes: open_log(FolderStore(tmp_path / "log", segment_bytes))


@pytest.mark.parametrize(
    ("retention_bytes", "expired"),
    [("-1", 0), ("0", 5), ("1", 4), (str(SIZE), 4), (str(SIZE + 1), 3), (str(5 * SIZE), 0)],
)
def test_at_least_the_retained_bytes_are_left(
    new_small_log: OpenLog, retention_bytes: str, expired: int
) -> None:
    log = hourly(new_small_log, range(5))
    config = topic_config(retention_bytes=retention_bytes, retention_ms="-1")
    assert count_expired(log.segments, config, T0) == expired


@pytest.mark.parametrize(
    ("hours", "expired"),
    [
        ((0, 1, 2, 3, 4, 5), 2),
        ((1, 0, 2, 3, 4, 5), 2),
        ((2, 0, 1, 3, 4, 5), 0),  # what is behind a newer one stays
        ((0, 0, 0), 3),  # the last segment, too
        ((0, 9, 0), 1),  # a time that has not come yet
    ],
)
def test_segments_go_while_their_newest_record_is_too_old(
    new_small_log: OpenLog, hours: Sequence[int], expired: int
) -> None:
    log = hourly(new_small_log, hours)
    config = topic_config(retention_ms=str(3 * HOUR_MS))
    assert count_expired(log.segments, config, T0 + 5 * HOUR_MS) == expired


def test_age_counts_from_the_newest_record_of_a_segment(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    append(log, batch(timestamp=T0))
    append(log, batch(timestamp=T0 + HOUR_MS))
    config = topic_config(retention_ms="1000")
    assert count_expired(log.segments, config, T0 + HOUR_MS + 1000) == 0
    assert count_expired(log.segments, config, T0 + HOUR_MS + 1001) == 1


def test_retention_of_no_time_keeps_nothing_that_is_older_than_now(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    append(log, batch(timestamp=T0))
    config = topic_config(retention_ms="0")
    assert [count_expired(log.segments, config, T0 + late) for late in (0, 1)] == [0, 1]


@pytest.mark.parametrize("first", [0, T0])
@pytest.mark.parametrize("is_known", [True, False])
def test_time_of_a_segment_counts_from_its_first_record(
    new_log: OpenLog, first: int, is_known: bool
) -> None:
    log = new_log(MEGABYTE)
    config = topic_config(segment_ms="1000")
    if is_known:
        log.configure(config)
    append(log, batch(timestamp=first))
    if not is_known:
        log.configure(config)
    append(log, batch(timestamp=first + 1_000))
    assert len(log.segments) == 1
    append(log, batch(timestamp=first + 1_001))
    assert len(log.segments) == 2


def test_segment_without_times_is_not_rolled_by_time(new_log: OpenLog) -> None:
    log = new_log(MEGABYTE)
    log.configure(topic_config(segment_ms="1000"))
    for timestamp in (-1, T0):
        append(log, batch(timestamp=timestamp))
    log.configure(topic_config(segment_ms="1000"))
    append(log, batch(timestamp=2 * T0))
    assert len(log.segments) == 1


@pytest.mark.parametrize("policy", [{"cleanup_policy": "delete"}, {"cleanup_policy": "compact"}])
def test_next_record_starts_a_segment_when_its_time_has_come(
    new_log: OpenLog, policy: dict[str, str]
) -> None:
    log = new_log(MEGABYTE)
    log.configure(topic_config(segment_ms="1000", max_compaction_lag_ms="500", **policy))
    limit = 500 if policy["cleanup_policy"] == "compact" else 1000
    for after_ms, segments in ((0, 1), (limit, 1), (limit + 1, 2), (0, 2), (2 * limit + 2, 3)):
        append(log, batch(timestamp=T0 + after_ms))
        assert len(log.segments) == segments
    log.configure(topic_config())
    append(log, batch(timestamp=T0 + 7 * 24 * HOUR_MS))
    assert len(log.segments) == 3


def test_log_goes_on_behind_what_was_deleted(new_log: OpenLog) -> None:
    log = new_log(2 * SIZE)
    for _ in range(200):
        append(log, batch(timestamp=T0))
    views = [log.read(offset, MEGABYTE) for offset in range(200)]
    before = [bytes(view) for view in views]
    count = len(log.segments)
    boundary = log.segments[1].base_offset
    log.expire_segments(1)
    assert (log.log_start_offset, log.log_end_offset) == (boundary, 200)
    log.expire_segments(count - 1)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (200, 200, 0)
    assert log.read(200, MEGABYTE) == b""
    with pytest.raises(OffsetOutOfRangeError):
        log.read(199, MEGABYTE)
    assert log.offset_at_time(0) is None
    assert append(log, batch()).base_offset == 200
    assert [header_offset for header_offset, _ in contents(log)] == [200]
    assert [bytes(view) for view in views] == before


def test_log_without_segments_remembers_its_end_over_a_kill(tmp_path: Path) -> None:
    def reopened() -> PartitionLog:
        return open_log(FolderStore(tmp_path / "log", SIZE))

    log = reopened()
    for number in range(3):
        append(log, batch(producer_id=5, producer_epoch=0, base_sequence=number))
    log.expire_segments(3)
    again = reopened()
    assert (again.log_start_offset, again.log_end_offset) == (3, 3)
    assert append(again, batch(producer_id=5, producer_epoch=0, base_sequence=2)).is_duplicate
    assert append(again, batch()).base_offset == 3
    again.close()


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_pass_deletes_what_is_too_old_and_answers_who_waits_for_it(
    tmp_path: Path, is_on_disk: bool
) -> None:
    clock = Clock()
    async with Broker(clock=clock, data_dir=tmp_path if is_on_disk else None) as broker:
        broker.create_topic("old", configs={"retention.ms": "1000"})
        broker.create_topic("kept", configs={"retention.ms": "-1"})
        broker.create_topic("keyed", configs={"retention.ms": "1", "cleanup.policy": "compact"})
        for topic in ("old", "kept", "keyed"):
            broker.partition(topic, 0).append(batch(3, timestamp=T0))
        async with RawClient(broker.bootstrap_servers) as client:
            waiting = asyncio.ensure_future(
                fetch(
                    client,
                    "old",
                    fetch_partition(offset=1),
                    min_bytes=MEGABYTE,
                    max_wait_ms=600_000,
                )
            )
            await eventually(lambda: len(broker.purgatory) == 1)
            await broker.clean_logs()
            assert broker.partition("old", 0).log_start_offset == 0
            clock.now_ms += 5_000
            await broker.clean_logs()
            assert (await waiting).error_code == OffsetOutOfRangeError.errno
        starts = [broker.partition(name, 0).log_start_offset for name in ("old", "kept", "keyed")]
        assert starts == [3, 0, 0]


async def test_timer_deletes_what_is_too_old() -> None:
    clock = Clock()
    async with Broker(clock=clock, log_retention_check_interval_ms=1) as broker:
        broker.create_topic("old", configs={"retention.ms": "1000"})
        partition = broker.partition("old", 0)
        partition.append(batch(3, timestamp=T0))
        clock.now_ms += 5_000
        await eventually(lambda: partition.log_start_offset == 3)
