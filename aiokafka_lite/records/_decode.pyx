# cython: language_level=3, boundscheck=False, wraparound=False
"""Records from the bytes of a batch, compiled. What it must do is told in `_decode_py`.

All reading goes through the checked cursor of `_cursor.pxd`. A record is parsed to its end before
an object is made of it; keys and values are copied, so nothing points into the buffer once `take`
has returned.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t

from aiokafka_lite._record cimport ConsumerRecord, untracked_record
from aiokafka_lite.records._columns cimport Columns, add
from aiokafka_lite.records._cursor cimport (
    Bytes,
    Parsed,
    Slice,
    byte,
    read_int32,
    read_int64,
    varint,
    varint_slice,
    varlong,
)

from aiokafka_lite.errors import CorruptRecordException, KafkaError

# Its length, attributes, timestamp delta, offset delta, two lengths of -1 and a count of headers.
cdef enum:
    MIN_RECORD_BYTES = 7
    MIN_HEADER_BYTES = 2
    MAX_HEADERS = 1 << 18  # see `_decode_py`
    HEADERS_A_RECORD = 64
    LOG_OVERHEAD = 12
    CODEC_MASK = 0x07

cdef int64_t MAX_OFFSET = INT64_MAX - 1  # so that the offset after it is one, too


cdef inline object as_bytes(Slice content):
    if content.start is NULL:
        return None
    return PyBytes_FromStringAndSize(<const char *> content.start, content.size)


cdef object corrupt(str why):
    return CorruptRecordException(why)


# --- magic 2 -------------------------------------------------------------------------------------

@cython.no_gc
cdef class BatchCursor:
    def __init__(
        self,
        topic not None,
        partition not None,
        records,
        *,
        Py_ssize_t count,
        int64_t base_offset,
        int64_t last_offset_delta,
        int64_t base_timestamp,
        append_time,
        int64_t floor,
        int64_t ceiling=INT64_MAX,
    ):
        if self.has_buffer:
            raise TypeError("a cursor can read its records only once")
        PyObject_GetBuffer(records, &self.buffer, PyBUF_SIMPLE)
        self.has_buffer = True
        self.left.pos = <const uint8_t *> self.buffer.buf
        self.left.end = self.left.pos + self.buffer.len
        if count < 0 or count > self.buffer.len // MIN_RECORD_BYTES:
            raise corrupt(
                f"a batch has the invalid record count {count}, with only {self.buffer.len} bytes "
                "of records"
            )
        self.topic = topic
        self.partition = partition
        self.records_left = count
        self.base_offset = base_offset
        self.previous_delta = -1
        self.last_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.has_append_time = append_time is not None
        if self.has_append_time:
            self.append_time = append_time
        self.floor = floor
        self.ceiling = ceiling

    def __dealloc__(self):
        if self.has_buffer:
            PyBuffer_Release(&self.buffer)

    def go_on(self, records, Py_ssize_t count):
        cdef Py_buffer buffer
        PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
        PyBuffer_Release(&self.buffer)
        self.buffer = buffer
        self.left.pos = <const uint8_t *> buffer.buf
        self.left.end = self.left.pos + buffer.len
        self.records_left = count

    def pass_early(self):
        cdef Parsed parsed
        while self.records_left:
            self.parse_next(&parsed)
            if parsed.offset >= self.floor:
                return False
            self.pass_record(&parsed)
        return self.is_finished()

    def take(self, list into not None, Py_ssize_t limit):
        return self.take_records(into, limit)

    def take_columns(self, Columns columns not None, Py_ssize_t limit):
        return self.add_rows(columns, limit)

    cdef bint take_records(self, list into, Py_ssize_t limit) except -1:
        cdef Parsed parsed
        while self.records_left and limit > 0:
            self.parse_next(&parsed)
            if parsed.offset >= self.ceiling:
                self.pass_rest()
                break
            self.pass_record(&parsed)
            if parsed.offset >= self.floor:
                into.append(self.record(&parsed))
                limit -= 1 + parsed.header_count // HEADERS_A_RECORD
        return self.is_finished()

    cdef bint add_rows(self, Columns columns, Py_ssize_t limit) except -1:
        cdef Parsed parsed
        cdef Py_ssize_t first_row = columns.rows
        columns.reserve(max(0, min(limit, self.records_left)))
        try:
            while self.records_left and limit > 0 and not columns.is_full:
                self.parse_next(&parsed)
                if parsed.offset >= self.ceiling:
                    self.pass_rest()
                    break
                if parsed.offset >= self.floor:
                    if not add(columns, &parsed):
                        break
                    limit -= 1 + parsed.header_count // HEADERS_A_RECORD
                self.pass_record(&parsed)
        finally:
            columns.end_row_group(
                self.topic, self.partition, 1 if self.has_append_time else 0, first_row
            )
        return self.is_finished()

    cdef int parse_next(self, Parsed *parsed) except -1:
        """Read and check the next record; the cursor stays ahead of it."""
        cdef Bytes record = self.left
        cdef int32_t size
        cdef int64_t timestamp_delta
        cdef int32_t offset_delta
        cdef uint8_t attributes  # none are defined
        if not varint(&record, &size) or size < 1 or size > record.end - record.pos:
            raise corrupt("a record is longer than its batch")
        record.end = record.pos + size
        if not (
            byte(&record, &attributes)
            and varlong(&record, &timestamp_delta)
            and varint(&record, &offset_delta)
            and varint_slice(&record, &parsed.key)
            and varint_slice(&record, &parsed.value)
        ):
            raise corrupt("a record is incomplete, or has an invalid length field")
        check_headers(&record, parsed)
        if record.pos != record.end:
            raise corrupt("a record is longer than its fields")
        if self.records_left == 1 and record.end != self.left.end:
            raise corrupt("a batch has bytes after its last record")
        if not self.previous_delta < offset_delta <= self.last_delta:
            raise corrupt(
                f"a record has the invalid offset delta {offset_delta}: the value must be "
                f"above {self.previous_delta} and at most {self.last_delta}"
            )
        if is_overflow(self.base_timestamp, timestamp_delta):
            raise corrupt("a record has an invalid timestamp")
        parsed.offset = self.base_offset + offset_delta
        parsed.timestamp = self.base_timestamp + timestamp_delta
        if self.has_append_time:
            parsed.timestamp = self.append_time
        parsed.has_timestamp = True
        parsed.end = record.end
        return 0

    cdef void pass_record(self, const Parsed *parsed) noexcept:
        """Move behind the record that `parse_next` has read."""
        self.left.pos = parsed.end
        self.previous_delta = parsed.offset - self.base_offset
        self.records_left -= 1

    cdef void pass_rest(self) noexcept:
        """Stop here: what is left lies at the ceiling or beyond."""
        self.records_left = 0
        self.left.pos = self.left.end

    cdef bint is_finished(self) except -1:
        """Whether no records are left, after which there may be no bytes either."""
        if self.records_left:
            return False
        if self.left.pos != self.left.end:
            raise corrupt("a batch has bytes after its last record")
        return True

    cdef ConsumerRecord record(self, const Parsed *parsed):
        return untracked_record(
            self.topic,
            self.partition,
            parsed.offset,
            parsed.timestamp,
            1 if self.has_append_time else 0,
            as_bytes(parsed.key),
            as_bytes(parsed.value),
            parsed.key.size,
            parsed.value.size,
            () if parsed.header_count == 0 else as_headers(parsed.headers, parsed.header_count),
        )


cdef inline int check_headers(Bytes *record, Parsed *out) except -1:
    """Go over a record's headers to its end."""
    if not varint(record, &out.header_count):
        raise corrupt("a record is incomplete")
    out.headers = record[0]
    if out.header_count != 0:
        record.pos = end_of_headers(record[0], out.header_count)
    return 0


