"""The fields of fetch sessions as members of a C structure, for compiled modules."""

cimport cython

from aiokafka_lite.consumer.assignment.cursor cimport Loan


@cython.final
cdef class FetchSession:
    cdef public dict _forgotten
    cdef public dict _loans
    cdef public dict _topic_names
    cdef public long long _unnamed_count
    cdef public dict changed
    cdef public long long epoch
    cdef public long long id

    cpdef bint is_settled(self) except -1
    cpdef Loan loan(self, topic, topic_id, partition_index)
    cpdef renew(self, Loan loan)
    cpdef sent(self)
    cpdef succeeded(self, long long session_id)
