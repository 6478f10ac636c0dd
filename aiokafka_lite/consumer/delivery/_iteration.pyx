# cython: language_level=3, embedsignature=False
"""The per-message path of `async for`, in C; `_iteration_py` does the same in plain Python.

For each message, `async for` gets an awaitable and sends None into it. A coroutine costs as much
as decoding a record. So the awaitable is an object that is reused when it is unreferenced, and
that returns a ready record at the first send. If no record is ready, it creates the coroutine
`_next_record()` of the iterator, and forwards to it.

The interpreter sends in two ways, and neither may cost an exception per message:

- Through the slot `am_send`: up to 3.11, and asyncio's tasks in every version.
- Through `tp_iternext` from 3.12 on, which can return a value only inside a StopIteration. Each
  iterator reuses one.

Cython has no syntax for these slots: see `finish_types`.
"""

from cpython.exc cimport PyErr_Restore
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.assignment.reads cimport Reads
from aiokafka_lite.consumer.buffer._waiter cimport Waiter
from aiokafka_lite.consumer.buffer.budget cimport ByteBudget
from aiokafka_lite.consumer.buffer.chunk cimport Chunk
from aiokafka_lite.consumer.buffer.chunk_queue cimport ChunkQueue
from aiokafka_lite.consumer.buffer.time_slice cimport TimeSlice
from aiokafka_lite.consumer.delivery.ready cimport ReadyRecords
from aiokafka_lite.consumer.gate cimport Gate

import types
from asyncio import _get_running_loop

from aiokafka_lite._compat import task_of
from aiokafka_lite.consumer import caller

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PyObject *(*UnaryFunction "unaryfunc")(PyObject *) noexcept
    ctypedef PySendResult (*SendFunction "sendfunc")(PyObject *, PyObject *, PyObject **) noexcept
    ctypedef PyObject *(*NextFunction "iternextfunc")(PyObject *) noexcept
    ctypedef struct AsyncMethods "PyAsyncMethods":
        UnaryFunction am_anext
        SendFunction am_send
    ctypedef struct TypeObject "PyTypeObject":
        AsyncMethods *tp_as_async
        NextFunction tp_iternext
        PyObject *tp_dict
    ctypedef struct Slot "struct wrapperbase":
        pass
    ctypedef struct SlotWrapper "PyWrapperDescrObject":
        Slot *d_base
    ctypedef struct StopIterationObject "PyStopIterationObject":
        PyObject *dict
        PyObject *traceback
        PyObject *context
        PyObject *cause
        PyObject *value
    PyObject *PyExc_StopIteration
    object PyDescr_NewWrapper(TypeObject *, Slot *, void *)
    void PyType_Modified(TypeObject *)
    # "noexcept": an exception passes without a line of this module in its traceback.
    PySendResult PyIter_Send(object, object, PyObject **) noexcept
    Py_ssize_t Py_REFCNT(PyObject *)
    void Py_INCREF(PyObject *)
    void Py_DECREF(PyObject *)
    void Py_XDECREF(PyObject *)

# The system's cheapest clock: a resolution of a few milliseconds for a few nanoseconds.
cdef extern from *:
    """
    #ifdef _WIN32
    #include <windows.h>
    static inline long long coarse_ms(void) { return (long long)GetTickCount64(); }
    #else
    #include <time.h>
    #if defined(CLOCK_MONOTONIC_COARSE)
    #define COARSE_CLOCK CLOCK_MONOTONIC_COARSE
    #elif defined(CLOCK_MONOTONIC_RAW_APPROX)
    #define COARSE_CLOCK CLOCK_MONOTONIC_RAW_APPROX
    #else
    #define COARSE_CLOCK CLOCK_MONOTONIC
    #endif
    static inline long long coarse_ms(void) {
        struct timespec now;
        clock_gettime(COARSE_CLOCK, &now);
        return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    }
    #endif
    """
    long long coarse_ms() noexcept

# Records between two looks at the clock at most; a look costs as much as four records.
cdef Py_ssize_t LONGEST_STRIDE = 64

cdef enum Stage:
    FRESH  # before the first send
    RUNNING  # inside the coroutine
    SUSPENDED  # the coroutine waits
    WAITING  # a steady read waits for records, without a coroutine
    DONE


