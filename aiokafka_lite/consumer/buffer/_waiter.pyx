# cython: language_level=3
"""What the task of a get waits for that needs no coroutine of its own, compiled."""

cimport cython

from asyncio import CancelledError, InvalidStateError, current_task


@cython.final
@cython.auto_pickle(False)
cdef class Waiter:
    """What the task of a steady get waits for: a future that can also let it go on at once.

    It has what a task needs of a future, and no more. `wake` runs the task inside of the callback
    that calls it, without a turn of the event loop. Where a task is running already, the loop does
    it, as with a result that is set or a cancellation.
    """

    def __cinit__(self, loop):
        self.loop = loop
        self._asyncio_future_blocking = True

    def get_loop(self):
        return self.loop

    def add_done_callback(self, callback, *, context=None):
        if self.callback is not None:
            raise RuntimeError("only one task can wait for a record like this")
        self.callback = callback
        self.context = context
        if self.is_done:
            self.schedule()

    def remove_done_callback(self, callback):
        if self.callback is None or self.callback != callback:
            return 0
        self.callback = self.context = None
        return 1

    def done(self):
        return self.is_done

    def cancelled(self):
        return self.is_cancelled

    def result(self):
        if self.is_cancelled:
            raise CancelledError() if self.message is None else CancelledError(self.message)
        if not self.is_done:
            raise InvalidStateError("nothing has come yet")

    def exception(self):
        return self.result()

    def set_result(self, result):
        """Let the task go on in the loop's next turn."""
        self.is_done = True
        self.schedule()

    def cancel(self, msg=None):
        if self.is_done:
            return False
        self.is_done = self.is_cancelled = True
        self.message = msg  # anyio tells its own cancellations by it
        self.schedule()
        return True

    cdef int schedule(self) except -1:
        callback, self.callback = self.callback, None
        if callback is not None:
            self.loop.call_soon(callback, self, context=self.context)
        return 0

    cdef int wake(self) except -1:
        """Let the task go on now."""
        self.is_done = True
        callback = self.callback
        if callback is None or self.context is None or current_task(self.loop) is not None:
            self.schedule()
            return 0
        self.callback = None
        self.context.run(callback, self)
        return 0
