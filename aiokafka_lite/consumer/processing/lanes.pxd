"""The fields of lanes as members of a C structure, for modules that are compiled."""

cimport cython

from aiokafka_lite.consumer.processing.job cimport Job


@cython.final
cdef class Lanes:
    cdef public dict _lanes
    cdef public str order
    cdef public object ready

    @cython.locals(is_by_key=bint, job=Job, lane=dict, last=Job)
    cpdef put(self, jobs)
    @cython.locals(follower=Job)
    cpdef leave(self, Job job)
