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

from aiokafka_lite.consumer.delivery.next_record cimport Iteration, NextRecord
from aiokafka_lite.consumer.delivery.record_cursor cimport RecordCursor

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
    void Py_XDECREF(PyObject *)


@cython.auto_pickle(False)
cdef class RecordIterator(Iteration):
    """Returns a cursor's records to `async for`, or awaits `_next_record()` if it has none."""

    cdef object stop_iteration

    def _iterate_over(self, RecordCursor cursor not None):
        """Return the records of this cursor from now on."""
        self.cursor = cursor

    def __anext__(self):
        """Return an awaitable, which takes the next record when it is awaited."""
        if self.cursor is None:
            raise RuntimeError("__init__ has not been called")
        # It can be reused when the interpreter has released it, before the loop's body runs.
        if self.spare is None or Py_REFCNT(<PyObject *> self.spare) > 1:
            self.spare = NextRecord.__new__(NextRecord)
        self.spare.renew(self)
        return self.spare


cdef PySendResult send(NextRecord self, object value, PyObject **result) except PYGEN_ERROR:
    """The slot `am_send`; sets a new reference to the result."""
    cdef PySendResult outcome
    found = self.begin(value)
    if found is not None:
        Py_INCREF(<PyObject *> found)
        result[0] = <PyObject *> found
        return PYGEN_RETURN if self._waiter is None else PYGEN_NEXT
    outcome = PyIter_Send(self.enter(), value, result)
    if outcome == PYGEN_NEXT:
        self.suspend()
    else:
        self.finish()
    return outcome


cdef PyObject *iternext(NextRecord self) except NULL:
    """The slot `tp_iternext`: like `send(None)`, but with a reused StopIteration."""
    cdef RecordIterator iterator = <RecordIterator> self._iteration
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
