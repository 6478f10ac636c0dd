"""What `consumer.run` does after partitions or records went and came back, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.consumer.processing.handling import DeadRecord
from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.consumer.processing.run import JobReceipt
from aiokafka_lite.errors import ConsumerStoppedError
from aiokafka_lite.processing import CircuitBreaker, Retry
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.shaping import BareRun
from tests.support.buffers import A, B, batch
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time


class Case(BareRun):
    """A run of two partitions; handlers of what is `held` wait for an event."""

    def __init__(self, **settings: Any) -> None:
        self.begun: list[tuple[int, list[int]]] = []
        self.done: list[tuple[int, int]] = []
        self.held: dict[TopicPartition, asyncio.Event] = {}
        self.failures: list[Exception] = []
        retry = Retry(attempts=5, first_delay_ms=30_000)
        defaults = {"concurrency": 2, "order": "partition", "retry": retry}
        super().__init__(A, B, **{**defaults, **settings})

    @override
    async def handle(self, given: Any, _: object = None) -> None:
        records = given if isinstance(given, list) else [given]
        tp = TopicPartition(records[0].topic, records[0].partition)
        self.begun.append((tp.partition, [record.offset for record in records]))
        if tp in self.held:
            await self.held[tp].wait()
        if self.failures:
            raise self.failures.pop()
        self.done += [(record.partition, record.offset) for record in records]

    def workers(self) -> list[weakref.ref[asyncio.Task[Any]]]:
        tasks = (task for task in asyncio.all_tasks() if "handler" in task.get_name())
        return [weakref.ref(task) for task in tasks]

    def take_away(self, tp: TopicPartition) -> None:
        """Revoke a partition; handlers that are at work on it have had their time."""
        self.buffers.state.withhold([tp])
        self.run.give_up([tp], asyncio.get_running_loop().time())

    def give(self, *tps: TopicPartition) -> None:
        self.buffers.state.change(tps, tps)
        for tp in tps:
            self.buffers.state.seek(self.buffers.partition(tp), 0)


@pytest.mark.parametrize("batch_size", [None, 1])
async def test_handlers_that_a_rebalance_cuts_off_give_their_places_to_others(
    batch_size: int | None,
) -> None:
    case = Case(order=None, batch_size=batch_size)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 4)})
    async with case.running():
        for _ in range(3):
            await until(lambda: len(case.begun) == 2)
            case.take_away(A)
            await asyncio.sleep(0.1)
            case.begun.clear()
            case.give(A)
            case.buffers.put({A: batch(0, 4)})
        await until(lambda: len(case.begun) == 2)
        await asyncio.sleep(0.1)
        assert len(case.begun) == 2  # there are no more places than before
        case.take_away(A)
        await asyncio.sleep(0.1)
        case.buffers.state.change([A], [])
        case.buffers.put({B: batch(0, 10)})
        await until(lambda: len(case.done) == 10)
        assert case.run.counts()["at_work"] == 0
        budget = case.buffers.budget
        assert budget.room_bytes == budget.limit_bytes


async def test_a_retry_of_a_partition_that_went_holds_up_nothing_when_it_comes_back() -> None:
    case = Case()
    case.failures = [ConnectionError()]
    case.buffers.put({A: batch(0, 3)})
    async with case.running():
        await until(lambda: not case.failures)
        await asyncio.sleep(1)
        case.take_away(A)
        case.give(A)
        case.buffers.put({A: batch(0, 3)})
        await asyncio.sleep(1)
        assert case.done == [(0, 0), (0, 1), (0, 2)]
        assert case.run.counts()["waiting_for_retry"] == 0


async def test_a_paused_record_that_went_holds_up_nothing_when_it_comes_back() -> None:
    case = Case()
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: bool(case.begun))
        case.buffers.state.pause(case.buffers.partition(A))
        case.held[A].set()
        await until(lambda: case.done == [(0, 0)])
        case.take_away(A)
        case.buffers.state.change([A], [])
        await asyncio.sleep(0.1)
        assert case.run.counts()["ready"] == 0
        case.give(A)
        case.buffers.put({A: batch(0, 2)})
        await until(lambda: case.done == [(0, 0), (0, 0), (0, 1)])


async def test_records_from_a_position_sought_in_a_rebalance_are_processed_when_finished() -> None:
    case = Case()
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    state = case.buffers.state
    async with case.running():
        await until(lambda: bool(case.begun))
        state.withhold([A])
        state.seek(case.buffers.partition(A), 5)
        state.change([A], [A], is_unbroken=True)
        case.held[A].set()
        await until(lambda: (0, 0) in case.done)
        case.held[A] = asyncio.Event()
        case.buffers.put({A: batch(5, 2)})
        await until(lambda: (0, [5]) in case.begun)
        await asyncio.sleep(0.1)
        assert state.finished.processed_offsets()[A].offset == 5
        case.held[A].set()
        await until(lambda: (0, 6) in case.done)
        assert state.finished.processed_offsets()[A].offset == 7


async def test_what_is_tried_alone_is_in_no_list_behind_others() -> None:
    case = Case(concurrency=1, order=None, batch_size=10, retry=Retry(first_delay_ms=1_000))
    case.failures = [ConnectionError(), ConnectionError()]
    case.held[B] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: case.done == [(0, 1)])  # the list has failed, and then its first record
        case.buffers.put({B: batch(0, 1)}, node_id=2)
        await until(lambda: case.begun[-1] == (1, [0]))
        case.buffers.put({B: batch(1, 2)}, node_id=2)
        await asyncio.sleep(2)
        case.held.pop(B).set()
        await until(lambda: (0, 0) in case.done)
    assert case.begun[-2:] == [(1, [1, 2]), (0, [0])]


async def test_a_list_takes_no_records_of_before_a_seek() -> None:
    case = Case(batch_size=2)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 5)})
    async with case.running():
        await until(lambda: len(case.begun) == 1)
        case.buffers.state.seek(case.buffers.partition(A), 3)
        case.buffers.put({A: batch(3, 3)})
        await asyncio.sleep(0.1)
        case.held[A].set()
        await until(lambda: (0, 5) in case.done)
        assert case.begun == [(0, [0, 1]), (0, [2]), (0, [3, 4]), (0, [5])]


async def test_a_record_that_an_outbox_returns_begins_at_once() -> None:
    case = Case()
    case.failures = [ConnectionError()]
    case.buffers.put({A: batch(0, 1)})
    async with case.running():
        await until(lambda: not case.failures)
        await asyncio.sleep(1)
        progress = case.buffers.partition(A).progress
        assert progress is not None
        job = progress.holder_of_first()
        assert isinstance(job, Job)
        case.run.handle_again([job])
        await asyncio.sleep(1)
        assert case.done == [(0, 0)]


async def test_a_place_that_is_free_is_for_what_waits_of_other_partitions() -> None:
    case = Case(concurrency=1)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 1)})
    case.buffers.put({B: batch(0, 1)}, node_id=2)
    async with case.running():
        await until(lambda: case.begun == [(0, [0])])
        case.take_away(A)
        await asyncio.sleep(0.1)
        assert case.done == [(1, 0)]


async def test_a_record_whose_handler_was_cut_off_begins_again_if_its_partition_stays() -> None:
    case = Case()
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: bool(case.begun))
        case.take_away(A)
        await asyncio.sleep(0.1)
        assert case.run.counts()["at_work"] == 0
        case.held.pop(A).set()
        case.buffers.state.release(case.buffers.partition(A))
        await until(lambda: case.done == [(0, 0), (0, 1)])


async def test_a_worker_that_was_cut_off_is_kept_by_nobody() -> None:
    case = Case(order=None)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 1)})
    async with case.running():
        await until(lambda: bool(case.begun))
        (worker,) = case.workers()
        case.take_away(A)
        await asyncio.sleep(0.1)
        gc.collect()
        assert worker() is None


async def test_a_run_that_is_cancelled_begins_nothing_in_place_of_a_handler_that_was_cut_off() -> (
    None
):
    case = Case(order=None, concurrency=1)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 3)})
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: faults.append(what))
    with case.run.opened():
        task = asyncio.ensure_future(case.run.run())
        await until(lambda: bool(case.begun))
        case.run.give_up([A], asyncio.get_running_loop().time())
        task.cancel()
        await asyncio.wait([task])
    await asyncio.sleep(0.1)
    assert faults == []
    assert len(case.begun) == 1


async def test_a_seek_makes_room_for_what_is_read_from_there() -> None:
    case = Case(order=None, concurrency=4, max_uncommitted=2)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 4)})
    state = case.buffers.state
    async with case.running():
        await until(lambda: len(case.begun) == 2)
        await asyncio.sleep(0.1)
        assert len(case.begun) == 2
        state.pause(case.buffers.partition(B))
        state.resume(case.buffers.partition(B))
        state.seek(case.buffers.partition(A), 1)
        case.buffers.put({A: batch(1, 2)})
        await until(lambda: case.begun.count((0, [1])) == 2)


async def test_what_handlers_are_at_work_on_is_undone_until_it_is_not_theirs_any_more() -> None:
    await asyncio.sleep(100)
    case = Case(order=None, concurrency=4)
    case.held |= {A: asyncio.Event(), B: asyncio.Event()}
    case.buffers.put({A: batch(0, 2)})
    case.buffers.put({B: batch(3, 1)}, node_id=2)
    run, state = case.run, case.buffers.state
    assert not run.is_open
    async with case.running():
        await until(lambda: len(case.begun) == 3)
        began_at = asyncio.get_running_loop().time()
        assert run.is_open
        assert run.partitions() == {A, B}
        assert run.undone([A]) == {A: Range(0, 2)}
        assert run.undone([A, B]) == {A: Range(0, 2), B: Range(3, 4)}
        cursor = case.buffers.partition(A)
        assert "was passed to its handler 5.0 s ago" in run.explain(cursor, began_at + 5)
        state.seek(case.buffers.partition(B), 0)
        assert run.undone([A, B]) == {A: Range(0, 2)}
        assert not run.is_ending([A])
        run.give_up([A], began_at)
        assert run.is_ending([A])
        assert not run.is_ending([B])
        await asyncio.sleep(0.1)
        assert not run.is_ending([A])


def receipt_of_first(case: Case, tp: TopicPartition) -> JobReceipt:
    """Return what a transaction finishes the first unfinished record of a partition by."""
    progress = case.buffers.partition(tp).progress
    assert progress is not None
    job = progress.holder_of_first()
    assert isinstance(job, Job)
    return JobReceipt(case.run, job)


async def test_after_a_failure_of_a_record_that_is_finished_the_next_of_its_lane_begins() -> None:
    case = Case()
    case.held[A] = asyncio.Event()
    case.failures = [ValueError("afterwards")]
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: bool(case.begun))
        assert receipt_of_first(case, A).ack()
        case.held[A].set()
        await until(lambda: case.done == [(0, 1)])


async def test_a_record_that_is_finished_at_a_bound_makes_room_for_another() -> None:
    case = Case(order=None, concurrency=4, max_uncommitted=2)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 4)})
    async with case.running():
        await until(lambda: len(case.begun) == 2)
        await asyncio.sleep(0.1)
        assert len(case.begun) == 2
        assert receipt_of_first(case, A).ack()
        await until(lambda: len(case.begun) > 2)


async def test_each_record_of_a_list_is_said_to_be_in_its_handler() -> None:
    case = Case(batch_size=2)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: bool(case.begun))
        assert receipt_of_first(case, A).ack()
        began_at = asyncio.get_running_loop().time()
        explained = case.run.explain(case.buffers.partition(A), began_at + 5)
        assert "offset 1, key" in explained
        assert "was passed to its handler 5.0 s ago" in explained


async def test_a_transaction_finishes_a_record_that_a_handler_has_and_none_that_went() -> None:
    case = Case(order=None)
    case.held |= {A: asyncio.Event(), B: asyncio.Event()}
    case.buffers.put({A: batch(0, 1)})
    case.buffers.put({B: batch(0, 1)}, node_id=2)
    async with case.running():
        await until(lambda: len(case.begun) == 2)
        kept, gone = receipts = [receipt_of_first(case, tp) for tp in (A, B)]
        assert [each.is_current for each in receipts] == [True, True]
        assert [each.is_finished for each in receipts] == [False, False]
        assert kept.ack()
        assert not kept.ack()
        case.buffers.state.change([B], [])
        assert [each.is_current for each in receipts] == [False, False]
        assert [each.is_finished for each in receipts] == [True, False]
        assert not gone.ack()


@pytest.mark.parametrize("batch_size", [None, 1])
async def test_the_end_comes_with_that_of_the_last_handler(batch_size: int | None) -> None:
    case, loop = Case(batch_size=batch_size), asyncio.get_running_loop()
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 1)})
    async with case.running():
        await until(lambda: bool(case.begun))
        began_at = loop.time()
        ending = asyncio.ensure_future(case.run.end(began_at + 100))
        await asyncio.sleep(1)
        assert not ending.done()
        case.held[A].set()
        await ending
        assert loop.time() - began_at == pytest.approx(1)


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("is_lost", [True, False])
async def test_the_end_of_a_handler_is_told_if_its_partition_goes_or_went(
    *, is_lost: bool, batch_size: int | None
) -> None:
    case = Case(batch_size=batch_size)
    state = case.buffers.state
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 1)})
    async with case.running():
        await until(lambda: bool(case.begun))
        if is_lost:
            state.change([A], [])
        else:
            state.withhold([A])
        told: list[int] = []
        state.observers.acted.add(lambda: told.append(1))
        case.held[A].set()
        await until(lambda: bool(case.done))
        await asyncio.sleep(0.1)
        assert told


async def test_a_record_behind_others_is_said_to_wait_for_its_turn() -> None:
    case = Case(concurrency=1)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 1), B: batch(0, 1)})
    async with case.running():
        await until(lambda: bool(case.begun))
        explained = case.run.explain(case.buffers.partition(B), 0.0)
        assert "t/1 offset 0, key b'0', has not been passed to a handler yet" in explained
        case.held.pop(A).set()
        await until(lambda: len(case.done) == 2)


# --- With an outbox ------------------------------------------------------------------------------
class Outbox:
    """Has what handlers return, and writes nothing of it."""

    def __init__(self) -> None:
        self.is_busy = self.is_full = False
        self.looks = self.record_count = 0
        self.given_up: list[object] = []
        self.entries: list[Any] = []

    def new_outputs(self) -> Any:
        return self

    def close(self) -> list[object]:
        return []

    def put(self, entry: object) -> None:
        self.entries.append(entry)

    def awaits(self, job: object) -> bool:
        return False

    def look_again(self) -> None:
        self.looks += 1

    def give_up(self, partitions: Any) -> None:
        self.given_up.append({*partitions})
        self.is_busy = False

    def is_writing(self, partitions: object) -> bool:
        return self.is_busy

    def undone(self) -> list[Any]:
        job = SimpleNamespace(offset=0, cursor=SimpleNamespace(tp=A), is_current=True)
        return [job] if self.is_busy else []


def with_outbox(**settings: Any) -> tuple[Case, Any]:
    case, outbox = Case(**settings), Outbox()
    case.run.write_into(cast("Any", outbox))
    return case, outbox


async def test_an_outbox_looks_again_when_a_partition_or_the_assignment_changes() -> None:
    case, outbox = with_outbox()
    state = case.buffers.state
    async with case.running():
        state.pause(case.buffers.partition(A))
        assert outbox.looks == 1
        state.change([B], [])
        assert outbox.looks == 2


async def test_what_an_outbox_is_going_to_write_is_undone() -> None:
    case, outbox = with_outbox()
    assert not case.run.is_open
    outbox.is_busy = True
    assert case.run.is_open
    assert case.run.undone([A, B]) == {A: Range(0, 1)}
    assert case.run.undone([B]) == {}
    assert case.run.is_ending([A])


async def test_the_end_waits_for_an_outbox_and_has_it_drop_what_is_left() -> None:
    loop = asyncio.get_running_loop()
    case, outbox = with_outbox()
    async with case.running():
        outbox.is_busy = True
        began_at = loop.time()
        ending = asyncio.ensure_future(case.run.end(began_at + 100))
        await asyncio.sleep(1)
        assert not ending.done()
        outbox.is_busy = False
        case.run.outbox_moved(())
        await ending
        assert loop.time() - began_at == 1
        outbox.is_busy = True
        await case.run.end(loop.time() + 1)
        assert outbox.given_up == [{A, B}]
        assert loop.time() - began_at == 2


async def test_a_full_outbox_lets_only_the_record_begin_that_holds_the_commit_back() -> None:
    case, outbox = with_outbox(order=None)
    outbox.is_full = True
    case.buffers.put({A: batch(0, 4)})
    async with case.running():
        await asyncio.sleep(1)
        assert case.begun == [(0, [0])]
        outbox.is_full = False
        case.run.outbox_moved(())
        await asyncio.sleep(1)
        assert len(case.begun) == 4


async def test_a_full_outbox_waits_for_no_record_of_a_paused_partition() -> None:
    case, outbox = with_outbox(order=None, concurrency=1)
    case.held[B] = asyncio.Event()
    case.buffers.put({B: batch(0, 1)})
    async with case.running():
        await until(lambda: bool(case.begun))
        for tp, first in ((A, 0), (B, 1)):
            case.buffers.put({tp: batch(first, 1)})
            await asyncio.sleep(0.1)
        assert case.run.counts()["ready"] == 2
        case.buffers.state.pause(case.buffers.partition(A))
        outbox.is_full = True
        case.held.pop(B).set()
        await asyncio.sleep(1)
        assert case.begun == [(1, [0])]


async def test_a_change_of_a_partition_without_records_counts_nothing() -> None:
    case = Case(max_uncommitted=1)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: bool(case.begun))
        assert case.buffers.partition().has_enough
        case.buffers.state.pause(case.buffers.partition(B))
        assert case.run.counts()["uncommitted"] == 1
        case.held.pop(A).set()
        await until(lambda: len(case.done) == 2)


async def test_outputs_of_two_records_that_are_refused_have_each_handled_alone() -> None:
    dead: list[DeadRecord] = []

    async def bury(record: DeadRecord) -> None:
        dead.append(record)

    case, outbox = with_outbox(batch_size=10, dead_letter=bury)
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: bool(outbox.entries))
        (entry,) = outbox.entries
        case.run.refused(entry.jobs, ValueError("too large"))
        await until(lambda: len(outbox.entries) == 3)
        assert case.begun == [(0, [0, 1]), (0, [0]), (0, [1])]
        case.run.refused(outbox.entries[1].jobs, ValueError("too large"))
        await until(lambda: len(outbox.entries) == 4)
    assert [(each.record.offset, each.attempts) for each in dead] == [(0, 1)]
    assert outbox.entries[-1].outputs == []  # its offset only
    assert case.buffers.state.works.totals["failed_total"] == 1


async def test_without_dead_letters_outputs_that_are_refused_end_the_run() -> None:
    case, outbox = with_outbox()
    case.buffers.put({A: batch(0, 1)})

    async def run() -> None:
        async with case.running():
            await until(lambda: bool(outbox.entries))
            case.run.refused(outbox.entries[0].jobs, ValueError("too large"))

    with pytest.raises(ValueError, match="too large"):
        await run()


@pytest.mark.parametrize("batch_size", [None, 1])
async def test_a_probe_that_a_rebalance_cuts_off_is_followed_by_another(
    batch_size: int | None,
) -> None:
    case = Case(batch_size=batch_size, retry=Retry(), breaker=CircuitBreaker(min_calls=1))
    case.failures = [ConnectionError()]
    case.buffers.put({A: batch(0, 1)})
    async with case.running():
        await until(lambda: not case.failures)
        case.held[A] = asyncio.Event()
        await until(lambda: len(case.begun) == 2)
        case.take_away(A)
        cut_off_at = asyncio.get_running_loop().time()
        case.buffers.put({B: batch(0, 1)})
        await until(lambda: case.done == [(1, 0)])
        assert 0.8 <= asyncio.get_running_loop().time() - cut_off_at < 1.3
        assert not case.run.is_paused


async def test_nothing_keeps_a_run_that_has_ended() -> None:
    case = Case(breaker=CircuitBreaker(min_calls=1, first_pause_ms=30_000))
    case.failures = [ConnectionError()]
    case.buffers.put({A: batch(0, 2)})
    async with case.running():
        await until(lambda: not case.failures)
        case.buffers.put({B: batch(0, 1)})
        await asyncio.sleep(1)
        assert case.begun == [(0, [0])]
        assert case.run.counts() == {
            "concurrency": 2,
            "calls": 0,
            "at_work": 0,
            "ready": 1,
            "waiting_for_retry": 1,
            "uncommitted": 3,
            "in_outbox": 0,
        }
    assert case.buffers.budget.room_bytes == case.buffers.budget.limit_bytes
    run = weakref.ref(case.run)
    del case.run
    gc.collect()
    assert run() is None


async def test_what_run_cannot_begin_with_is_its_failure() -> None:
    case, error = Case(), ValueError("no producer")
    with pytest.raises(ValueError, match="no producer"), case.run.opened():
        raise error
    assert case.buffers.state.works.run_failure == repr(error)


@pytest.mark.parametrize("error", [ConsumerStoppedError("stopped"), ValueError("a task failed")])
async def test_what_reads_raise_ends_run_and_a_stop_is_no_failure(error: Exception) -> None:
    case = Case()
    gate = case.buffers.state.gate
    is_stop = isinstance(error, ConsumerStoppedError)
    with case.run.opened():
        task = asyncio.ensure_future(case.run.run())
        await asyncio.sleep(1)
        if is_stop:
            gate.refuse(lambda: error)
        else:
            gate.die(error)
        await asyncio.wait([task], timeout=10)
        assert task.done()
        assert (task.exception() is None) is is_stop


async def test_no_more_records_are_taken_than_handlers_may_soon_begin() -> None:
    case = Case(order=None)
    case.held[A] = asyncio.Event()
    case.buffers.put({A: batch(0, 6)})
    async with case.running():
        await until(lambda: len(case.begun) == 2)
        case.buffers.put({A: batch(6, 500)})
        await asyncio.sleep(1)
        assert case.run.counts()["uncommitted"] == 6  # two for each handler are ready
        case.held.pop(A).set()
        await until(lambda: len(case.done) == 506)
