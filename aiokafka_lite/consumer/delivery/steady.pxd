"""The fields of steady reads as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.assignment.reads cimport Reads
from aiokafka_lite.consumer.buffer.budget cimport ByteBudget
from aiokafka_lite.consumer.buffer.chunk cimport Chunk
from aiokafka_lite.consumer.buffer.chunk_queue cimport ChunkQueue
from aiokafka_lite.consumer.buffer.time_slice cimport TimeSlice
from aiokafka_lite.consumer.buffer.waiter cimport RecordWaiter, Waiters
from aiokafka_lite.consumer.delivery.ready cimport ReadyRecords
from aiokafka_lite.consumer.delivery.record_cursor cimport RecordCursor
from aiokafka_lite.consumer.gate cimport Gate


@cython.final
cdef class SteadyGets:
    cdef public object _buffer
    cdef public ByteBudget _budget
    cdef public set _callbacks
    cdef public object _clock
    cdef public RecordCursor _cursor
    cdef public Gate _gate
    cdef public ChunkQueue _queue
    cdef public ReadyRecords _ready
    cdef public TimeSlice _slice
    cdef public Waiters _waiters
    cdef public object loop
    cdef public Reads reads

    cdef bint _can_go_on(self) except -1
    @cython.locals(reads=Reads)
    cpdef bint begin(self) except -1
    cpdef go_on(self)
    cdef bint _open_first(self) except -1
    @cython.locals(chunk=Chunk)
    cdef bint _open(self, Cursor cursor) except -1
    cdef bint _deserialise(self) except -1
    @cython.locals(waiter=RecordWaiter)
    cdef RecordWaiter _wait(self)
    cpdef woken(self, RecordWaiter waiter)
    cpdef give_up(self, RecordWaiter waiter)
