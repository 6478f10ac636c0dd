"""The fields of works as members of a C structure, for modules that are compiled."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.assignment.progress cimport Progress
from aiokafka_lite.consumer.assignment.reads cimport Reads


@cython.final
cdef class Works:
    cdef public object _assignment
    cdef public object _cursors
    cdef public object _observers
    cdef public object _progressed
    cdef public Reads _reads
    cdef public object _run_failure
    cdef public list begun
    cdef public dict totals

    @cython.locals(holders=list, progress=Progress)
    cpdef list hand_out_each(self, Cursor cursor, records, epochs, holder_of)
    @cython.locals(progress=Progress)
    cpdef finish(self, Cursor cursor, offset, holder)
