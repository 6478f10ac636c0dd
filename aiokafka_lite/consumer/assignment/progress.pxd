"""The fields of progress as members of a C structure, for modules that are compiled."""

cimport cython


@cython.final
cdef class Progress:
    cdef public object _ahead
    cdef public object _handed_out
    cdef public object _sought_over
    cdef public dict _unfinished
    cdef public int _verified_epoch
    cdef public int ahead_epoch
    cdef public long long held_bytes

    cpdef bint is_held_by(self, offset, holder)
    cpdef hand_out(self, offsets, holders)
    @cython.locals(unfinished=dict)
    cpdef finish(self, offset, holder)
