"""The fields of gates as members of a C structure, for compiled modules."""


cdef class Gate:
    cdef public object _death
    cdef public object _listener_error
    cdef public object _look
    cdef public double _look_at
    cdef public object _note_raised
    cdef public list _observers
    cdef public list _posted
    cdef public object _refuse
    cdef public object _untold
    cdef public frozenset holds
    cdef public bint is_troubled

    cpdef look_if_due(self, double now)
