# cython: language_level=3, embedsignature=False
"""The steps of every record of `run`, in C; `_steps_py` does the same in plain Python.

Nothing is changed here that `Works.finish`, `Progress.finish` and `Lanes.leave` would not
change. Tests hold both against each other.
"""

from cpython.dict cimport (
    PyDict_DelItem,
    PyDict_GetItem,
    PyDict_GetItemWithError,
    PyDict_SetItem,
)
from cpython.object cimport PyObject

cimport cython

cdef extern from "Python.h":
    ctypedef void (*freefunc)(void *) noexcept
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef PyObject *(*NextFunction "iternextfunc")(PyObject *) noexcept
    ctypedef struct TypeObject "PyTypeObject":
        freefunc tp_free
        NextFunction tp_iternext
    # "noexcept": an exception is left as it is, without a line for this module in its traceback.
    PySendResult PyIter_Send(object, object, PyObject **) noexcept
    bint PyCoro_CheckExact(object) noexcept
    object PyType_GenericAlloc(TypeObject *, Py_ssize_t)
    PyObject *PyObject_Init(PyObject *, TypeObject *)
    void PyObject_GC_Track(void *)
    void PyObject_GC_Del(void *)
    void Py_DECREF(PyObject *)

from aiokafka_lite._slots cimport get, is_none, is_true, put, require, slot_offset
from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.assignment.reads cimport Reads
from aiokafka_lite.consumer.gate cimport Gate

import asyncio
from contextvars import copy_context

from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.attempts import Attempts
from aiokafka_lite.consumer.processing.breaker import Breaker, BreakerState
from aiokafka_lite.consumer.processing.calls import asker, awaited
from aiokafka_lite.consumer.processing.lanes import Job, JobState

cdef Py_ssize_t allowance_is_exact = slot_offset(Allowance, "is_exact")
cdef Py_ssize_t attempts_breaker = slot_offset(Attempts, "breaker")
cdef Py_ssize_t attempts_success_count = slot_offset(Attempts, "success_count")
cdef Py_ssize_t breaker_state = slot_offset(Breaker, "state")
cdef Py_ssize_t job_attempts = slot_offset(Job, "attempts")
cdef Py_ssize_t job_began_at = slot_offset(Job, "began_at")
cdef Py_ssize_t job_cursor = slot_offset(Job, "cursor")
cdef Py_ssize_t job_error = slot_offset(Job, "error")
cdef Py_ssize_t job_follower = slot_offset(Job, "follower")
cdef Py_ssize_t job_lane = slot_offset(Job, "lane")
cdef Py_ssize_t job_name = slot_offset(Job, "name")
cdef Py_ssize_t job_record = slot_offset(Job, "record")
cdef Py_ssize_t job_state = slot_offset(Job, "state")
cdef Py_ssize_t job_success_count = slot_offset(Job, "success_count")
cdef Py_ssize_t progress_handed_out = slot_offset(Progress, "_handed_out")
cdef Py_ssize_t progress_unfinished = slot_offset(Progress, "_unfinished")

cdef object CLOSED = BreakerState.CLOSED
cdef object DEAD = JobState.DEAD
cdef object LISTED = JobState.LISTED

# Memory of jobs that are gone, for those to come, as many as a get makes. So jobs do not count
# towards the next garbage collection: those of one get would each time begin one, and it would look
# at all that handlers have just then.
cdef enum:
    MOST_KEPT = 2_000

cdef PyObject *kept[MOST_KEPT]
cdef Py_ssize_t kept_count = 0


cdef void keep_or_free(void *job) noexcept:
    """Free a job's memory, or keep it: its fields are empty, and it is not tracked."""
    global kept_count
    if kept_count < MOST_KEPT:
        kept[kept_count] = <PyObject *> job
        kept_count += 1
    else:
        PyObject_GC_Del(job)


(<TypeObject *> Job).tp_free = keep_or_free


cdef object empty_job():
    """Return a job whose fields are empty."""
    global kept_count
    if not kept_count:
        return PyType_GenericAlloc(<TypeObject *> Job, 0)
    kept_count -= 1
    cdef PyObject *raw = PyObject_Init(kept[kept_count], <TypeObject *> Job)
    PyObject_GC_Track(<void *> raw)
    job = <object> raw
    Py_DECREF(raw)
    return job


def new_job(cursor, lane, error, record):
    """Return a job, as its class does."""
    job = empty_job()
    put(job, job_record, record)
    put(job, job_cursor, cursor)
    put(job, job_lane, lane)
    put(job, job_name, None)
    put(job, job_follower, None)
    put(job, job_attempts, 0)
    put(job, job_began_at, None)
    put(job, job_error, error)
    put(job, job_state, LISTED if error is None else DEAD)
    put(job, job_success_count, 0)
    return job


