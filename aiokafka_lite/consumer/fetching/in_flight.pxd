"""The fields of requests in flight as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.buffer.budget cimport Reservation


@cython.final
cdef class InFlight:
    cdef public long long epoch
    cdef public object error
    cdef public object exchange
    cdef public bint is_awaited
    cdef public object is_long_poll
    cdef public bint is_throttled
    cdef public double lease_ends_at
    cdef public double poll_ends_at
    cdef public Reservation reservation
    cdef public object sent_at

    cpdef begin(self, long long epoch, double now, double max_wait_s)
