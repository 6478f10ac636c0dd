from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.errors import KafkaStorageError

Submit = Callable[[DiskQueue, Callable[[], None]], None]

LANES = pytest.mark.parametrize("submit", [DiskQueue.submit, DiskQueue.submit_behind])


class Disk:
    """A queue whose thread is at work until the gate is opened, and what was done since."""

    def __init__(self) -> None:
        self.queue = DiskQueue()
        self.gate = threading.Event()
        self.done: list[str] = []
        is_at_work = threading.Event()

        def work() -> None:
            is_at_work.set()
            self.gate.wait()

        self.queue.submit(work)
        is_at_work.wait()

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append(name)


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    disk = Disk()
    yield disk
    disk.gate.set()
    await disk.queue.close()


async def test_what_clients_wait_for_comes_before_what_logs_have_to_do(disk: Disk) -> None:
    for number in range(3):
        disk.queue.submit_behind(disk.note(f"log {number}"))
    for number in range(2):
        disk.queue.submit(disk.note(f"file {number}"))
    disk.gate.set()
    await disk.queue.settled()
    assert disk.done[:2] == ["file 0", "file 1"]
    await disk.queue.drained()
    assert disk.done[2:] == ["log 0", "log 1", "log 2"]


async def test_settled_does_not_wait_for_logs(disk: Disk) -> None:
    hold = threading.Event()
    disk.queue.submit(disk.note("file"))
    disk.queue.submit_behind(hold.wait)  # type: ignore[arg-type]  # what it returns is dropped
    disk.gate.set()
    await disk.queue.settled()
    assert disk.done == ["file"]
    drained = asyncio.ensure_future(disk.queue.drained())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not drained.done()
    hold.set()
    await drained


@LANES
async def test_work_is_done_whoever_stops_waiting_for_it(disk: Disk, submit: Submit) -> None:
    submit(disk.queue, disk.note("work"))
    waiting = asyncio.ensure_future(disk.queue.drained())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    disk.gate.set()
    await disk.queue.drained()
    assert disk.done == ["work"]


@LANES
async def test_error_that_is_not_the_disks_is_raised_where_it_is_waited_for(
    disk: Disk, submit: Submit
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    submit(disk.queue, fail)
    disk.gate.set()
    with pytest.raises(ZeroDivisionError):
        await disk.queue.drained()
    submit(disk.queue, disk.note("work"))
    await disk.queue.drained()
    assert disk.done == ["work"]


@LANES
async def test_everybody_is_told_of_the_first_failure(submit: Submit) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    def fail_otherwise() -> None:
        raise OSError(5, "Input/output error")

    before = threading.active_count()
    queue = DiskQueue()
    submit(queue, fail)
    submit(queue, fail_otherwise)
    for wait in (queue.drained, queue.settled, queue.close):
        with pytest.raises(KafkaStorageError, match="No space left"):
            await wait()
    assert threading.active_count() <= before
