"""The fields of allowances as members of a C structure, for modules that are compiled."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.assignment.progress cimport Progress
from aiokafka_lite.consumer.assignment.works cimport Works
from aiokafka_lite.consumer.buffer.budget cimport ByteBudget


@cython.final
cdef class Counted:
    cdef public long long count
    cdef public long long size_bytes


@cython.final
cdef class Allowance:
    cdef public ByteBudget _budget
    cdef public dict _counted
    cdef public long long _most
    cdef public long long _most_bytes
    cdef public object _state
    cdef public long long _total
    cdef public long long _total_bytes
    cdef public set _withheld
    cdef public Works _works
    cdef public object complete

    @cython.locals(counted=Counted, record_bytes=cython.longlong, size_bytes=cython.longlong)
    cpdef admit(self, Cursor cursor, list records)
    @cython.locals(counted=Counted, progress=Progress, size_bytes=cython.longlong)
    cpdef count(self, Cursor cursor)
    cdef Counted _of(self, Cursor cursor)
    cdef bint _has_most(self)
    cdef bint _has_most_bytes(self)
    cdef _let_have_more(self, Cursor cursor)
