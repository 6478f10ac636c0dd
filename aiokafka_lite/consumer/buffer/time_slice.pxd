"""The fields of time slices as members of a C structure, for modules that are compiled."""

cimport cython


@cython.final
cdef class TimeSlice:
    cdef public object _clock
    cdef public object ends_at
    cdef public double length_s

    cpdef begin(self)
    cpdef renew(self)
