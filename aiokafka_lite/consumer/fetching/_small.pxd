# What was read of a small response, for the module that settles it.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from aiokafka_lite.consumer.assignment.cursor cimport Loan
from aiokafka_lite.consumer.fetching.session cimport FetchSession
from aiokafka_lite.records._cursor cimport Bytes
from aiokafka_lite.records._decode cimport PlainBatches


@cython.final
cdef class SmallPart:
    cdef readonly Loan loan
    cdef readonly int64_t high_watermark
    cdef readonly int64_t last_stable_offset
    cdef readonly int64_t log_start_offset
    cdef readonly int64_t next_offset
    cdef readonly int32_t leader_epoch
    cdef readonly Py_ssize_t size_bytes
    cdef readonly list records
    cdef const uint8_t *start


@cython.final
cdef class SmallCodec:
    cdef FetchSession session
    cdef bint check_crcs
    cdef bint is_read_committed
    cdef PlainBatches batches
    cdef bytes client_id
    cdef int32_t max_wait_ms
    cdef int32_t min_bytes
    cdef int32_t isolation_level

    cpdef list decode(self, frame)
    cpdef bytes encode(self, int32_t version, int32_t correlation_id, long long max_bytes)
    cdef bint read_answer(self, const uint8_t *start, Py_ssize_t size, list parts) except -1
    cdef bint read_partition(self, Bytes *left, bytes topic_id, list parts) except -1
    cdef bint read_records(self, SmallPart part) except -1
