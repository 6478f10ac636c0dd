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
    cdef public object _cursors
    cdef public long long _most
    cdef public long long _most_bytes
    cdef public long long _total
    cdef public long long _total_bytes
    cdef public set _withheld
    cdef public Works _works
    cdef public object complete

    @cython.locals(
        counted=Counted,
        record_bytes=cython.longlong,
        room_bytes=cython.longlong,
        size_bytes=cython.longlong,
    )
    cpdef admit(self, Cursor cursor, list records)
    @cython.locals(
        count=cython.longlong,
        counted=Counted,
        had_most=bint,
        had_most_bytes=bint,
        progress=Progress,
        size_bytes=cython.longlong,
    )
    cpdef count(self, Cursor cursor)
    cdef Counted _of(self, Cursor cursor)
    cdef bint _has_most(self)
    cdef bint _has_most_bytes(self)
    @cython.locals(sharing=cython.longlong)
    cdef bint _has_enough(self, Cursor cursor)
    @cython.locals(left_bytes=cython.longlong, share_bytes=cython.longlong, sharing=cython.longlong)
    cdef long long _room_bytes(self, Cursor cursor)
    cdef _let_have_more(self, Cursor cursor)
