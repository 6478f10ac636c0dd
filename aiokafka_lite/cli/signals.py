"""SIGINT and SIGTERM, by which a user or the system asks a command to end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeAlias

_Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"

_STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name)
)


class Interrupted(Exception):
    """The user or the system ended the program by a signal."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"ended by {signal.Signals(signal_number).name}")

    @property
    def exit_code(self) -> int:
        return 128 + self.signal_number


class StopSignals:
    """Replaces the handlers of SIGINT and SIGTERM, and restores them."""

    def __init__(self) -> None:
        self._earlier: dict[int, _Handler] = {}

    def take(self, heed: Callable[[int], object]) -> None:
        """Call `heed` with the number of each signal. Has no effect outside of the main thread."""
        for number in _STOP_SIGNALS:
            try:
                self._earlier[number] = signal.signal(number, lambda caught, _: heed(caught))
            except ValueError:
                break

    def give_back(self) -> None:
        while self._earlier:
            number, handler = self._earlier.popitem()
            # None is a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
