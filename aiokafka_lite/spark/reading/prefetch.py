"""One item of an iterator made ahead, in a thread of its own.

The thread begins with the next item when the one before has been taken, not when it was made: so
there is one ahead and no more, and whoever takes an item has let go of the one before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

from aiokafka_lite._compat import Self

T = TypeVar("T")


class _End:
    """Behind the last item, with the error that was it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetch(Generic[T]):
    """Iterates over another iterator, whose code runs in a thread until this is closed."""

    def __init__(self, source: Iterator[T], name: str, interrupt: Callable[[], None]) -> None:
        """Begin with the first item.

        Args:
            source: Nobody else uses it from now on.
            name: Of the thread.
            interrupt: Has the source fail soon, if it is waiting; called by `close`.
        """
        self._source = source
        self._interrupt = interrupt
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._made: SimpleQueue[T | _End] = SimpleQueue()
        self._end: _End | None = None
        self._wanted.put(True)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._wanted.get():
                # Nothing here holds on to the item.
                self._made.put(next(self._source))
        except StopIteration:
            self._made.put(_End(None))
        except BaseException as error:  # noqa: BLE001 -- raised where the item is taken
            self._made.put(_End(error))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._end is None:
            item = self._made.get()
            if not isinstance(item, _End):
                self._wanted.put(True)
                return item
            self._end = item
        error, self._end.error = self._end.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """End the thread and wait for it. Idempotent."""
        self._wanted.put(False)
        if self._thread.is_alive():
            self._interrupt()
            self._thread.join()
