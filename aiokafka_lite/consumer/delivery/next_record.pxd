"""The fields of awaitables of records as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.buffer.waiter cimport RecordWaiter
from aiokafka_lite.consumer.delivery.record_cursor cimport RecordCursor
from aiokafka_lite.consumer.delivery.steady cimport SteadyGets

cdef int FRESH
cdef int RUNNING
cdef int SUSPENDED
cdef int WAITING
cdef int DONE

cdef class NextRecord


# Not public: consumers are iterators.
cdef class Iteration:
    cdef RecordCursor cursor
    cdef NextRecord spare

    cdef begin_read(self)
    cdef void let_go(self, NextRecord awaitable) noexcept


@cython.final
cdef class NextRecord:
    cdef object _coroutine
    cdef Iteration _iteration
    cdef int _stage
    cdef SteadyGets _steady
    cdef RecordWaiter _waiter

    cdef void renew(self, Iteration iteration) noexcept
    cdef begin(self, value)
    @cython.locals(steady=SteadyGets)
    cdef _begin_steady(self)
    @cython.locals(steady=SteadyGets, waiter=RecordWaiter)
    cdef _woken(self)
    cdef _go_on(self, SteadyGets steady)
    @cython.locals(steady=SteadyGets, waiter=RecordWaiter)
    cdef _stop_waiting(self)
    cdef enter(self)
    cdef void suspend(self) noexcept
    cdef void finish(self) noexcept
