# cython: language_level=3
"""The future of a read without a coroutine of its own, compiled."""

cimport cython

from asyncio import CancelledError, InvalidStateError, current_task


@cython.final
@cython.auto_pickle(False)
cdef class Waiter:
    """The future for which the task of a steady read waits, and which can resume it at once.

    It has only those methods of a future that tasks need. `wake` runs the task within its own
    call. If a task is running already, the event loop does it, as after `set_result` and `cancel`.
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
        """Let the task continue in the loop's next iteration."""
        self.is_done = True
        self.schedule()

    def cancel(self, msg=None):
        if self.is_done:
            return False
        self.is_done = self.is_cancelled = True
        self.message = msg  # anyio recognises its own cancellations by it
        self.schedule()
        return True

    cdef int schedule(self) except -1:
        callback, self.callback = self.callback, None
        if callback is not None:
            self.loop.call_soon(callback, self, context=self.context)
        return 0

    cdef int wake(self) except -1:
        """Let the task continue now."""
        self.is_done = True
        callback = self.callback
        if callback is None or self.context is None or current_task(self.loop) is not None:
            self.schedule()
            return 0
        self.callback = None
        self.context.run(callback, self)
        return 0
