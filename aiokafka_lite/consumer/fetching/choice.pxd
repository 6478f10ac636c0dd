"""The fields of choices as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.fetching.session cimport FetchSession


@cython.final
cdef class Choice:
    cdef public object _buffer
    cdef public object _budget
    cdef public FetchSession _session
    cdef public dict backing_off
    cdef public object claim
    cdef public set cursors
    cdef public bint is_changed
    cdef public object oversize
    cdef public dict ready
    cdef public dict recalled

    cpdef bint is_settled(self) except -1
    cpdef moved(self, Cursor cursor)
    cpdef left(self, Cursor cursor)
    cpdef bint may_ask_for(self, Cursor cursor) except -1
    cpdef bint can_be_asked(self, Cursor cursor) except -1