# Running callbacks of listeners.
cdef set callbacks = caller.callbacks


@cython.final
@cython.auto_pickle(False)
cdef class RecordCursor:
    """Iterates once over a list of records, for one time slice."""

    cdef readonly Py_ssize_t taken_count
    cdef list records
    cdef object clock
    cdef double slice_s
    cdef double ends_at
    cdef double looked_at
    # Records between two looks at the clock, and the count at the next one.
    cdef Py_ssize_t stride
    cdef Py_ssize_t next_look_at
    # Coarse time of the latest look, and how long that is valid.
    cdef long long looked_at_ms
    cdef long long stall_ms
    # Waits for records without a coroutine; None: always use one.
    cdef SteadyGets steady

    def __cinit__(self, clock, double slice_s, double stall_s):
        self.records = []
        self.clock = clock
        self.slice_s = slice_s
        self.stall_ms = <long long> min(stall_s * 1000, 1e15)
        self.stride = 1

    @property
    def has_rest(self):
        """Whether records are left, regardless of the time."""
        return self.taken_count < PyList_GET_SIZE(self.records)

    def open(self, list records not None, double ends_at):
        """Iterate over these records until a time of the clock."""
        self.records = records
        self.taken_count = 0
        self.go_on(ends_at)

    def go_on(self, double ends_at):
        """Continue until a time of the clock, for one record at least."""
        self.go_on_from(self.clock(), ends_at)

    cdef int go_on_from(self, double now, double ends_at) except -1:
        self.ends_at = ends_at
        self.looked_at = now
        self.looked_at_ms = coarse_ms()
        self.next_look_at = self.taken_count + self.stride
        return 0

    def belong_to(self, Reads reads not None, gate, buffer, ready):
        """Set the owner of the records; iterators can then wait without a coroutine."""
        self.steady = SteadyGets(reads, gate, buffer, ready, self)

    def close(self):
        """Return no more records."""
        self.forget()

    cdef int forget(self) except -1:
        self.records = []
        self.taken_count = 0
        self.next_look_at = 0
        return 0

    def take(self):
        """Return the next record; None at the end of the records or of the time."""
        return take_or_none(self)

    def take_own(self):
        """Like `take`, but only for the task that is the only reader; None for others."""
        reader = self.steady.reads.reader
        if reader is None or reader() is not task_of(self.steady.loop):
            return None
        return take_or_none(self)


cdef object take_or_none(RecordCursor self):
    cdef PyObject *reference = take(<PyObject *> self)
    if reference is NULL:
        return None
    record = <object> reference
    Py_DECREF(reference)
    return record


# The argument is a RecordCursor; typed as one, Cython would count references to it.
cdef inline PyObject *take(PyObject *cursor) except? NULL:
    """Return a new reference to the next record, or NULL without an exception."""
    cdef Py_ssize_t taken_count = (<RecordCursor> cursor).taken_count
    if taken_count >= PyList_GET_SIZE((<RecordCursor> cursor).records):
        return NULL
    if (
        taken_count == (<RecordCursor> cursor).next_look_at
        or coarse_ms() - (<RecordCursor> cursor).looked_at_ms > (<RecordCursor> cursor).stall_ms
    ):
        if not look(<RecordCursor> cursor):
            return NULL
        # The clock is Python code, which may have changed the list.
        taken_count = (<RecordCursor> cursor).taken_count
        if taken_count >= PyList_GET_SIZE((<RecordCursor> cursor).records):
            return NULL
    cdef PyObject *record = PyList_GET_ITEM((<RecordCursor> cursor).records, taken_count)
    (<RecordCursor> cursor).taken_count = taken_count + 1
    Py_INCREF(record)
    return record


cdef bint look(RecordCursor self) except -1:
    """Look at the clock; return whether time is left. If not, the next take looks again."""
    self.next_look_at = self.taken_count
    if self.looked_at >= self.ends_at:
        return False
    cdef double now = self.clock()
    cdef double took_s = now - self.looked_at
    if took_s < self.slice_s / 16:
        self.stride = min(2 * self.stride, LONGEST_STRIDE)
    elif took_s > self.slice_s / 8:
        self.stride = max(1, <Py_ssize_t> (self.stride * self.slice_s / 16 / took_s))
    self.looked_at = now
    self.looked_at_ms = coarse_ms()
    if now >= self.ends_at:
        return False
    self.next_look_at = self.taken_count + self.stride
    return True


