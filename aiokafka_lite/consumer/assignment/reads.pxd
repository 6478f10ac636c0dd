"""The fields of reads as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor


@cython.final
cdef class Reads:
    cdef public list _acted
    cdef public object close_reader
    cdef public long long _hand_out_count
    cdef public double _idle_since
    cdef public Cursor _latest_hand_out
    cdef public object _observers
    cdef public object _raised
    cdef public bint _reader_iterates
    cdef public long long _seen_hand_out_count
    cdef public object _settle
    cdef public long long in_progress
    cdef public dict latest
    cdef public object processing
    cdef public object reader
    cdef public object readers
    cdef public long long record_count

    @cython.locals(cursor=Cursor)
    cpdef begin_get(self)
    cpdef resume_get(self)
    cpdef leave_get(self, double now)
    cpdef hand_out(self, Cursor partition, first_offset, next_position, epochs)
    cpdef settle_progress(self, Cursor cursor)


cdef _note_transaction(finished)
