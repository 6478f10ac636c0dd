"""The CPU time of some work, without what the machine's other work adds to it.

Two processes that share a core slow each other: the same work then takes up to twice the CPU
time. So a piece of work that is known is timed before and after, and the time is divided by how
much slower it was.
"""

from __future__ import annotations

import time

from aiokafka_lite._compat import Self

_KNOWN_WORK_S = 0.025  # on the machine that the bounds of the tests were set on, when it was idle


def _known_work_s() -> float:
    began_s = time.process_time()
    numbers = {number: (number * 7919) % 100_003 for number in range(100_003)}
    sorted(numbers, key=numbers.__getitem__)
    return time.process_time() - began_s


class CpuTime:
    """The CPU time that a `with` block takes in all threads of this process.

    Attributes:
        s: seconds, as on an idle machine; 0 until the block has ended
    """

    def __init__(self) -> None:
        self.s = 0.0
        self._known_work_s = 0.0
        self._began_s = 0.0

    def __enter__(self) -> Self:
        self._known_work_s = _known_work_s()
        self._began_s = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        took_s = time.process_time() - self._began_s
        known_work_s = (self._known_work_s + _known_work_s()) / 2
        self.s = took_s / max(1.0, known_work_s / _KNOWN_WORK_S)
