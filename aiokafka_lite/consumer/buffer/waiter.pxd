"""The fields of waiters as members of a C structure, for compiled modules."""

cimport cython


@cython.final
cdef class RecordWaiter:
    cdef public bint _asyncio_future_blocking
    cdef public object _resume
    cdef public object _context
    cdef public bint _is_cancelled
    cdef public object _loop
    cdef public object _message
    cdef readonly bint is_done

    cdef _schedule(self)
    cpdef wake(self)


@cython.final
cdef class Waiters:
    cdef public dict _wanted
    cdef public frozenset sought

    cpdef add(self, waiter, wanted)
    cpdef remove(self, waiter)
    cpdef bint want_all(self) except -1
    @cython.locals(steady=RecordWaiter)
    cpdef RecordWaiter wake_others(self)
