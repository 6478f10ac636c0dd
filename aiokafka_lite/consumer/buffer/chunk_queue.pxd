"""The fields of chunk queues as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.assignment.reads cimport Reads
from aiokafka_lite.consumer.buffer.budget cimport ByteBudget
from aiokafka_lite.consumer.buffer.chunk cimport Chunk, FetchedResponse
from aiokafka_lite.consumer.gate cimport Gate


@cython.final
cdef class ChunkQueue:
    cdef public ByteBudget _budget
    cdef public Gate _gate
    cdef public object _loop
    cdef public Reads _reads
    cdef public Chunk lent
    cdef public dict order
    cdef public dict untaken

    cpdef add(self, Chunk chunk)
    @cython.locals(partition=Cursor)
    cpdef append(self, Chunk chunk)
    cpdef remove_first(self, Cursor partition)
    cpdef end_turn(self, Cursor partition)
    @cython.locals(partition=Cursor, found=list, is_tight=bint, chunk=Chunk)
    cpdef list in_order(self, wanted, most)
    @cython.locals(partition=Cursor, chunk=Chunk)
    cpdef bint has_decoded(self, wanted) except -1
    @cython.locals(chunk=Chunk)
    cpdef move_positions(self, list taken)
    cpdef lend(self, Chunk chunk)
    cpdef give_back(self, Chunk chunk, count)
    @cython.locals(partition=Cursor, response=FetchedResponse)
    cpdef finish(self, Chunk chunk)
    cpdef mark_all_taken(self)
    cpdef mark_taken(self, FetchedResponse response)
    cpdef release_source(self, FetchedResponse response)
    cdef bint _take(self, FetchedResponse response) except -1
