# The layout of what goes through batches, for those who go through memory of their own.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from aiokafka_lite._record cimport ConsumerRecord
from aiokafka_lite.records._columns cimport Columns
from aiokafka_lite.records._cursor cimport Bytes, Parsed


@cython.final
cdef class BatchCursor:
    cdef object topic
    cdef object partition
    cdef bint has_append_time
    cdef int64_t append_time
    cdef Py_buffer buffer
    cdef bint has_buffer
    cdef Bytes left
    cdef Py_ssize_t records_left
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef int64_t previous_delta
    cdef int64_t last_delta
    cdef int64_t floor
    cdef int64_t ceiling

    cdef bint take_records(self, list into, Py_ssize_t limit) except -1
    cdef bint add_rows(self, Columns columns, Py_ssize_t limit) except -1
    cdef int parse_next(self, Parsed *parsed) except -1
    cdef void pass_record(self, const Parsed *parsed) noexcept
    cdef void pass_rest(self) noexcept
    cdef bint is_finished(self) except -1
    cdef ConsumerRecord record(self, const Parsed *parsed)


@cython.final
cdef class PlainBatches:
    cdef readonly Py_ssize_t pos
    cdef readonly int64_t next_offset
    cdef int32_t leader_epoch  # of the last batch opened or passed
    cdef Py_ssize_t epoch_count  # how often it has changed
    cdef list epochs  # where it has changed; None: nobody asks
    cdef object crc32c
    cdef object inflate
    cdef object give_back
    cdef object inflated  # the batch at hand, if it was compressed
    cdef Py_buffer inflated_buffer
    cdef Py_buffer buffer
    cdef bint has_buffer
    cdef int not_plain
    cdef BatchCursor batch
    cdef int64_t batch_end

    cdef bint take_records(self, list into, Py_ssize_t limit) except -1
    cdef bint open_at(
        self, object topic, object partition, const uint8_t *start, Py_ssize_t size, int64_t floor
    ) except -1
    cdef bint open_next(self) except -1
    cdef int note_epoch(self, int64_t base_offset, int32_t leader_epoch) except -1
    cdef bint open_inflated(self, const uint8_t *batch, Py_ssize_t size) except -1
    cdef int drop_inflated(self) except -1
    cdef bint is_sound(self, const uint8_t *batch, Py_ssize_t size) except -1
