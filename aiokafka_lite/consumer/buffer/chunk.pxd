"""The fields of chunks as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor


@cython.final
cdef class FetchedResponse:
    cdef public object source
    cdef public bint is_taken
    cdef public object _reservation
    cdef public int _open_chunk_count

    cpdef close_chunk(self)


@cython.final
cdef class Chunk:
    cdef public long long _inflated_bytes
    cdef public long long _inflated_total_bytes
    cdef public object _records
    cdef public list decoded
    cdef public object delivery
    cdef public object end_offset
    cdef public object epochs
    cdef public object error
    cdef public long long held_bytes
    cdef public object inflating
    cdef public bint is_sticky
    cdef public Cursor partition
    cdef public list raw
    cdef public FetchedResponse response
    cdef public object state
    cdef public object work

    cdef _move(self, new)
    cpdef position_after(self)
    cpdef list pop(self, limit)
    cpdef close(self)


cpdef Chunk chunk_of(Cursor partition, object delivery, list records, object end_offset, tuple epochs, bint is_raw)