@cython.final
@cython.auto_pickle(False)
cdef class SteadyGets:
    """Reads of one record of any partition that find a decoded chunk, or wait.

    This is the short way of `Buffer.take`, without a coroutine: the previous chunk is closed, and
    the first in turn is opened, or the read waits. All other cases (an error, a hold, decoding,
    another read, a listener's callback, a lack of memory) are left to `take`, before any change
    that it would not make. Tests compare both ways.
    """

    cdef RecordCursor cursor
    cdef Reads reads
    cdef object buffer
    cdef ReadyRecords ready
    cdef ChunkQueue queue
    cdef Gate gate
    cdef ByteBudget budget
    cdef TimeSlice slice
    cdef object loop
    cdef object clock
    # The buffer's own: it changes them but never replaces them.
    cdef dict waiters

    def __init__(self, Reads reads not None, gate, buffer, ready, RecordCursor cursor):
        self.reads = reads
        self.buffer = buffer
        self.ready = ready
        self.cursor = cursor
        self.gate = gate
        self.budget = buffer._budget
        self.slice = buffer.decoder.slice
        self.loop = buffer._loop
        self.clock = self.loop.time
        self.queue = buffer.queue
        self.waiters = buffer._waiters

    cdef bint can_go_on(self) except -1:
        """Whether a read may be steady, at its beginning or later."""
        return not (
            self.gate.is_troubled
            or self.gate.holds
            or callbacks
            or self.buffer.sought
            or self.budget.headroom_bytes
        )

    cdef bint begin(self) except -1:
        """Begin a read if it may be steady: close the previous chunk, and move the positions."""
        cdef Reads reads = self.reads
        if (
            _get_running_loop() is not self.loop
            or reads.in_progress
            or reads.readers is not None
            or reads.processing is not None
            or not self.can_go_on()
        ):
            return False
        if self.queue.lent is not None:
            if self.cursor.taken_count < PyList_GET_SIZE(self.cursor.records):
                return False  # its time slice is over
            self.ready.close()
        reads.begin_get()
        reads.resume_get()
        return True

    cdef bint open_first(self) except -1:
        """Open the first chunk in turn; False if there is none, or it needs more than that."""
        cdef Cursor cursor
        for cursor in self.queue.order:
            break
        else:
            return False
        if cursor.is_paused or cursor.has_enough or self.reads.readers is not None:
            return False
        cdef tuple chunks = cursor.chunks
        if not chunks:
            return False  # never happens, but the index below is not checked
        cdef Chunk chunk = chunks[0]
        if not chunk.decoded:
            return False
        if chunk.response is not None and not chunk.response.is_taken:
            return False
        self.ready.take(chunk, None)
        self.queue.lend(chunk)
        if len(self.queue.order) > 1:
            self.queue.end_turn(cursor)
        self.end(self.cursor.looked_at)
        return True

    cdef int end(self, object now) except -1:
        """Note that the read has ended."""
        self.reads.leave_get(now)
        return 0

    cdef Waiter wait(self):
        """Return a waiter for records; None if a chunk is buffered already."""
        if self.queue.order:
            return None
        if self.queue.untaken:
            self.queue.mark_all_taken()
        cdef Waiter waiter = Waiter.__new__(Waiter, self.loop)
        self.waiters[waiter] = ()
        return waiter

    cdef int woken(self, Waiter waiter) except -1:
        """Note that a read waits no more."""
        del self.waiters[waiter]
        self.slice.renew()
        if self.buffer.sought:
            self.loop.call_soon(self.buffer._seek_awaited)
        return 0


