# cython: language_level=3, boundscheck=False, wraparound=False
"""Decodes small responses to Fetch that are plain, and encodes the requests that follow them.

- There are no errors, throttling, leader hints and aborted transactions. The partitions are in the
  session, have no buffered records, and are not read from a follower.
- The batches are plain (`records.decoders.PlainBatches`), to their end.

Records are decoded at once, so the response's memory is not kept.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from aiokafka_lite.consumer.assignment.cursor cimport Cursor, Loan
from aiokafka_lite.records._cursor cimport byte, compact_length, int16, int32, int64

from aiokafka_lite.records import checksum

cdef enum:
    MOST_BYTES = 16 * 1024
    MOST_PARTITIONS = 16
    UUID_BYTES = 16
    FETCH = 1
    FIRST_WITHOUT_REPLICA = 15
    # Sizes in a request: all around the topics, a topic without its partitions, a partition.
    REQUEST_BYTES = 40
    TOPIC_BYTES = 18
    PARTITION_BYTES = 33


cdef inline bint no_tags(Bytes *left) noexcept nogil:
    cdef uint8_t count
    return byte(left, &count) and count == 0


cdef inline uint8_t *put16(uint8_t *at, int32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 8)
    at[1] = <uint8_t> value
    return at + 2


cdef inline uint8_t *put32(uint8_t *at, int32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 24)
    at[1] = <uint8_t> (value >> 16)
    at[2] = <uint8_t> (value >> 8)
    at[3] = <uint8_t> value
    return at + 4


cdef inline uint8_t *put64(uint8_t *at, int64_t value) noexcept nogil:
    return put32(put32(at, <int32_t> (value >> 32)), <int32_t> value)


@cython.final
@cython.auto_pickle(False)
cdef class SmallPart:
    """A partition of a response."""


@cython.final
@cython.auto_pickle(False)
cdef class SmallCodec:
    """Decodes the responses and encodes the requests of one fetch session."""

    def __init__(self, FetchSession session not None, config):
        self.session = session
        self.check_crcs = config.check_crcs
        self.is_read_committed = config.is_read_committed
        self.client_id = config.client_id.encode()
        self.max_wait_ms = config.fetch_max_wait_ms
        self.min_bytes = config.fetch_min_bytes
        self.isolation_level = config.isolation_level_code

    cpdef list decode(self, frame):
        """Decode a response; None if it is not plain. Changes no state."""
        if len(frame) > MOST_BYTES:
            return None
        cdef list parts = []
        cdef SmallPart part
        cdef Py_buffer view
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            if not self.read_answer(<const uint8_t *> view.buf, view.len, parts):
                return None
            for part in parts:
                if part.size_bytes > 0 and not self.read_records(part):
                    return None
        finally:
            PyBuffer_Release(&view)
        return parts

    cdef bint read_answer(self, const uint8_t *start, Py_ssize_t size, list parts) except -1:
        """Parse a whole response."""
        cdef Bytes left
        cdef int32_t throttle_ms
        cdef int16_t error_code
        cdef int32_t number
        cdef Py_ssize_t topic_count
        cdef Py_ssize_t partition_count
        left.pos = start
        left.end = start + size
        if not (
            int32(&left, &number)  # the correlation id
            and no_tags(&left)
            and int32(&left, &throttle_ms)
            and throttle_ms == 0
            and int16(&left, &error_code)
            and error_code == 0
            and int32(&left, &number)
            and number != 0
            and number == self.session.id
            and compact_length(&left, &topic_count)
        ):
            return False
        while topic_count > 0:
            topic_count -= 1
            if left.end - left.pos < UUID_BYTES:
                return False
            topic_id = PyBytes_FromStringAndSize(<const char *> left.pos, UUID_BYTES)
            left.pos += UUID_BYTES
            if not compact_length(&left, &partition_count):
                return False
            while partition_count > 0:
                partition_count -= 1
                if not self.read_partition(&left, topic_id, parts):
                    return False
            if not no_tags(&left):
                return False
        return no_tags(&left) and left.pos == left.end

    cdef bint read_partition(self, Bytes *left, bytes topic_id, list parts) except -1:
        cdef int32_t index
        cdef int16_t error_code
        cdef int32_t replica
        cdef Py_ssize_t aborted_count
        cdef SmallPart part = SmallPart.__new__(SmallPart)
        if len(parts) == MOST_PARTITIONS or not (
            int32(left, &index)
            and int16(left, &error_code)
            and error_code == 0
            and int64(left, &part.high_watermark)
            and int64(left, &part.last_stable_offset)
            and int64(left, &part.log_start_offset)
            and compact_length(left, &aborted_count)
            and aborted_count <= 0
            and int32(left, &replica)
            and replica == -1
            and compact_length(left, &part.size_bytes)
            and part.size_bytes <= left.end - left.pos
        ):
            return False
        part.start = left.pos
        if part.size_bytes > 0:
            left.pos += part.size_bytes
        if not no_tags(left):
            return False
        cdef Loan loan = self.session.loan("", topic_id, index)
        if loan is None:
            return False
        cdef Cursor cursor = loan.cursor
        if (
            cursor.loan is not loan
            or cursor.chunks
            or cursor.retry_at
            or cursor.corrupt_at >= 0
            or cursor.preferred_replica is not None
        ):
            return False
        cdef SmallPart other
        for other in parts:
            if other.loan is loan:
                return False
        part.loan = loan
        parts.append(part)
        return True

    cdef bint read_records(self, SmallPart part) except -1:
        """Decode all records of a partition."""
        cdef PlainBatches batches = self.batches
        if batches is None:  # not before, because it loads the checksum library
            crc32c = checksum.loaded() if self.check_crcs else None
            batches = self.batches = PlainBatches("", 0, b"", crc32c, self.is_read_committed)
        tp = <tuple> part.loan.cursor.tp
        part.records = []
        try:
            if not batches.open_at(tp[0], tp[1], part.start, part.size_bytes, part.loan.offset):
                return False
            if not batches.take_records(part.records, MOST_BYTES):
                return False
        except Exception:
            return False  # the long way raises it again
        if batches.pos != part.size_bytes or not part.records or batches.epoch_count > 1:
            return False
        part.next_offset = batches.next_offset
        part.leader_epoch = batches.leader_epoch
        return True

    cpdef bytes encode(self, int32_t version, int32_t correlation_id, long long max_bytes):
        """Encode a request with the partitions whose offsets have changed."""
        cdef Py_ssize_t name_size = len(self.client_id)
        cdef Py_ssize_t size = REQUEST_BYTES + name_size + len(self.session.changed) * PARTITION_BYTES
        cdef dict topics = {}
        cdef Loan loan
        for loan in self.session.changed.values():
            topics.setdefault(loan.topic_id, []).append(loan)
        size += len(topics) * TOPIC_BYTES
        if version < FIRST_WITHOUT_REPLICA:
            size += 4
        cdef bytes encoded = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t *at = <uint8_t *> PyBytes_AS_STRING(encoded)
        at = put32(at, <int32_t> size - 4)
        at = put16(at, FETCH)
        at = put16(at, version)
        at = put32(at, correlation_id)
        at = put16(at, <int32_t> name_size)
        memcpy(at, PyBytes_AS_STRING(self.client_id), name_size)
        at += name_size
        at[0] = 0
        at += 1
        if version < FIRST_WITHOUT_REPLICA:
            at = put32(at, -1)
        at = put32(at, self.max_wait_ms)
        at = put32(at, self.min_bytes)
        at = put32(at, max(1, <int32_t> max_bytes))
        at[0] = <uint8_t> self.isolation_level
        at = put32(at + 1, <int32_t> self.session.id)
        at = put32(at, <int32_t> self.session.epoch)
        at[0] = <uint8_t> (len(topics) + 1)
        at += 1
        for topic_id, loans in topics.items():
            memcpy(at, PyBytes_AS_STRING(topic_id), UUID_BYTES)
            at += UUID_BYTES
            at[0] = <uint8_t> (len(<list> loans) + 1)
            at += 1
            for loan in <list> loans:
                tp = loan.cursor.tp
                at = put32(at, <int32_t> (<tuple> tp)[1])
                at = put32(at, <int32_t> loan.leader_epoch)
                at = put64(at, loan.offset)
                at = put32(at, -1)  # the last fetched epoch
                at = put64(at, -1)  # the log's start, for followers
                at = put32(at, <int32_t> loan.max_bytes)
                at[0] = 0
                at += 1
            at[0] = 0
            at += 1
        at[0] = 1  # no forgotten topics
        at[1] = 1  # no rack
        at[2] = 0
        return encoded
