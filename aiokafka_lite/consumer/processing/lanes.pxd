"""The fields of lanes as members of a C structure, for modules that are compiled."""

cimport cython

from aiokafka_lite.consumer.processing.job cimport Job


@cython.final
cdef class Lanes:
    cdef public dict _lanes
    cdef public object _name_of
    cdef public object _order_failed
    cdef public bint is_by_name
    cdef public object order
    cdef public object ready

    @cython.locals(has_function=bint, is_by_name=bint, job=Job, lane=dict, last=Job)
    cpdef put(self, jobs)
    @cython.locals(follower=Job)
    cpdef leave(self, Job job)