@cython.auto_pickle(False)
cdef class RecordIterator:
    """Returns a cursor's records to `async for`, or awaits `_next_record()` if it has none."""

    cdef RecordCursor cursor
    # The latest awaitable, if it is not waiting. It can be reused when the interpreter has
    # released it, which is before the loop's body runs.
    cdef NextRecord spare
    cdef object stop_iteration

    def _iterate_over(self, RecordCursor cursor not None):
        """Return the records of this cursor from now on."""
        self.cursor = cursor

    def __anext__(self):
        """Return an awaitable, which takes the next record when it is awaited."""
        if self.cursor is None:
            raise RuntimeError("__init__ has not been called")
        if self.spare is None or Py_REFCNT(<PyObject *> self.spare) > 1:
            self.spare = NextRecord.__new__(NextRecord)
        self.spare.iterator = self
        self.spare.stage = FRESH
        return self.spare


@cython.final
@cython.auto_pickle(False)
cdef class NextRecord:
    """An awaitable of one record, with the methods of a coroutine."""

    # None when it is not needed any more: the iterator references this object.
    cdef RecordIterator iterator
    # The iterator's `_next_record()`, while it runs or waits.
    cdef object coroutine
    # Set while a steady read waits. The iterator may get another cursor in the meantime.
    cdef Waiter waiter
    cdef SteadyGets steady
    cdef Stage stage

    __name__ = "__anext__"
    __qualname__ = "AIOKafkaConsumer.__anext__"

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return sent_or_stop(self, None)

    def send(self, value):
        """Take the record or wait for it: return an awaited future, or raise StopIteration."""
        return sent_or_stop(self, value)

    def throw(self, *exception):
        """Raise an exception in the waiting read."""
        if self.stage == WAITING:
            stop_waiting(self)
        enter(self)
        try:
            awaited = self.coroutine.throw(*exception)
        except BaseException:
            finish(self)
            raise
        self.stage = SUSPENDED
        return awaited

    def close(self):
        """Stop waiting; no record is lost."""
        if self.stage == RUNNING:
            raise ValueError("coroutine already executing")
        if self.stage == WAITING:
            stop_waiting(self)
        coroutine = self.coroutine
        finish(self)
        if coroutine is not None:
            coroutine.close()

    def __del__(self):
        if self.stage == WAITING:
            stop_waiting(self)

    # For asyncio, inspect and debuggers.

    @property
    def cr_running(self):
        return self.stage == RUNNING

    @property
    def cr_suspended(self):
        return self.stage == SUSPENDED or self.stage == WAITING

    @property
    def cr_await(self):
        if self.stage == WAITING:
            return self.waiter
        return getattr(self.coroutine, "cr_await", None)

    @property
    def cr_code(self):
        return getattr(self.coroutine, "cr_code", None)

    @property
    def cr_frame(self):
        return getattr(self.coroutine, "cr_frame", None)


cdef PySendResult send(NextRecord self, object value, PyObject **result) except PYGEN_ERROR:
    """The slot `am_send`; sets a new reference to the result."""
    cdef PySendResult outcome
    cdef SteadyGets steady
    if self.stage == FRESH:
        if value is not None:
            raise TypeError("can't send non-None value to a just-started coroutine")
        result[0] = take(<PyObject *> self.iterator.cursor)
        if result[0] is not NULL:
            self.stage = DONE
            self.iterator = None
            return PYGEN_RETURN
        steady = self.iterator.cursor.steady
        if steady is not None and steady.begin() and go_on(self, steady, result):
            return PYGEN_NEXT if self.stage == WAITING else PYGEN_RETURN
    elif self.stage == WAITING:
        steady = self.steady
        steady.woken(self.waiter)
        self.waiter = self.steady = None
        self.stage = FRESH
        if go_on(self, steady, result):
            return PYGEN_NEXT if self.stage == WAITING else PYGEN_RETURN
    enter(self)
    outcome = PyIter_Send(self.coroutine, value, result)
    if outcome == PYGEN_NEXT:
        self.stage = SUSPENDED
    else:
        finish(self)
    return outcome


cdef bint go_on(NextRecord self, SteadyGets steady, PyObject **result) except -1:
    """Continue a steady read: take a record, or wait. False: it has ended, use the coroutine."""
    cdef Waiter waiter
    if steady.can_go_on():
        if steady.open_first():
            result[0] = take(<PyObject *> steady.cursor)
            if result[0] is NULL:
                return False
            finish(self)
            return True
        waiter = steady.wait()
        if waiter is not None:
            self.waiter = waiter
            self.steady = steady
            self.stage = WAITING
            if self.iterator.spare is self:
                self.iterator.spare = None
            Py_INCREF(<PyObject *> waiter)
            result[0] = <PyObject *> waiter
            return True
    steady.end(steady.clock())
    return False


