"""The fields of counts as members of a C structure, for compiled modules."""

cimport cython


@cython.final
cdef class NodeCounts:
    cdef public long long failure_count
    cdef public long long fetch_count
    cdef public object last_answer_at
    cdef public double latency_max_s
    cdef public double latency_sum_s
    cdef public long long received_bytes
    cdef public long long record_answer_count

    cpdef answered(self, double now, double latency_s)
    cpdef records_came(self, long long size_bytes)
