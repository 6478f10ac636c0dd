"""The fields of jobs as members of a C structure, for modules that are compiled."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor


@cython.final
cdef class Job:
    cdef public long long attempts
    cdef public object began_at
    cdef public Cursor cursor
    cdef public object error
    cdef public Job follower
    cdef public dict lane
    cdef public object letter
    cdef public long long list_limit
    cdef public object name
    cdef public object offset
    cdef public object origin
    cdef public object record
    cdef public long long size_bytes
    cdef public object state
    cdef public long long success_count

    cpdef begin(self, now, long long success_count)
