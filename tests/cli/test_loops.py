from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal

import pytest

from aiokafka_lite.cli import loops
from aiokafka_lite.cli.loops import LoopKind
from aiokafka_lite.cli.problems import Interrupted, MissingExtraError

every_loop = pytest.mark.parametrize("kind", loops.available_loops())


@every_loop
def test_run_returns_what_the_coroutine_returns(kind: LoopKind) -> None:
    async def main() -> str:
        await asyncio.sleep(0)
        return type(asyncio.get_running_loop()).__module__

    assert loops.run(main(), kind).split(".")[0] == kind.value


@every_loop
@pytest.mark.parametrize(
    ("signal_number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_signal_ends_the_program_in_order(
    kind: LoopKind, signal_number: signal.Signals, exit_code: int
) -> None:
    closed: list[str] = []
    before = signal.getsignal(signal_number)

    async def main() -> None:
        try:
            os.kill(os.getpid(), signal_number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what is open may be closed with awaits
            closed.append("all")

    with pytest.raises(Interrupted) as caught:
        loops.run(main(), kind)
    assert caught.value.exit_code == exit_code
    assert closed == ["all"]
    assert signal.getsignal(signal_number) is before


def test_second_signal_ends_a_program_that_blocks_its_loop() -> None:
    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

    with pytest.raises(Interrupted, match="SIGINT"):
        loops.run(main())


def test_second_signal_does_not_wait_until_all_is_closed() -> None:
    closed: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            loop.call_soon(signal.raise_signal, signal.SIGINT)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            closed.append("late")

    with pytest.raises(KeyboardInterrupt):
        loops.run(main())
    assert closed == []


def test_errors_come_through_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def main() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        loops.run(main())
    assert signal.getsignal(signal.SIGINT) is before


def test_missing_loop_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    async def main() -> None:
        raise AssertionError("must not run")

    with pytest.raises(MissingExtraError, match=r"pip install 'aiokafka-lite\[uvloop\]'"):
        loops.run(main(), LoopKind.UVLOOP)