@cython.final
@cython.auto_pickle(False)
cdef class Steps:
    """Queues, begins and finishes records that nothing stands in the way of."""

    cdef public bint is_finishing
    cdef public bint isolates
    cdef public object slice_ends_at
    cdef public Py_ssize_t feed_below
    cdef Reads reads
    cdef Gate gate
    cdef object observers
    cdef dict totals
    cdef object attempts
    cdef object breaker
    cdef object allowance
    cdef object begin_slice
    cdef object lanes
    cdef object ready
    cdef bint is_by_key
    cdef object popleft
    cdef object append

    def __init__(
        self, works, Reads reads not None, gate, observers, lanes, attempts, allowance, begin_slice
    ):
        require(attempts, Attempts)
        require(allowance, Allowance)
        self.reads = reads
        self.gate = gate
        self.totals = works.totals
        self.attempts = attempts
        self.breaker = get(attempts, attempts_breaker)
        self.allowance = allowance
        self.begin_slice = begin_slice
        self.observers = observers
        self.lanes = lanes
        self.is_by_key = lanes.order == "key"
        self.ready = lanes.ready
        self.popleft = lanes.ready.popleft
        self.append = lanes.ready.append

    def put(self, jobs):
        """Add records that were handed out; each may begin at once if its lane is empty."""
        cdef PyObject *last
        name = None
        for job in jobs:
            lane = get(job, job_lane)
            if lane is not None and self.is_by_key:
                name = get(job, job_record).key
                put(job, job_name, name)
                if name is None:
                    put(job, job_lane, None)
                    lane = None
            if lane is None:
                self.append(job)
                continue
            try:
                last = PyDict_GetItemWithError(lane, name)
            except TypeError:
                self.lanes.put([job])  # which says what keys are needed
                raise
            if last is NULL:
                self.append(job)
            else:
                put(<object> last, job_follower, job)
            PyDict_SetItem(lane, name, job)

    cpdef begin(self, now, success_count):
        """Take the first ready record, whose attempt begins now; None: more is to be done."""
        if not self.ready:
            return None
        job = self.ready[0]
        cdef Cursor cursor = get(job, job_cursor)
        if (
            cursor.is_revoking
            or cursor.is_paused
            or get(job, job_state) is DEAD
        ):
            return None
        progress = cursor.progress
        if progress is None or not holds(progress, get(job, job_record).offset, job):
            return None
        self.popleft()
        put(job, job_began_at, now)
        if is_none(job, job_error):
            put(job, job_success_count, success_count)
        return job

    cpdef finish(self, job):
        """Count a record as finished, if it is still this one's, and let its lane go on."""
        cdef Cursor cursor = get(job, job_cursor)
        progress = cursor.progress
        offset = get(job, job_record).offset
        if progress is not None and holds(progress, offset, job):
            self.finish_held(cursor, progress, offset)
        self.leave(job)

    cdef object finish_and_begin(self, job, now):
        """Finish a record that was handled and begin another; None: nothing is done, `Run` has to."""
        cdef Cursor cursor = get(job, job_cursor)
        if self.slice_ends_at is None:
            self.begin_slice(now)
        if (
            self.is_finishing
            or now >= self.slice_ends_at
            or len(self.ready) <= self.feed_below
            or cursor.is_revoking
            or not cursor.is_assigned
            or is_true(self.allowance, allowance_is_exact)
            or (self.breaker is not None and get(self.breaker, breaker_state) is not CLOSED)
            or self.gate.holds
        ):
            return None
        success_count = get(self.attempts, attempts_success_count) + 1
        following = self.begin(now, success_count)
        if following is not None:
            self.finish(job)
            self.totals["finished_total"] += 1
            put(self.attempts, attempts_success_count, success_count)
        return following

    cdef int finish_held(self, Cursor cursor, progress, offset) except -1:
        cdef dict unfinished = get(progress, progress_unfinished)
        handed_out = get(progress, progress_handed_out)
        PyDict_DelItem(unfinished, offset)
        if handed_out[0] == offset:
            handed_out.popleft()
            while handed_out and PyDict_GetItem(unfinished, handed_out[0]) is NULL:
                handed_out.popleft()
            processing = self.reads.processing
            if (
                handed_out
                and processing is not None
                and cursor.worked_by is processing
            ):
                cursor.process_to(handed_out[0])
            else:
                self.reads.settle_progress(cursor)
        if self.observers.of_progress:
            self.observers.progressed()
        return 0

    cdef int leave(self, job) except -1:
        lane = get(job, job_lane)
        if lane is None:
            return 0
        follower = get(job, job_follower)
        if follower is None:
            PyDict_DelItem(lane, get(job, job_name))
        else:
            put(job, job_follower, None)
            self.append(follower)
        return 0


@cython.final
@cython.auto_pickle(False)
cdef class Calls:
    """The calls of one worker: an iterator over what they wait for, as that of a coroutine.

    When a call has returned and the worker would do nothing but finish the record and begin the
    next, this is done here. Everything else ends the iteration, and the worker does it.
    """

    cdef public object job
    cdef Steps steps
    cdef object task
    cdef object handler
    cdef dict flights
    cdef object context
    cdef bint is_alone
    cdef object clock
    cdef object is_cancelled
    cdef object call

    def __init__(self, Steps steps, task, handler, flights, context, *, is_alone):
        self.steps = steps
        self.task = task
        self.handler = handler
        self.flights = flights
        self.context = context
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
            if copy_context() != self.context:
                return False
        except Exception:
            return False
        job = self.steps.finish_and_begin(self.job, self.clock())
        if job is None:
            return False
        PyDict_DelItem(self.flights, self.job)
        PyDict_SetItem(self.flights, job, self.task)
        self.job = job
        self.call = coroutine_of(self.handler(get(job, job_record)))
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


cdef inline bint holds(progress, offset, job):
    """Whether a record is unfinished, and this one's to finish."""
    return PyDict_GetItem(get(progress, progress_unfinished), offset) is <PyObject *> job
