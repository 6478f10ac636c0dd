"""The fields of back-offs as members of a C structure, for compiled modules."""


cdef class Backoff:
    cdef public double _first_s
    cdef public double _last_s
    cdef public object _rng
    cdef public int failures
