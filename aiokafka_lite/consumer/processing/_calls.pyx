# cython: language_level=3, embedsignature=False
"""The calls of a worker of `run`, in C; `_calls_py` does the same in plain Python."""

from cpython.contextvars cimport PyContext_CopyCurrent, PyContextVar_Set
from cpython.dict cimport PyDict_DelItem, PyDict_SetItem
from cpython.object cimport PyObject

cimport cython

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PyObject *(*NextFunction "iternextfunc")(PyObject *) noexcept
    ctypedef struct TypeObject "PyTypeObject":
        NextFunction tp_iternext
    # "noexcept": an exception is left as it is, without a line for this module in its traceback.
    PySendResult PyIter_Send(object, object, PyObject **) noexcept
    bint PyCoro_CheckExact(object) noexcept
    void Py_DECREF(PyObject *)

from aiokafka_lite.consumer.processing.job cimport Job
from aiokafka_lite.consumer.processing.steps cimport Steps

import asyncio

from aiokafka_lite.consumer.processing.calls import HANDLING, asker, awaited


@cython.final
@cython.auto_pickle(False)
cdef class Calls:
    """The calls of one worker: an iterator over what they wait for, as that of a coroutine.

    When a call has returned and the worker would do nothing but finish the record and begin the
    next, this is done here. Everything else ends the iteration, and the worker does it.
    """

    cdef public Job job
    cdef public object context
    cdef Steps steps
    cdef object task
    cdef object handler
    cdef dict flights
    cdef bint is_alone
    cdef object clock
    cdef object is_cancelled
    cdef object call

    def __init__(self, Steps steps, task, handler, flights, *, is_alone):
        self.steps = steps
        self.task = task
        self.handler = handler
        self.flights = flights
        self.is_alone = is_alone
        self.clock = asyncio.get_running_loop().time
        self.is_cancelled = asker(task)

    def of(self, call):
        """Return what awaits the call for `job`, and goes on with other records."""
        if self.is_alone:
            return call
        self.call = coroutine_of(call)
        return self

    cdef bint go_on(self) except -1:
        """Begin the next call, if the worker has nothing else to do."""
        if self.steps.isolates or self.is_cancelled():
            return False
        try:
            if PyContext_CopyCurrent() != self.context:
                return False
        except Exception:
            return False
        cdef Job job = self.steps.finish_and_begin(self.job, self.clock())
        if job is None:
            return False
        PyDict_DelItem(self.flights, self.job)
        PyDict_SetItem(self.flights, job, self.task)
        self.job = job
        PyContextVar_Set(HANDLING, (job.cursor, job.offset))
        self.context = PyContext_CopyCurrent()
        self.call = coroutine_of(self.handler(job.record))
        return True

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        """Filled in by `finish_type`."""

    def send(self, value):
        if value is None:
            return next(self)
        return self.call.send(value)

    def throw(self, *exception):
        return self.call.throw(*exception)

    def close(self):
        self.call.close()

    # What asyncio and debuggers look at: the handler's coroutine.

    @property
    def cr_await(self):
        return getattr(self.call, "cr_await", None)

    @property
    def cr_code(self):
        return getattr(self.call, "cr_code", None)

    @property
    def cr_frame(self):
        return getattr(self.call, "cr_frame", None)

    @property
    def cr_running(self):
        return getattr(self.call, "cr_running", False)


cdef object coroutine_of(call):
    return call if PyCoro_CheckExact(call) else awaited(call)


cdef PyObject *iternext(Calls self) except NULL:
    """Fill `tp_iternext`: what a handler raises gets no line of this module."""
    cdef PyObject *result = NULL
    cdef PySendResult outcome
    while True:
        outcome = PyIter_Send(self.call, None, &result)
        if outcome == PYGEN_NEXT:
            return result
        if outcome == PYGEN_ERROR:
            return NULL
        outputs = <object> result
        Py_DECREF(result)
        if not self.go_on():
            raise StopIteration(outputs)


(<TypeObject *> Calls).tp_iternext = <NextFunction> <void *> iternext
