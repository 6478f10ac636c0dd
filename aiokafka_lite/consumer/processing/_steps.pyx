# cython: language_level=3, embedsignature=False
"""The steps of every record of `run`, in C; `_steps_py` does the same in plain Python.

Nothing is changed here that `Assignment.finish`, `Progress.finish` and `Lanes.leave` would not
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
    ctypedef struct TypeObject "PyTypeObject":
        freefunc tp_free
    object PyType_GenericAlloc(TypeObject *, Py_ssize_t)
    PyObject *PyObject_Init(PyObject *, TypeObject *)
    void PyObject_GC_Track(void *)
    void PyObject_GC_Del(void *)
    void Py_DECREF(PyObject *)

from aiokafka_lite._slots cimport get, is_none, is_true, put, require, slot_offset

from aiokafka_lite.consumer.assignment.assignment import Assignment
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.assignment.progress import Progress
from aiokafka_lite.consumer.processing.lanes import Job

cdef Py_ssize_t assignment_observers = slot_offset(Assignment, "observers")
cdef Py_ssize_t assignment_processing = slot_offset(Assignment, "processing")
cdef Py_ssize_t cursor_is_paused = slot_offset(Cursor, "is_paused")
cdef Py_ssize_t cursor_is_revoking = slot_offset(Cursor, "is_revoking")
cdef Py_ssize_t cursor_processed = slot_offset(Cursor, "processed")
cdef Py_ssize_t cursor_progress = slot_offset(Cursor, "progress")
cdef Py_ssize_t cursor_worked_by = slot_offset(Cursor, "worked_by")
cdef Py_ssize_t job_attempts = slot_offset(Job, "attempts")
cdef Py_ssize_t job_began_at = slot_offset(Job, "began_at")
cdef Py_ssize_t job_cursor = slot_offset(Job, "cursor")
cdef Py_ssize_t job_error = slot_offset(Job, "error")
cdef Py_ssize_t job_follower = slot_offset(Job, "follower")
cdef Py_ssize_t job_is_alone = slot_offset(Job, "is_alone")
cdef Py_ssize_t job_is_dead = slot_offset(Job, "is_dead")
cdef Py_ssize_t job_lane = slot_offset(Job, "lane")
cdef Py_ssize_t job_name = slot_offset(Job, "name")
cdef Py_ssize_t job_record = slot_offset(Job, "record")
cdef Py_ssize_t job_success_count = slot_offset(Job, "success_count")
cdef Py_ssize_t progress_handed_out = slot_offset(Progress, "_handed_out")
cdef Py_ssize_t progress_unfinished = slot_offset(Progress, "_unfinished")

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
    put(job, job_is_dead, error is not None)
    put(job, job_is_alone, error is not None)
    put(job, job_success_count, 0)
    return job


@cython.final
@cython.auto_pickle(False)
cdef class Steps:
    """Queues, begins and finishes records that nothing stands in the way of."""

    cdef object state
    cdef object observers
    cdef object lanes
    cdef object ready
    cdef bint is_by_key
    cdef object popleft
    cdef object append

    def __init__(self, state, lanes):
        require(state, Assignment)
        self.state = state
        self.observers = get(state, assignment_observers)
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

    def begin(self, now, success_count):
        """Take the first ready record, whose attempt begins now; None: more is to be done."""
        if not self.ready:
            return None
        job = self.ready[0]
        cursor = get(job, job_cursor)
        if (
            is_true(cursor, cursor_is_revoking)
            or is_true(cursor, cursor_is_paused)
            or is_true(job, job_is_dead)
        ):
            return None
        progress = get(cursor, cursor_progress)
        if progress is None or not holds(progress, get(job, job_record).offset, job):
            return None
        self.popleft()
        put(job, job_began_at, now)
        if is_none(job, job_error):
            put(job, job_success_count, success_count)
        return job

    def finish(self, job):
        """Count a record as finished, if it is still this one's, and let its lane go on."""
        cursor = get(job, job_cursor)
        progress = get(cursor, cursor_progress)
        offset = get(job, job_record).offset
        if progress is not None and holds(progress, offset, job):
            self.finish_held(cursor, progress, offset)
        self.leave(job)

    cdef int finish_held(self, cursor, progress, offset) except -1:
        cdef dict unfinished = get(progress, progress_unfinished)
        handed_out = get(progress, progress_handed_out)
        PyDict_DelItem(unfinished, offset)
        if handed_out[0] == offset:
            handed_out.popleft()
            while handed_out and PyDict_GetItem(unfinished, handed_out[0]) is NULL:
                handed_out.popleft()
            processing = get(self.state, assignment_processing)
            if (
                handed_out
                and processing is not None
                and get(cursor, cursor_worked_by) is processing
            ):
                put(cursor, cursor_processed, handed_out[0])
            else:
                self.state.settle_progress(cursor)
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


cdef inline bint holds(progress, offset, job):
    """Whether a record is unfinished, and this one's to finish."""
    return PyDict_GetItem(get(progress, progress_unfinished), offset) is <PyObject *> job
