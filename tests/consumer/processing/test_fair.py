"""Which records begin when handlers are scarce, with `fair` and `priority`, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from itertools import count
from typing import Any

import pytest

from aiokafka_lite.consumer.processing.fair import FEW_LANES
from aiokafka_lite.consumer.processing.handling import CircuitBreaker, Handling
from aiokafka_lite.processing import Concurrency, Retry
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import Record
from tests.consumer.processing.shaping import A, B, Shaped, now
from tests.support.for_each import for_each

pytestmark = pytest.mark.virtual_time

SLOW = [b"slow %d" % number for number in range(100)]
ORDERS, OTHERS = TopicPartition("orders", 0), TopicPartition("others", 0)


def slow_or_quick(record: Record) -> float:
    return 1 if record.key in SLOW else 0.001


# --- Keys ---------------------------------------------------------------------------------------
async def times_of_a_quick_key(*, fair: bool) -> tuple[float, float]:
    """Return when 100 records of a quick key are done, of 100 slow ones, and when all are."""
    case = Shaped(seconds=slow_or_quick, fair=fair)
    case.put([*SLOW, b"quick"] + [*SLOW, b"quick", *[b"quick"] * 24] * 4)
    async with case.running():
        await case.until_over(1_000)
        all_at = now()
    for key in {each.key for each in case.done}:
        offsets = [each.offset for each in case.done if each.key == key]
        assert offsets == sorted(offsets)
    return max(at for at, (record,) in case.calls if record.key == b"quick"), all_at


async def test_slow_keys_that_take_all_handlers_delay_a_quick_key_by_one_round() -> None:
    """Without `fair` a round of ten seconds has one call of each key, so 100 records take all."""
    began = now()
    quick_at, all_at = await times_of_a_quick_key(fair=False)
    assert quick_at - began >= 50
    assert all_at - began == pytest.approx(50, abs=1)
    began = now()
    quick_at, all_at = await times_of_a_quick_key(fair=True)
    assert quick_at - began < 15
    assert all_at - began == pytest.approx(50, abs=1)


@pytest.mark.parametrize(("arriving", "slow_calls"), [(8, 40), (12, 2)])
async def test_new_keys_without_end_do_not_starve_a_slow_key(
    arriving: int, slow_calls: int
) -> None:
    case = Shaped(seconds=lambda record: 1 if record.key == b"slow" else 0.1, fair=True)
    numbers = count()
    async with case.running():
        case.put([b"slow"] * 100)
        for _ in range(600):
            case.put([b"%d" % next(numbers) for _ in range(arriving)])
            await asyncio.sleep(0.1)
        slow = sum(each.key == b"slow" for each in case.done)
        assert slow >= slow_calls
        assert len(case.done) - slow > 4_700


async def test_a_key_that_was_idle_has_saved_no_time_up() -> None:
    case = Shaped(concurrency=1, seconds=lambda record: 0.1, fair=True)
    async with case.running():
        case.put([b"idle", *[b"busy"] * 100])
        await asyncio.sleep(5)
        case.put([b"idle"] * 100)
        await asyncio.sleep(4)
        latest = Counter(each.key for each in case.done[-36:])
    assert abs(latest[b"idle"] - latest[b"busy"]) <= 6


async def test_time_is_kept_only_of_keys_that_are_ahead() -> None:
    case = Shaped(concurrency=100, seconds=lambda record: 0.001, fair=True)
    numbers = count()
    async with case.running():
        for _ in range(20):
            case.put([b"%d" % next(numbers) for _ in range(1_000)])
            await case.until_over()
            queue = vars(case.run)["_fair"]
            assert len(vars(queue)["_lanes"]) <= 3 * FEW_LANES


@pytest.mark.parametrize("order", ["key", "partition", None])
@pytest.mark.parametrize("batch_size", [None, 7])
async def test_every_record_is_done_once_and_in_order_whatever_happens(
    order: str | None, batch_size: int | None
) -> None:
    """With failures, pauses, a rebalance, an open breaker, and a limit that changes."""
    limit, began = Concurrency(5), now()
    outage = range(0) if order == "partition" else range(10, 12)
    case = Shaped(
        A, B, order=order, batch_size=batch_size, concurrency=limit, fair=True,
        priority={"t": 3}, max_per_second=2_000,
        breaker=None if order == "partition" else CircuitBreaker(min_calls=5),
        retry=Retry(attempts=3, first_delay_ms=20), seconds=lambda record: 0.002,
        fails=lambda record: record.offset % 19 == 3 or int(10 * (now() - began)) in outage,
    )  # fmt: skip
    state = case.buffers.state
    async with case.running():
        for tp in (A, B) * 3:
            case.put([b"%d" % (number % 23) for number in range(100)], tp)
            await asyncio.sleep(0.1)
            limit.value = 1 + limit.value % 6
            state.pause(case.buffers.partition(tp))
            await asyncio.sleep(0.1)
            state.resume(case.buffers.partition(tp))
        await case.until_over(4_000)
    done = Counter((each.partition, each.offset) for each in case.done)
    dead = Counter((each.record.partition, each.record.offset) for each in case.dead)
    assert set((done + dead).values()) == {1}
    assert {offset % 19 for _, offset in dead} == {3}
    assert case.run.counts()["ready"] == 0
    if order is not None:
        lanes = Counter((each.partition, each.key) for each in case.done)
        for lane in lanes:
            offsets = [each.offset for each in case.done if (each.partition, each.key) == lane]
            assert offsets == sorted(offsets)


# --- Retries ------------------------------------------------------------------------------------
async def retries_running(case: Shaped) -> tuple[int, int]:
    """Return the most retries that ran at once while first attempts waited, and how many ran."""
    seen: Counter[int] = Counter()
    most = retries = running = put = 0

    async def handle(record: Record) -> None:
        nonlocal most, retries, running
        seen[record.offset] += 1
        is_retry = seen[record.offset] > 1
        running += is_retry
        retries += is_retry
        if is_retry and len(seen) < put:
            most = max(most, running)
        await asyncio.sleep(0.1)
        running -= is_retry
        if record.offset % 2:
            raise ConnectionError
        case.done.append(record)

    vars(case.run)["_handler"] = handle
    async with case.running():
        for _ in range(10):
            case.put([None] * 100)
            await asyncio.sleep(0)
            put += 100
            await asyncio.sleep(1)
    return most, retries


@pytest.mark.parametrize(("concurrency", "share"), [(10, 3), (1, 1), (2, 1), (100, 30)])
async def test_retries_have_a_share_while_first_attempts_wait(concurrency: int, share: int) -> None:
    case = Shaped(
        concurrency=concurrency, fair=True, retry=Retry(attempts=None, first_delay_ms=10)
    )  # fmt: skip
    most, retries = await retries_running(case)
    assert most <= share
    assert retries > 20  # and they have one


async def test_without_first_attempts_retries_have_all_handlers() -> None:
    case = Shaped(
        fair=True, seconds=lambda record: 1, fails=lambda record: now() < 30,
        retry=Retry(attempts=None, first_delay_ms=100),
    )  # fmt: skip
    case.put([None] * 10)
    async with case.running():
        await asyncio.sleep(20)
        assert case.running_count + case.run.counts()["waiting_for_retry"] == 10
        case.most_running = 0
        await case.until_over(60)
    assert case.most_running >= 5


# --- Topics -------------------------------------------------------------------------------------
async def shares(seconds: dict[str, float], *, is_late: bool = False, **settings: Any) -> float:
    """Return the handler seconds of `orders` by those of `others`, while both have records."""
    case = Shaped(
        ORDERS, OTHERS, seconds=lambda record: seconds[record.topic], order=None,
        concurrency=10, **settings,
    )  # fmt: skip
    taken: defaultdict[str, float] = defaultdict(float)
    put: Counter[str] = Counter()
    async with case.running():
        for turn in range(40):
            for tp in (ORDERS, OTHERS):
                if tp == ORDERS and is_late and turn < 10:
                    continue
                begun = sum(record.topic == tp.topic for _, (record, *_) in case.calls)
                left = begun + 300 - put[tp.topic]
                put[tp.topic] += left
                if left:
                    case.put([None] * left, tp)
            await asyncio.sleep(1)
    for at, (record, *_) in case.calls:
        if at > 15:
            taken[record.topic] += seconds[record.topic]
    return taken["orders"] / taken["others"]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("others_s", [0.05, 0.5])
async def test_topics_have_handler_time_by_their_priorities(
    others_s: float, *, is_late: bool, fair: bool
) -> None:
    found = await shares(
        {"orders": 0.05, "others": others_s}, is_late=is_late, priority={"orders": 10}, fair=fair
    )
    assert 7 < found < 14


async def test_a_topic_alone_has_all_handlers_and_one_that_was_idle_no_more_later() -> None:
    case = Shaped(
        ORDERS, OTHERS, seconds=lambda record: 0.1, order=None, priority={"orders": 4}
    )  # fmt: skip
    async with case.running():
        case.put([None] * 1_000, OTHERS)
        await asyncio.sleep(5)
        assert 480 <= len(case.done) <= 500
        case.put([None] * 1_000, ORDERS)
        await asyncio.sleep(5)
        by_topic = Counter(each.topic for each in case.done[500:])
    assert by_topic["others"] == pytest.approx(100, abs=15)


async def test_lists_are_as_long_while_retries_and_other_topics_wait() -> None:
    case = Shaped(
        ORDERS, OTHERS, batch_size=16, concurrency=2, fair=True, priority={"orders": 2},
        seconds=lambda record: 0.001, retry=Retry(attempts=4, first_delay_ms=5),
        fails=lambda record: record.offset % 64 == 7,
    )  # fmt: skip
    for tp in (ORDERS, OTHERS):
        case.put([b"%d" % number for number in range(640)], tp)
    async with case.running():
        await case.until_over()
    assert len(case.dead) == 20
    fresh = [given for _, given in case.calls if len(given) > 8]
    assert sum(map(len, fresh)) == 1_280
    assert len(fresh) <= 90
    assert len(case.calls) <= len(fresh) + 20 * (2 * 4 + 4)


# --- Arguments ----------------------------------------------------------------------------------
@for_each(
    [
        ({"fair": 1}, TypeError),
        ({"priority": ["orders"]}, TypeError),
        ({"priority": {1: 1}}, TypeError),
        ({"priority": {"orders": 0}}, ValueError),
        ({"priority": {"orders": math.inf}}, ValueError),
        ({"priority": {"orders": True}}, ValueError),
        ({"fair": True, "batch_size": 5, "batch_by": "key"}, ValueError),
        ({"priority": {"orders": 2}, "batch_size": 5, "batch_wait_ms": 5}, ValueError),
    ]
)
def test_what_is_no_fairness_is_refused(arguments: dict[str, Any], kind: type[Exception]) -> None:
    (name, *_) = arguments
    with pytest.raises(kind, match=name):
        Handling(
            **{
                "concurrency": 1, "order": "key", "batch_size": None, "max_uncommitted": 1,
                "retry": Retry(), "dead_letter": None, "breaker": None, **arguments,
            }
        )  # fmt: skip
