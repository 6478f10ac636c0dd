"""The fields of channels as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.client.frames cimport FrameReader
from aiokafka_lite.client.wire cimport Asked, Wire


cdef class Channel:
    cdef public bint _is_draining
    cdef public object _low_water
    cdef public FrameReader _reader
    cdef public double _timer_at
    cdef public object _transport
    cdef public Py_ssize_t _wanted_bytes
    cdef public Wire wire

    cpdef write(self, bytes encoded, double deadline)

    cpdef get_buffer(self, sizehint)

    @cython.locals(wire=Wire, reader=FrameReader, exchange=Asked)
    cpdef buffer_updated(self, Py_ssize_t nbytes)
    cpdef _want(self, Py_ssize_t count)
