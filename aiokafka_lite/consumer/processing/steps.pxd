"""The fields of steps as members of a C structure, for modules that are compiled."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.assignment.progress cimport Progress
from aiokafka_lite.consumer.assignment.works cimport Works
from aiokafka_lite.consumer.gate cimport Gate
from aiokafka_lite.consumer.processing.allowance cimport Allowance
from aiokafka_lite.consumer.processing.job cimport Job
from aiokafka_lite.consumer.processing.lanes cimport Lanes


@cython.final
cdef class Steps:
    cdef public Allowance _allowance
    cdef public object _attempts
    cdef public object _breaker
    cdef public Gate _gate
    cdef public Lanes _lanes
    cdef public object _run
    cdef public Works _works
    cdef public Py_ssize_t feed_below
    cdef public bint is_finishing
    cdef public bint isolates
    cdef public object slice_ends_at

    @cython.locals(cursor=Cursor, following=Job, progress=Progress)
    cpdef Job finish_and_begin(self, Job job, now)
