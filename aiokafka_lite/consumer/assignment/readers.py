"""Which tasks read from a consumer, and work on what they were handed: where there are several."""

from __future__ import annotations

import asyncio
import weakref

TaskRef = weakref.ref["asyncio.Task[object]"]


class Readers:
    """Tasks that a get has handed records, until their next get, or their end.

    Kept only once two gets have been in progress at the same time. With one reader the next get
    proves that everything handed out before is finished; with several each proves it for its own.
    """

    __slots__ = ("_busy",)

    def __init__(self) -> None:
        self._busy: set[TaskRef] = set()

    def came_back(self) -> None:
        """Note that the current task asks for more."""
        if (task := asyncio.current_task()) is not None:
            self._busy.discard(weakref.ref(task))

    def went_off(self) -> None:
        """Note that the current task goes to work."""
        if (task := asyncio.current_task()) is not None:
            self._busy.add(weakref.ref(task))

    @property
    def are_busy(self) -> bool:
        """Whether one of them is still at work."""
        self._busy = {ref for ref in self._busy if (task := ref()) and not task.done()}
        return bool(self._busy)
