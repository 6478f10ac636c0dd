# The future of a steady read, for the modules that create and wake it.

cimport cython


@cython.final
cdef class Waiter:
    cdef public bint _asyncio_future_blocking
    cdef object loop
    cdef object callback
    cdef object context
    cdef readonly bint is_done
    cdef bint is_cancelled
    cdef object message

    cdef int schedule(self) except -1
    cdef int wake(self) except -1
