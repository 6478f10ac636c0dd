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
from cpython.object cimport PyObject

cimport cython

from aiokafka_lite.consumer.buffer.waiter cimport RecordWaiter
from aiokafka_lite.consumer.delivery.record_cursor cimport RecordCursor
from aiokafka_lite.consumer.delivery.steady cimport SteadyGets

import types

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

cdef enum Stage:
    FRESH  # before the first send
    RUNNING  # inside the coroutine
    SUSPENDED  # the coroutine waits
    WAITING  # a steady read waits for records, without a coroutine
    DONE


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
    cdef RecordWaiter waiter
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
        record = self.iterator.cursor.take()
        if record is not None:
            self.stage = DONE
            self.iterator = None
            Py_INCREF(<PyObject *> record)
            result[0] = <PyObject *> record
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
    found = steady.go_on()
    if found is None:
        return False
    if type(found) is RecordWaiter:
        self.waiter = found
        self.steady = steady
        self.stage = WAITING
        if self.iterator.spare is self:
            self.iterator.spare = None
    else:
        finish(self)
    Py_INCREF(<PyObject *> found)
    result[0] = <PyObject *> found
    return True


cdef int stop_waiting(NextRecord self) except -1:
    """End a waiting steady read, as before the first send."""
    cdef SteadyGets steady = self.steady
    cdef RecordWaiter waiter = self.waiter
    self.waiter = self.steady = None
    self.stage = FRESH
    steady.give_up(waiter)
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
