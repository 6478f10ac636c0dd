"""The fields of record cursors as members of a C structure, for compiled modules."""

cimport cython

cimport aiokafka_lite.consumer.delivery._coarse as time


@cython.final
cdef class RecordCursor:
    cdef public object _clock
    cdef public double _ends_at
    cdef public double _looked_at_s
    cdef public Py_ssize_t _next_look_at
    cdef public list _records
    cdef public double _slice_s
    cdef public double _stall_s
    cdef public Py_ssize_t _stride
    cdef readonly double looked_at
    cdef public object steady
    cdef readonly Py_ssize_t taken_count

    cpdef bint has_rest(self) except -1
    cpdef open(self, list records, double ends_at)
    cpdef go_on(self, double ends_at)
    cpdef close(self)
    @cython.locals(taken_count=Py_ssize_t)
    cpdef take(self)
    @cython.locals(now=double, took_s=double)
    cdef bint _look(self) except -1
