"""The fields of frame readers as members of a C structure, for compiled modules."""

cimport cython

cdef list _spare_heads


cdef class FrameBuffers:
    cdef public int _small_frames
    cdef public list large


cdef class FrameReader:
    cdef public FrameBuffers _buffers
    cdef public Py_ssize_t _end
    cdef public bytearray _head_bytes
    cdef public object _large
    cdef public object _limit_bytes
    cdef public object _missing
    cdef public Py_ssize_t _start
    cdef public object head
    cdef public object peer
    cdef public object rest
    cdef public Py_ssize_t wanted_bytes

    cpdef missing(self)
    @cython.locals(
        head=bytearray,
        first=longlong,
        start=Py_ssize_t,
        end=Py_ssize_t,
        there=Py_ssize_t,
        size=longlong,
        stop=Py_ssize_t,
    )
    cpdef next_frame(self, Py_ssize_t count=*)
    cdef _give_head_back(self)
