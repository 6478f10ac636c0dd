"""Lists of `batch_size` that wait for more records, in virtual time."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from aiokafka_lite.consumer.processing.handling import CircuitBreaker, Handling
from aiokafka_lite.processing import Retry
from tests.consumer.processing.shaping import A, B, Shaped, now
from tests.support.for_each import for_each

pytestmark = pytest.mark.virtual_time

KEYS = [b"%d" % number for number in range(40)]


@pytest.mark.parametrize("order", ["key", "partition", None])
async def test_a_list_waits_until_it_is_full_or_its_first_record_has_waited_so_long(
    order: str | None,
) -> None:
    case = Shaped(order=order, batch_size=5, batch_wait_ms=100)
    async with case.running():
        case.put([b"a", b"b"])
        await asyncio.sleep(0.06)
        assert case.calls == []
        case.put([b"c", b"a", b"a", b"d"])  # full, and one is left
        await asyncio.sleep(0.09)
        (_, first), *others = case.offsets
        assert (len(first), others) == (5, [])
        await asyncio.sleep(0.05)
    (at, full), (later, rest) = case.offsets
    assert (at, later, sorted(full + rest)) == (0.06, 0.16, list(range(6)))


async def test_a_list_that_waits_takes_no_handler_and_delays_no_rebalance() -> None:
    case = Shaped(A, B, concurrency=1, batch_size=3, batch_wait_ms=1_000)
    async with case.running():
        case.put([b"a"])
        case.put([b"b"], B)
        await asyncio.sleep(0.1)
        assert case.run.counts()["ready"] == 2
        case.buffers.state.withhold([A])
        assert not case.run.is_open
        assert case.run.undone([A]) == {}
        case.buffers.state.change([A], [])  # the records of A are not begun
        case.put([b"c", b"d"], B)
        await asyncio.sleep(0.1)
        assert [(each.partition, each.offset) for each in case.done] == [(1, 0), (1, 1), (1, 2)]
    assert case.offsets[0][0] == 0.1


async def test_a_list_does_not_wait_if_no_more_records_can_come() -> None:
    case = Shaped(batch_size=100, batch_wait_ms=60_000, max_uncommitted=10)
    async with case.running():
        case.put(KEYS)
        await asyncio.sleep(0.1)
        assert len(case.done) == 40
        case.put([b"x"])
        await asyncio.sleep(1)
        assert len(case.done) == 40
        began = now()  # and a stop does not wait for it
    assert now() == began


async def test_lists_wait_for_handlers_and_have_more_records_then() -> None:
    case = Shaped(
        concurrency=1, batch_size=20, batch_wait_ms=10, seconds=lambda record: 0.1, order=None
    )
    case.put(KEYS[:1])
    async with case.running():
        await asyncio.sleep(0.05)
        for key in KEYS[1:]:
            case.put([key])
            await asyncio.sleep(0.001)
        await case.until_over()
    assert [len(given) for _, given in case.calls] == [1, 20, 19]


async def test_a_paused_partition_fills_no_list_and_its_records_begin_when_it_is_resumed() -> None:
    case = Shaped(A, B, batch_size=2, batch_wait_ms=100)
    state = case.buffers.state
    async with case.running():
        case.put([b"a"])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        state.pause(case.buffers.partition(A))
        case.put([b"b"], B)
        await asyncio.sleep(0.5)
        assert [(each.partition, each.offset) for each in case.done] == [(1, 0)]
        state.resume(case.buffers.partition(A))
        await asyncio.sleep(0.5)
    assert len(case.done) == 2


async def test_a_list_begins_when_it_is_due_although_no_record_of_the_one_before_it_may() -> None:
    for event in ("revoked", "paused"):
        case = Shaped(A, B, concurrency=1, batch_size=10, batch_wait_ms=100, batch_by="partition")
        state, began = case.buffers.state, now()
        async with case.running():
            case.put([b"a"])
            case.put([b"b"], B)
            await asyncio.sleep(0.05)
            if event == "revoked":
                state.withhold([A])
                state.change([A], [])
            else:
                state.pause(case.buffers.partition(A))
            await asyncio.sleep(0.1)
        begun = [(at - began, each.partition) for at, given in case.calls for each in given]
        assert begun == [(pytest.approx(0.1), 1)], event


async def test_while_handling_pauses_no_record_waits_for_a_list() -> None:
    until_s = 30.0
    case = Shaped(
        batch_size=5,
        batch_wait_ms=50,
        retry=Retry(attempts=3, first_delay_ms=100),
        fails=lambda record: now() < until_s,
        breaker=CircuitBreaker(min_calls=2),
    )
    async with case.running():
        for key in KEYS:
            case.put([key])
            await asyncio.sleep(0.02)
        await case.until_over(60)
    assert case.dead == []
    lengths = [len(given) for at, given in case.calls if 1 < at < until_s]
    assert set(lengths) == {1}
    assert len(lengths) < 20


@for_each(
    [
        ({"batch_wait_ms": -1}, ValueError),
        ({"batch_wait_ms": math.inf}, ValueError),
        ({"batch_wait_ms": "5"}, TypeError),
        ({"batch_wait_ms": 5, "batch_size": None}, ValueError),
        ({"batch_by": "keys"}, ValueError),
        ({"batch_by": "key", "batch_size": None}, ValueError),
    ]
)
def test_an_argument_that_lists_cannot_use_is_refused(
    arguments: dict[str, Any], kind: type[Exception]
) -> None:
    (name, *_) = arguments
    with pytest.raises(kind, match=name):
        Handling(
            **{
                "concurrency": 1,
                "order": "key",
                "batch_size": 5,
                "max_uncommitted": 1,
                "retry": Retry(),
                "dead_letter": None,
                "breaker": None,
                **arguments,
            }
        )


@pytest.mark.parametrize("wait_ms", [0, 50])
@pytest.mark.parametrize("order", ["key", "partition", None])
@pytest.mark.parametrize("by", ["key", "partition"])
async def test_a_list_has_records_of_one_key_or_partition_in_order(
    by: str, order: str | None, wait_ms: float
) -> None:
    case = Shaped(
        A, B, order=order, batch_size=4, batch_by=by, batch_wait_ms=wait_ms, concurrency=3,
        seconds=lambda record: 0.001,
    )  # fmt: skip
    keys = [b"a", b"b", None, b"a", b"c", b"b", b"a", None] * 5
    case.put(keys)
    case.put(keys, B)
    async with case.running():
        await case.until_over()
    lists = [given for _, given in case.calls]
    assert max(map(len, lists)) == (4 if (by, order) != ("key", "partition") else 1)
    for given in lists:
        assert len({each.key if by == "key" else None for each in given}) == 1
        assert len({each.partition for each in given}) == 1
    done = [
        (each.partition, each.key if order == "key" else b"", each.offset) for each in case.done
    ]
    if order is not None:
        lanes = [lane for lane in done if lane[1] is not None]
        assert all(
            [each for each in lanes if each[:2] == lane[:2]]
            == sorted(each for each in lanes if each[:2] == lane[:2])
            for lane in lanes
        )


async def test_lists_by_key_wait_each_for_its_own_records() -> None:
    case = Shaped(batch_size=3, batch_by="key", batch_wait_ms=100)
    async with case.running():
        case.put([b"a", b"b", b"a"])
        await asyncio.sleep(0.05)
        case.put([b"c", b"b", b"a", None])  # the list of a is full
        await case.until_over()
    assert case.offsets == [(0.05, [0, 2, 5]), (0.1, [1, 4]), (0.15, [3]), (0.15, [6])]


async def test_full_lists_without_end_do_not_delay_a_list_that_is_due() -> None:
    cases: list[dict[str, Any]] = [
        {"batch_by": "partition", "batch_wait_ms": 50, "order": None},
        {"batch_by": "partition", "order": "key"},
        {"batch_by": "key", "batch_wait_ms": 50, "concurrency": 1},
        {"list_of": lambda record: record.partition},
    ]
    for settings in cases:
        case = Shaped(
            A, B, batch_size=10, seconds=lambda record: 0.01, **{"concurrency": 2, **settings}
        )
        async with case.running():
            case.put([b"%d" % (number % 7) for number in range(200)])
            await asyncio.sleep(0.02)
            case.put([b"cold"], B)
            for _ in range(15):
                await asyncio.sleep(0.1)
                case.put([b"%d" % (number % 7) for number in range(20)])
            assert case.run.counts()["uncommitted"] >= 20
            assert any(record.partition == 1 for record in case.done), settings


async def test_records_of_a_key_that_follow_a_running_list_are_the_next_list() -> None:
    case = Shaped(batch_size=3, batch_by="key", batch_wait_ms=10, seconds=lambda record: 0.1)
    case.put([b"a"] * 7)
    async with case.running():
        await case.until_over()
    assert case.offsets == [(0, [0, 1, 2]), (0.3, [3, 4, 5]), (0.61, [6])]


# --- Lists that fail --------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["key", "partition", None])
async def test_few_calls_find_the_bad_records_of_a_list_and_blame_no_others(
    order: str | None,
) -> None:
    bad = {5, 70}
    case = Shaped(
        order=order, batch_size=100, retry=Retry(attempts=3, first_delay_ms=10),
        fails=lambda record: record.offset in bad,
    )  # fmt: skip
    case.put([b"%d" % (number % 30) for number in range(100)])
    async with case.running():
        await case.until_over(60)
    assert sorted((each.record.offset, each.attempts) for each in case.dead) == [(5, 3), (70, 3)]
    lists = [given for _, given in case.calls if len(given) > 1]
    assert len(lists) <= 1 + 2 * 2 * 6
    for record in case.done:
        assert sum(record in given for given in lists) <= 7
        assert sum([record] == given for _, given in case.calls) <= 1
    done = [each for each in case.done if order == "partition" or each.key == b"10"]
    assert order is None or done == sorted(done, key=lambda each: each.offset)


async def test_one_bad_record_in_each_list_does_not_open_the_breaker() -> None:
    case = Shaped(
        batch_size=32, concurrency=2, seconds=lambda record: 0.001, breaker=CircuitBreaker(),
        retry=Retry(attempts=2, first_delay_ms=10),
        fails=lambda record: record.offset % 32 == 7,
    )  # fmt: skip
    case.put([b"%d" % number for number in range(640)])
    async with case.running():
        while len(case.done) + len(case.dead) < 640:
            await asyncio.sleep(0.1)
            assert not case.run.is_paused
    assert len(case.dead) == 20
    assert len(case.calls) <= 20 * (1 + 2 * 5 + 1)


@pytest.mark.parametrize("concurrency", [1, 20])
async def test_in_an_outage_lists_cause_no_more_calls_than_open_the_breaker(
    concurrency: int,
) -> None:
    case = Shaped(
        batch_size=64, concurrency=concurrency, order=None, seconds=lambda record: 0.0001,
        breaker=CircuitBreaker(), fails=lambda record: now() < 300,
        retry=Retry(attempts=2, first_delay_ms=10),
    )  # fmt: skip
    case.put([b"%d" % number for number in range(1_280)])
    async with case.running():
        await asyncio.sleep(1)
        assert case.run.is_paused
        assert len(case.calls) <= 20 + concurrency
        await case.until_over(2_000)
    assert case.dead == []
    assert len([given for at, given in case.calls if at < 300]) <= 20 + concurrency + 60
    assert len(case.done) == 1_280
