"""The fields of wires and of pending requests as members of C structures, for compiled modules."""

cimport cython

from aiokafka_lite.client.frames cimport FrameReader


cdef class Asked:
    cdef public object _wire
    cdef public object connection
    cdef public double deadline
    cdef public object decode
    cdef public object error
    cdef public object frame
    cdef public object on_done
    cdef public object request_class
    cdef public double timeout_s
    cdef public int version
    cdef public object waiter

    cpdef answered(self)
    cpdef wake(self)
    cpdef begin_time(self, double now)


cdef class Wire:
    cdef public object _choices
    cdef public object _client_id
    cdef public object _clock
    cdef public long long _max_frame_bytes
    cdef public tuple _moved
    cdef public long long _opened_id
    cdef public double _session_began_at
    cdef public object api_versions
    cdef public object error
    cdef public dict in_flight
    cdef public long long last_correlation_id
    cdef public double last_used
    cdef public double muted_until
    cdef public object node_id
    cdef public object peer
    cdef public FrameReader reader
    cdef public double received_at
    cdef public double session_lifetime_s
    cdef public object state

    cpdef next_id(self)
    cpdef put_in_flight(self, correlation_id, Asked pending, double now)

    @cython.locals(pending=Asked)
    cpdef receive(self, Py_ssize_t count)