cdef int stop_waiting(NextRecord self) except -1:
    """End a waiting steady read, as before the first send."""
    cdef SteadyGets steady = self.steady
    cdef Waiter waiter = self.waiter
    self.waiter = self.steady = None
    self.stage = FRESH
    steady.woken(waiter)
    steady.end(steady.clock())
    return 0


cdef int enter(NextRecord self) except -1:
    """Begin to run the coroutine, which is created when it is first needed."""
    if self.stage == DONE:
        raise RuntimeError(f"cannot reuse already awaited {self.__qualname__}()")
    if self.stage == RUNNING:
        raise ValueError("coroutine already executing")
    if self.stage == FRESH:
        self.coroutine = self.iterator._next_record()
        if self.iterator.spare is self:
            self.iterator.spare = None
        self.iterator = None
    self.stage = RUNNING
    return 0


cdef inline void finish(NextRecord self) noexcept:
    self.stage = DONE
    self.coroutine = None
    self.iterator = None


cdef object sent_or_stop(NextRecord self, object value):
    """Send like a coroutine's method: return an awaited future, or raise StopIteration."""
    cdef PyObject *reference = NULL
    cdef PySendResult outcome = send(self, value, &reference)
    result = <object> reference
    Py_DECREF(reference)
    if outcome == PYGEN_RETURN:
        raise StopIteration(result)
    return result


cdef PyObject *iternext(NextRecord self) except NULL:
    """The slot `tp_iternext`: like `send(None)`, but with a reused StopIteration."""
    cdef RecordIterator iterator = self.iterator
    cdef PyObject *result = NULL
    if send(self, None, &result) == PYGEN_NEXT:
        return result
    cdef object stop_iteration
    if iterator is None:
        stop_iteration = StopIteration()
    else:
        if not is_as_new(<PyObject *> iterator.stop_iteration):
            iterator.stop_iteration = StopIteration()
        stop_iteration = iterator.stop_iteration
    raise_with_value(<PyObject *> stop_iteration, result)
    return NULL


cdef inline bint is_as_new(PyObject *exception) noexcept:
    """Whether it is a StopIteration without other references and without set fields."""
    cdef StopIterationObject *fields = <StopIterationObject *> exception
    return (
        exception is not <PyObject *> None
        and Py_REFCNT(exception) == 1
        and fields.dict is NULL
        and fields.traceback is NULL
        and fields.context is NULL
        and fields.cause is NULL
    )


cdef inline void raise_with_value(PyObject *stop_iteration, PyObject *value) noexcept:
    """Set the current exception; steals the reference `value`."""
    cdef StopIterationObject *fields = <StopIterationObject *> stop_iteration
    cdef PyObject *previous = fields.value
    fields.value = value
    Py_XDECREF(previous)
    Py_INCREF(PyExc_StopIteration)
    Py_INCREF(stop_iteration)
    PyErr_Restore(PyExc_StopIteration, stop_iteration, NULL)


cdef int finish_types() except -1:
    """Set slots of the types for which Cython has no syntax."""
    cdef TypeObject *awaitable = <TypeObject *> NextRecord
    awaitable.tp_as_async.am_send = <SendFunction> <void *> send
    awaitable.tp_iternext = <NextFunction> <void *> iternext
    # A Python subclass inherits a slot directly, without a call of the method, only if the method
    # is the interpreter's own wrapper of the slot. Cython's is not. An existing wrapper has the
    # needed description of the slot.
    cdef TypeObject *iterator = <TypeObject *> RecordIterator
    cdef object known = types.AsyncGeneratorType.__anext__
    (<dict> iterator.tp_dict)["__anext__"] = PyDescr_NewWrapper(
        iterator, (<SlotWrapper *> known).d_base, <void *> iterator.tp_as_async.am_anext
    )
    PyType_Modified(iterator)
    return 0


finish_types()
