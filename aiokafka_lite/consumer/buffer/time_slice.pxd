"""The fields of time slices as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.gate cimport Gate


@cython.final
cdef class TimeSlice:
    cdef public object _clock
    cdef public Gate _gate
    cdef public object ends_at
    cdef public double length_s

    cpdef begin(self)
    cpdef renew(self)
