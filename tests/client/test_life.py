"""The stages of a client: the table of moves, and the ways of a start and a stop through them."""

from __future__ import annotations

import ast
import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import aiokafka_lite
from aiokafka_lite.client.life import MOVES, OVER, WITH_PARTS, Life, Stage
from aiokafka_lite.errors import IllegalStateError
from tests.support.for_each import for_each
from tests.support.stages import path_to

PACKAGE = Path(aiokafka_lite.__file__).parent
Step = Callable[[], Awaitable[object]]


class Parts:
    """Parts whose steps return at once, unless a test gives them something to await."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.starting: Step = self._return
        self.finishing: Step = self._return
        self.ending: Step = self._return

    async def _return(self) -> None: ...

    async def connect_and_start(self) -> None:
        self.calls.append("start")
        await self.starting()

    async def finish(self, timeout_s: float | None) -> None:
        self.calls.append(f"finish {timeout_s}")
        await self.finishing()

    async def stop(self, deadline: float) -> None:
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        self.calls.append(f"stop {left_s:.0f}")
        await self.ending()

    def give_up(self) -> None:
        self.calls.append("give up")

    def drop(self) -> None:
        self.calls.append("drop")


class Stopped(Exception):
    """The client is stopped."""


class Client(Life[Parts]):
    """A client that keeps the stages that it has entered."""

    kind = "client"
    stopped_error = Stopped

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(loop or asyncio.get_running_loop(), lambda: self.made)
        self.made = Parts()
        self.entered = [Stage.NEW]

    def _entered(self, stage: Stage) -> None:
        self.entered.append(stage)


@pytest.fixture
def idle_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that does not run."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


async def refuse() -> None:
    raise ZeroDivisionError


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


async def cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def turn(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- The table --------------------------------------------------------------------------------
def test_the_table_has_every_stage() -> None:
    assert MOVES.keys() == set(Stage)
    assert not WITH_PARTS & OVER


@for_each(itertools.product(Stage, repeat=2))
def test_only_moves_of_the_table_are_made(
    stage: Stage, following: Stage, idle_loop: asyncio.AbstractEventLoop
) -> None:
    client = Client(idle_loop)
    for each in path_to(stage):
        client.enter(each)
    if following in MOVES[stage]:
        client.enter(following)
        assert client.stage is following
    else:
        with pytest.raises(AssertionError, match=f"from {stage.name} to {following.name}"):
            client.enter(following)
        assert client.stage is stage
    assert client.entered[1:] == [*path_to(stage), *([following] * (client.stage is not stage))]


def test_one_module_moves() -> None:
    calls = {
        str(file.relative_to(PACKAGE))
        for room in ("client", "consumer", "producing")
        for file in (PACKAGE / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("enter", "_enter")
        and any(ast.unparse(argument).startswith("Stage.") for argument in node.args)
    }
    assert calls == {"client/life.py"}


# --- Start and stop ---------------------------------------------------------------------------
async def test_a_client_is_started_and_stopped_once() -> None:
    client = Client()
    with pytest.raises(IllegalStateError, match="the client is not started"):
        _ = client.running
    await client.start()
    assert client.running is client.made
    with pytest.raises(AssertionError, match="only once: create another client"):
        await client.start()
    await asyncio.gather(client.stop(3.0), client.stop(None))
    await client.stop(3.0)
    assert client.made.calls == ["start", "finish 3.0", "stop 3"]
    assert client.entered == [
        Stage.NEW,
        Stage.STARTING,
        Stage.RUNNING,
        Stage.FINISHING,
        Stage.STOPPING,
        Stage.STOPPED,
    ]
    with pytest.raises(Stopped):
        _ = client.running


async def test_a_client_that_was_not_started_is_stopped_at_once() -> None:
    client = Client()
    await client.stop(3.0)
    assert client.entered == [Stage.NEW, Stage.STOPPING, Stage.STOPPED]
    with pytest.raises(AssertionError, match="only once"):
        await client.start()


@pytest.mark.parametrize("starting", [refuse, hang])
async def test_a_start_that_failed_or_was_cancelled_is_undone_and_may_be_tried_again(
    starting: Step,
) -> None:
    client = Client()
    client.made.starting = starting
    task = asyncio.ensure_future(client.start())
    await turn()
    await cancel(task)
    assert client.entered == [Stage.NEW, Stage.STARTING, Stage.UNDOING, Stage.NEW]
    assert client.made.calls == ["start", "stop 0"]
    assert client.has_failed_to_start
    assert (client.failed_start is not None) is (starting is refuse)
    client.made = Parts()
    await client.start()
    assert client.failed_start is None
    await client.stop(None)


async def test_a_start_during_the_undoing_of_another_waits_for_its_end() -> None:
    client, ended = Client(), asyncio.Event()
    client.made.starting, client.made.ending = refuse, ended.wait
    first = asyncio.ensure_future(client.start())
    await turn()
    client.made = Parts()
    second = asyncio.ensure_future(client.start())
    await turn()
    assert client.stage is Stage.UNDOING
    ended.set()
    await asyncio.wait([first, second])
    assert client.stage is Stage.RUNNING
    await client.stop(None)


@pytest.mark.virtual_time
@pytest.mark.parametrize("timeout_s", [None, 1.0])
async def test_a_stop_during_the_undoing_of_a_start_waits_for_its_end_in_its_time(
    timeout_s: float | None,
) -> None:
    client, ended = Client(), asyncio.Event()
    client.made.starting, client.made.ending = refuse, ended.wait
    first = asyncio.ensure_future(client.start())
    await turn()
    second = asyncio.ensure_future(client.start())  # it must not wait forever, or spin
    await turn()
    stopping = [asyncio.ensure_future(client.stop(timeout_s)) for _ in range(2)]
    await asyncio.sleep(2.0)
    assert [task.done() for task in stopping] == [timeout_s is not None] * 2
    assert client.stage is Stage.STOPPING
    ended.set()
    await asyncio.wait([first, second, *stopping])
    assert client.entered[-3:] == [Stage.UNDOING, Stage.STOPPING, Stage.STOPPED]
    assert isinstance(first.exception(), Stopped)
    assert isinstance(second.exception(), AssertionError)


async def test_a_stop_during_the_start_ends_it() -> None:
    client = Client()
    ended = asyncio.Event()

    async def end() -> None:
        ended.set()

    client.made.starting, client.made.ending = ended.wait, end
    starting = asyncio.ensure_future(client.start())
    await turn()
    await client.stop(None)
    with pytest.raises(Stopped, match="before start"):
        await starting
    assert client.entered == [
        Stage.NEW,
        Stage.STARTING,
        Stage.FINISHING,
        Stage.STOPPING,
        Stage.STOPPED,
    ]


async def test_a_stop_that_is_cancelled_ends_at_once_and_later_ones_wait_for_it() -> None:
    client, ended = Client(), asyncio.Event()
    client.made.finishing, client.made.ending = hang, ended.wait
    await client.start()
    stopping = asyncio.ensure_future(client.stop(60.0))
    await turn()
    assert client.stage is Stage.FINISHING
    stopping.cancel()
    await turn()
    assert client.made.calls[-1] == "stop 0"
    later = asyncio.ensure_future(client.stop(None))
    await turn()
    assert not later.done()
    ended.set()
    await asyncio.wait([stopping, later])
    assert stopping.cancelled()
    assert client.stage is Stage.STOPPED


# --- Failures ---------------------------------------------------------------------------------
async def test_the_first_error_of_a_task_remains_until_the_stop() -> None:
    client = Client()
    assert not client.die(ZeroDivisionError()), "it has no tasks"
    await client.start()
    first = ZeroDivisionError()
    assert client.die(first)
    assert not client.die(ValueError())
    assert client.stage is Stage.DEAD
    assert client.running is client.made
    await client.stop(None)
    assert client.error is first


async def test_a_start_during_which_a_task_fails_returns_and_if_it_fails_may_be_tried_again() -> (
    None
):
    client = Client()

    async def fail() -> None:
        client.die(ZeroDivisionError())

    client.made.starting = fail
    await client.start()
    assert client.stage is Stage.DEAD
    other = Client()

    async def fail_twice() -> None:
        other.die(ZeroDivisionError())
        raise ValueError

    other.made.starting = fail_twice
    with pytest.raises(ValueError):
        await other.start()
    assert other.entered[1:] == [Stage.STARTING, Stage.DEAD, Stage.UNDOING, Stage.NEW]
    assert other.error is None


async def test_an_error_while_a_stop_waits_for_work_is_kept_and_the_stop_goes_on() -> None:
    client, ended = Client(), asyncio.Event()
    client.made.finishing = ended.wait
    await client.start()
    stopping = asyncio.ensure_future(client.stop(None))
    await turn()
    assert client.die(ZeroDivisionError())
    assert client.stage is Stage.FINISHING
    ended.set()
    await stopping


# --- Without a stop ---------------------------------------------------------------------------
async def test_a_client_that_is_forgotten_warns_and_gives_up_and_may_be_stopped() -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    client = Client()
    await client.start()
    with pytest.warns(ResourceWarning, match="Unclosed Client"):
        client.forgotten(client, None)
    assert told == [{"client": client, "message": "Unclosed Client"}]
    await turn()
    assert client.stage is Stage.ABANDONED
    assert client.made.calls == ["start", "give up"]
    await client.stop(None)
    assert client.entered[-2:] == [Stage.STOPPING, Stage.STOPPED]


def test_a_client_that_is_forgotten_after_its_loop_was_closed_drops_its_parts(
    idle_loop: asyncio.AbstractEventLoop,
) -> None:
    client = Client(idle_loop)
    idle_loop.run_until_complete(client.start())
    idle_loop.close()
    with pytest.warns(ResourceWarning, match="Unclosed Client"):
        client.forgotten(client, None)
    assert client.made.calls == ["start", "drop"]
