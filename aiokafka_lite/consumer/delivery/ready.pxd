"""The fields of ready records as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.assignment.reads cimport Reads
from aiokafka_lite.consumer.buffer.chunk cimport Chunk
from aiokafka_lite.consumer.buffer.chunk_queue cimport ChunkQueue
from aiokafka_lite.consumer.buffer.time_slice cimport TimeSlice
from aiokafka_lite.consumer.delivery.record_cursor cimport RecordCursor


cdef class ReadyRecords:
    cdef public object _buffer
    cdef public Chunk _chunk
    cdef public Reads _reads
    cdef public Py_ssize_t _settled_count
    cdef public ChunkQueue _queue
    cdef public TimeSlice _slice
    cdef public RecordCursor cursor
    cdef public bint is_full

    cpdef take(self, Chunk chunk, limit)
    cpdef clear(self)
    @cython.locals(chunk=Chunk, taken_count=Py_ssize_t, decoded=list)
    cpdef settle(self)
    @cython.locals(chunk=Chunk)
    cpdef close(self)