cdef const uint8_t *end_of_headers(Bytes record, int32_t count) except NULL:
    cdef Slice name
    cdef Slice value
    if count < 0 or count > min((record.end - record.pos) // MIN_HEADER_BYTES, MAX_HEADERS):
        raise corrupt(f"a record has the invalid header count {count}")
    for _ in range(count):
        if not varint_slice(&record, &name) or not varint_slice(&record, &value):
            raise corrupt("a header is longer than its record")
        if name.start is NULL:
            raise corrupt("a record has a header without a key")
    return record.pos


cdef tuple as_headers(Bytes headers, int32_t count):
    """Make a tuple of headers that were checked."""
    cdef Slice name
    cdef Slice value
    cdef list made = []
    for _ in range(count):
        if not varint_slice(&headers, &name) or not varint_slice(&headers, &value):
            raise corrupt("a header is longer than its record")
        # As Java's client does: a name that is not UTF-8 must not hold up the partition.
        text = PyUnicode_DecodeUTF8(<char *> name.start, name.size, "replace")
        made.append((text, as_bytes(value)))
    return tuple(made)


cdef inline bint is_overflow(int64_t base, int64_t delta) noexcept nogil:
    if delta >= 0:
        return base > INT64_MAX - delta
    return base < INT64_MIN - delta


def whole_records(view, Py_ssize_t limit):
    cdef Py_buffer buffer
    cdef Bytes left
    cdef Bytes record
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t next_bytes = 0
    cdef int32_t size
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    left.pos = <const uint8_t *> buffer.buf
    left.end = left.pos + buffer.len
    while count < limit:
        record = left
        if not varint(&record, &size) or size < 1:
            break
        if size > record.end - record.pos:
            next_bytes = record.pos - left.pos + size
            break
        left.pos = record.pos + size
        count += 1
    size_bytes = left.pos - <const uint8_t *> buffer.buf
    PyBuffer_Release(&buffer)
    return count, size_bytes, next_bytes


# --- plain batches, one after the other ----------------------------------------------------------

# Where the fields of a header of magic 2 are; `records.batch` tells what they are.
cdef enum:
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    COUNT_AT = 57
    HEADER_BYTES = 61
    APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20


@cython.no_gc
cdef class PlainBatches:
    def __init__(
        self,
        topic not None,
        partition not None,
        view,
        crc32c,
        bint is_committed_only,
        int64_t ceiling=INT64_MAX,
        inflate=None,
        give_back=None,
        list epochs=None,
    ):
        if self.has_buffer:
            raise TypeError("this reader can read only one record set")
        PyObject_GetBuffer(view, &self.buffer, PyBUF_SIMPLE)
        self.has_buffer = True
        self.crc32c = crc32c
        self.leader_epoch = -1
        self.epochs = epochs
        self.inflate = inflate
        self.give_back = give_back
        self.not_plain = CONTROL if inflate is not None else CODEC_MASK | CONTROL
        if is_committed_only:
            self.not_plain |= TRANSACTIONAL
        self.batch = BatchCursor.__new__(BatchCursor)
        self.batch.topic = topic
        self.batch.partition = partition
        self.batch.ceiling = ceiling

    def __dealloc__(self):
        if self.inflated is not None:
            PyBuffer_Release(&self.inflated_buffer)
        if self.has_buffer:
            PyBuffer_Release(&self.buffer)

    def open(self, Py_ssize_t pos, int64_t floor):
        if not 0 <= pos <= self.buffer.len:
            raise IndexError(pos)
        self.pos = pos
        self.next_offset = floor
        if self.epochs:  # other batches were passed since
            self.leader_epoch = <int32_t> (<tuple> self.epochs[len(self.epochs) - 1])[1]
        return self.open_next()

    def take(self, list into not None, Py_ssize_t limit):
        return self.take_records(into, limit)

    cdef bint take_records(self, list into, Py_ssize_t limit) except -1:
        cdef Py_ssize_t before
        cdef bint is_finished
        cdef BatchCursor batch = self.batch
        while True:
            before = len(into)
            try:
                is_finished = batch.take_records(into, limit)
            finally:
                if len(into) > before:
                    self.next_offset = batch.base_offset + batch.previous_delta + 1
            limit -= len(into) - before
            if not is_finished:
                return False
            self.next_offset = max(self.next_offset, self.batch_end)
            if not self.open_next():
                return True
            if limit <= 0:
                return False

    def take_columns(self, Columns columns not None, Py_ssize_t limit):
        cdef Py_ssize_t before
        cdef bint is_finished
        cdef BatchCursor batch = self.batch
        while True:
            before = columns.rows
            try:
                is_finished = batch.add_rows(columns, limit)
            finally:
                if columns.rows > before:
                    self.next_offset = columns.last_offset + 1
            limit -= columns.rows - before
            if not is_finished:
                return False
            self.next_offset = max(self.next_offset, self.batch_end)
            if not self.open_next():
                return True
            if limit <= 0:
                return False

    cdef bint open_at(
        self, object topic, object partition, const uint8_t *start, Py_ssize_t size, int64_t floor
    ) except -1:
        """Go through other memory, as `open` does from its beginning; it must outlive this."""
        self.batch.topic = topic
        self.batch.partition = partition
        self.buffer.buf = <void *> start
        self.buffer.len = size
        self.pos = 0
        self.next_offset = floor
        self.leader_epoch = -1
        self.epoch_count = 0
        return self.open_next()

    cdef bint open_next(self) except -1:
        """Open the next batch with records to deliver; False if it is not plain, or not good."""
        cdef const uint8_t *at
        cdef Py_ssize_t left
        cdef int32_t length
        cdef int32_t count
        cdef int32_t last_delta
        cdef int32_t leader_epoch
        cdef int64_t base_offset
        cdef BatchCursor batch = self.batch
        if self.inflated is not None:
            self.drop_inflated()
        while True:
            at = <const uint8_t *> self.buffer.buf + self.pos
            left = self.buffer.len - self.pos
            if left < HEADER_BYTES or at[MAGIC_AT] != 2 or at[ATTRIBUTES_AT + 1] & self.not_plain:
                return False
            length = read_int32(at + 8)
            if length < HEADER_BYTES - LOG_OVERHEAD or length > left - LOG_OVERHEAD:
                return False
            base_offset = read_int64(at)
            last_delta = read_int32(at + LAST_OFFSET_DELTA_AT)
            if base_offset < 0 or last_delta < 0 or base_offset > MAX_OFFSET - last_delta:
                return False
            if base_offset >= batch.ceiling or self.next_offset >= batch.ceiling:
                return False
            if self.crc32c is not None and not self.is_sound(at, length + LOG_OVERHEAD):
                return False
            count = read_int32(at + COUNT_AT)
            left = length + LOG_OVERHEAD - HEADER_BYTES
            self.batch_end = base_offset + last_delta + 1
            leader_epoch = read_int32(at + LEADER_EPOCH_AT)
            if self.batch_end <= self.next_offset or (count == 0 and left == 0):
                # Fetched from its middle on, and this was ahead of it; or emptied by compaction.
                self.pos += length + LOG_OVERHEAD
                self.next_offset = max(self.next_offset, self.batch_end)
                if leader_epoch != self.leader_epoch:
                    self.note_epoch(base_offset, leader_epoch)
                continue
            batch.left.pos = at + HEADER_BYTES
            if at[ATTRIBUTES_AT + 1] & CODEC_MASK:
                if not self.open_inflated(at, left):
                    return False
                left = self.inflated_buffer.len
                batch.left.pos = <const uint8_t *> self.inflated_buffer.buf
            if count < 0 or count > left // MIN_RECORD_BYTES:
                if self.inflated is not None:
                    self.drop_inflated()
                return False
            if leader_epoch != self.leader_epoch:
                self.note_epoch(base_offset, leader_epoch)
            self.pos += length + LOG_OVERHEAD
            batch.left.end = batch.left.pos + left
            batch.records_left = count
            batch.base_offset = base_offset
            batch.base_timestamp = read_int64(at + BASE_TIMESTAMP_AT)
            batch.previous_delta = -1
            batch.last_delta = last_delta
            batch.floor = self.next_offset
            batch.has_append_time = at[ATTRIBUTES_AT + 1] & APPEND_TIME
            batch.append_time = read_int64(at + MAX_TIMESTAMP_AT)
            return True

    cdef int note_epoch(self, int64_t base_offset, int32_t leader_epoch) except -1:
        """Note that batches are of another leader epoch from here on; -1: it is not known."""
        if leader_epoch != -1:
            self.leader_epoch = leader_epoch
            self.epoch_count += 1
            if self.epochs is not None:
                self.epochs.append((base_offset, leader_epoch))
        return 0

    cdef bint open_inflated(self, const uint8_t *batch, Py_ssize_t size) except -1:
        """Decompress a batch's records; False if they cannot be, which others look into."""
        payload = PyMemoryView_FromMemory(<char *> batch + HEADER_BYTES, size, PyBUF_READ)
        try:
            inflated = self.inflate(batch[ATTRIBUTES_AT + 1] & CODEC_MASK, payload)
        except (KafkaError, ValueError):
            return False
        PyObject_GetBuffer(inflated, &self.inflated_buffer, PyBUF_SIMPLE)
        self.inflated = inflated
        return True

    cdef int drop_inflated(self) except -1:
        PyBuffer_Release(&self.inflated_buffer)
        inflated = self.inflated
        self.inflated = None
        self.give_back(inflated)
        return 0

    cdef bint is_sound(self, const uint8_t *batch, Py_ssize_t size) except -1:
        checked = PyMemoryView_FromMemory(
            <char *> batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT, PyBUF_READ
        )
        return self.crc32c(checked) == <uint32_t> read_int32(batch + CRC_AT)


# --- columns -------------------------------------------------------------------------------------

def columns_class():
    return Columns


# --- ahead of decoding ---------------------------------------------------------------------------

def end_offset(view):
    cdef Py_buffer buffer
    cdef int64_t end
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        end = find_end(<const uint8_t *> buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
    return None if end < 0 else end


cdef int64_t find_end(const uint8_t *at, Py_ssize_t left) noexcept nogil:
    """The offset after all whole batches, -1 if there is none."""
    cdef int64_t end = -1
    cdef int64_t base_offset
    cdef int32_t length
    cdef int32_t last_offset_delta
    while left > 16:
        base_offset = read_int64(at)
        length = read_int32(at + 8)
        if length < 14 or length > left - LOG_OVERHEAD or base_offset < 0:
            break
        last_offset_delta = 0
        if at[16] == 2:
            if length < 49:
                break
            last_offset_delta = read_int32(at + 23)
        if last_offset_delta < 0 or base_offset >= INT64_MAX - last_offset_delta:
            break
        end = max(end, base_offset + last_offset_delta + 1)
        at += LOG_OVERHEAD + length
        left -= LOG_OVERHEAD + length
    return end
