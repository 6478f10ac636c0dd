# cython: language_level=3, embedsignature=False
"""The per-message path of `async for`, in C; `_iteration_py` does the same in plain Python.

For each message, `async for` asks for an awaitable and sends None into it. A coroutine made for
that costs as much as decoding the record it brings. So the awaitable here is an object that is
used again as soon as nobody else holds it, and that answers the first send with a record at once
if one is ready. Only if none is does it make a coroutine, the iterator's `_next_record()`, and
from then on passes on whatever is sent to it or thrown into it.

The interpreter sends in two ways, and neither may cost an exception per message:

- Through the slot `am_send`: up to 3.11, and asyncio's tasks in every version.
- Through `tp_iternext` from 3.12 on, which can return a value only inside a StopIteration. Each
  iterator keeps one, to be used again.

Cython has no syntax for what is needed of these: see `finish_types`.
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
    # "noexcept": an exception is left as it is, without a line for this module in its traceback.
    PySendResult PyIter_Send(object, object, PyObject **) noexcept
    Py_ssize_t Py_REFCNT(PyObject *)
    void Py_INCREF(PyObject *)
    void Py_DECREF(PyObject *)
    void Py_XDECREF(PyObject *)

# The system's cheapest clock: it moves a few milliseconds at a time, and costs a few nanoseconds.
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

# Records between two looks at the clock, at most: a look costs as much as four records.
cdef Py_ssize_t LONGEST_STRIDE = 64

cdef enum Stage:
    FRESH  # nothing was sent: no record is taken yet
    RUNNING  # inside the coroutine
    SUSPENDED  # the coroutine waits for something
    WAITING  # a steady get waits for records, without a coroutine
    DONE


# Callbacks of listeners that run.
cdef set callbacks = caller.callbacks


@cython.final
@cython.auto_pickle(False)
cdef class RecordCursor:
    """Goes once through the records of a list, as long as a time slice lasts."""

    cdef readonly Py_ssize_t taken_count
    cdef list records
    cdef object clock
    cdef double slice_s
    cdef double ends_at
    cdef double looked_at
    # Records from one look at the clock to the next, and how many are taken at the next.
    cdef Py_ssize_t stride
    cdef Py_ssize_t next_look_at
    # On the coarse clock: when this one was looked at, and how long that is good for.
    cdef long long looked_at_ms
    cdef long long stall_ms
    # Waits for more where that takes no coroutine; None: it always takes one.
    cdef SteadyGets steady

    def __cinit__(self, clock, double slice_s, double stall_s):
        self.records = []
        self.clock = clock
        self.slice_s = slice_s
        self.stall_ms = <long long> min(stall_s * 1000, 1e15)
        self.stride = 1

    @property
    def has_rest(self):
        """Whether records are left, though perhaps no time."""
        return self.taken_count < PyList_GET_SIZE(self.records)

    def open(self, list records not None, double ends_at):
        """Go through these records until a time on the clock."""
        self.records = records
        self.taken_count = 0
        self.go_on(ends_at)

    def go_on(self, double ends_at):
        """Go on until a time on the clock, by one record at least."""
        self.go_on_from(self.clock(), ends_at)

    cdef int go_on_from(self, double now, double ends_at) except -1:
        self.ends_at = ends_at
        self.looked_at = now
        self.looked_at_ms = coarse_ms()
        self.next_look_at = self.taken_count + self.stride
        return 0

    def belong_to(self, Reads reads not None, gate, buffer, ready):
        """Set whose records these are; iterators can wait for more of them without a coroutine."""
        self.steady = SteadyGets(reads, gate, buffer, ready, self)

    def close(self):
        """Hand out no more records."""
        self.forget()

    cdef int forget(self) except -1:
        self.records = []
        self.taken_count = 0
        self.next_look_at = 0
        return 0

    def take(self):
        """Return the next record; None if there is none, or if the time is up."""
        return take_or_none(self)

    def take_own(self):
        """As `take`, but for the task that reads alone; None for every other one."""
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


# Its argument is a cursor: Cython would count references to it if it knew.
cdef inline PyObject *take(PyObject *cursor) except? NULL:
    """Return a new reference to the next record; NULL, without an exception, if there is none."""
    cdef Py_ssize_t taken_count = (<RecordCursor> cursor).taken_count
    if taken_count >= PyList_GET_SIZE((<RecordCursor> cursor).records):
        return NULL
    if (
        taken_count == (<RecordCursor> cursor).next_look_at
        or coarse_ms() - (<RecordCursor> cursor).looked_at_ms > (<RecordCursor> cursor).stall_ms
    ):
        if not look(<RecordCursor> cursor):
            return NULL
        # Whatever ran meanwhile, it must not make this read beyond the list.
        taken_count = (<RecordCursor> cursor).taken_count
        if taken_count >= PyList_GET_SIZE((<RecordCursor> cursor).records):
            return NULL
    cdef PyObject *record = PyList_GET_ITEM((<RecordCursor> cursor).records, taken_count)
    (<RecordCursor> cursor).taken_count = taken_count + 1
    Py_INCREF(record)
    return record


cdef bint look(RecordCursor self) except -1:
    """Look at the clock: whether there is time left; if not, the next take looks again."""
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
    """Gets of one record of any partition that find one, or wait for one, and do nothing else.

    What `Buffer.take` does for such a get is done here in one go, without a coroutine: the chunk
    before is closed, and the first in turn is opened, or the get waits. Whatever else is to be done (an error, a hold, a chunk to
    decode, another get, a listener's callback, memory that is short) is left to them, and then
    nothing was changed that they would not change. Tests hold both ways against each other.
    """

    cdef RecordCursor cursor
    cdef Reads reads
    cdef object buffer
    cdef ReadyRecords ready
    cdef ChunkQueue queue
    cdef Gate gate
    cdef ByteBudget budget
    cdef object decoder
    cdef TimeSlice slice
    cdef object loop
    cdef object clock
    # It is made once, and changed only.
    cdef dict waiters

    def __init__(self, Reads reads not None, gate, buffer, ready, RecordCursor cursor):
        self.reads = reads
        self.buffer = buffer
        self.ready = ready
        self.cursor = cursor
        self.gate = gate
        self.budget = buffer._budget
        self.decoder = buffer.decoder
        self.slice = buffer.decoder.slice
        self.loop = buffer._loop
        self.clock = self.loop.time
        self.queue = buffer.queue
        self.waiters = buffer._waiters

    cdef bint can_go_on(self) except -1:
        """Whether nothing stands in the way of a get, be it at its beginning or later."""
        return not (
            self.gate.is_troubled
            or self.gate.holds
            or callbacks
            or self.buffer.sought
            or self.budget.headroom_bytes
        )

    cdef bint begin(self) except -1:
        """Begin a get, if it may be steady: close what was read, and move the positions."""
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
        """Open the first chunk in turn; False if there is none, or more is to be done for it."""
        cdef Cursor cursor
        for cursor in self.queue.order:
            break
        else:
            return False
        if cursor.is_paused or cursor.has_enough or self.reads.readers is not None:
            return False
        cdef tuple chunks = cursor.chunks
        if not chunks:
            return False  # never: what is in turn has some; but nothing checks an index here
        cdef Chunk chunk = chunks[0]
        if not chunk.decoded:
            return False
        if chunk.response is not None and not chunk.response.is_taken:
            return False
        self.ready.take(chunk, None, self.decoder)
        self.queue.lend(chunk)
        if len(self.queue.order) > 1:
            self.queue.end_turn(cursor)
        self.end(self.cursor.looked_at)
        return True

    cdef int end(self, object now) except -1:
        """Note that the get has ended."""
        self.reads.leave_get(now)
        return 0

    cdef Waiter wait(self):
        """Return what to wait for; None: more is to be done than that."""
        if self.queue.order:
            return None
        if self.queue.untaken:
            for response in tuple(self.queue.untaken.values()):
                self.queue.mark_taken(response)
        cdef Waiter waiter = Waiter.__new__(Waiter, self.loop)
        self.waiters[waiter] = ()
        return waiter

    cdef int woken(self, Waiter waiter) except -1:
        """Note that a get waits no more."""
        del self.waiters[waiter]
        self.slice.renew()
        if self.buffer.sought:
            self.loop.call_soon(self.buffer._seek_awaited)
        return 0


@cython.auto_pickle(False)
cdef class RecordIterator:
    """Hands a cursor's records to `async for`, and `await _next_record()` when it has none."""

    cdef RecordCursor cursor
    # The latest awaitable, if it is not waiting. It is free for the next message when the
    # interpreter has let go of it, which is before the loop's body runs.
    cdef NextRecord spare
    cdef object stop_iteration

    def _iterate_over(self, RecordCursor cursor not None):
        """Hand out the records of this cursor from now on."""
        self.cursor = cursor

    def __anext__(self):
        """Return an awaitable of the next record, which takes it only when it is awaited."""
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
    """An awaitable of one record, to be used as a coroutine is."""

    # None when it is not needed any more: the iterator holds this, and would hold itself.
    cdef RecordIterator iterator
    # Of the iterator's `_next_record()`, while it runs or waits.
    cdef object coroutine
    # While a steady get waits: what for, and whose it is. The iterator may be given another cursor.
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
        """Take the record or wait on for it: returns what to wait for, or raises StopIteration."""
        return sent_or_stop(self, value)

    def throw(self, *exception):
        """Raise an exception where it waits."""
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
        """Give up waiting; no record is lost."""
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

    # What asyncio, inspect and debuggers look at.

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
    """Fill `am_send`: a value sent in, a new reference to what comes out."""
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
    """Go on with a steady get: take a record, or wait; False: it is over, and another has to."""
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
    """End a steady get that waits: it is as if nothing had been sent."""
    cdef SteadyGets steady = self.steady
    cdef Waiter waiter = self.waiter
    self.waiter = self.steady = None
    self.stage = FRESH
    steady.woken(waiter)
    steady.end(steady.clock())
    return 0


cdef int enter(NextRecord self) except -1:
    """Begin to run the coroutine, which is made when it is first needed."""
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
    """Send as a coroutine's method does: returns what to wait for, or raises StopIteration."""
    cdef PyObject *reference = NULL
    cdef PySendResult outcome = send(self, value, &reference)
    result = <object> reference
    Py_DECREF(reference)
    if outcome == PYGEN_RETURN:
        raise StopIteration(result)
    return result


cdef PyObject *iternext(NextRecord self) except NULL:
    """Fill `tp_iternext`: as `send(None)`, but with a StopIteration that was made before."""
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
    """Whether it is a StopIteration that nobody else holds and that nothing was left in."""
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
    """Set the current exception; `value` is a reference that it takes over."""
    cdef StopIterationObject *fields = <StopIterationObject *> stop_iteration
    cdef PyObject *previous = fields.value
    fields.value = value
    Py_XDECREF(previous)
    Py_INCREF(PyExc_StopIteration)
    Py_INCREF(stop_iteration)
    PyErr_Restore(PyExc_StopIteration, stop_iteration, NULL)


cdef int finish_types() except -1:
    """Give the types what Cython has no syntax for."""
    cdef TypeObject *awaitable = <TypeObject *> NextRecord
    awaitable.tp_as_async.am_send = <SendFunction> <void *> send
    awaitable.tp_iternext = <NextFunction> <void *> iternext
    # A class written in Python inherits a slot itself, instead of a call of the method, only if
    # the method is found to be the interpreter's own wrapper of the slot; Cython's is not. Which
    # slot a wrapper is for is known to the wrappers that there are.
    cdef TypeObject *iterator = <TypeObject *> RecordIterator
    cdef object known = types.AsyncGeneratorType.__anext__
    (<dict> iterator.tp_dict)["__anext__"] = PyDescr_NewWrapper(
        iterator, (<SlotWrapper *> known).d_base, <void *> iterator.tp_as_async.am_anext
    )
    PyType_Modified(iterator)
    return 0


finish_types()
