# cython: language_level=3, boundscheck=False, wraparound=False
"""Batches of magic 2 from records, compiled. What it must do is told in `_build_py`.

A record is checked and measured to its end before a byte of it is written, so one that is refused
leaves the batch as it was. Between measuring and writing no Python code runs, and nothing else that
could change or free what the pointers into keys, values and names point to.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLong
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from collections.abc import Sequence

from aiokafka_lite.records.checksum import loaded
from aiokafka_lite.records.codec import Codec

cdef extern from "Python.h":
    # Of a list or a tuple; the item is borrowed.
    Py_ssize_t PySequence_Fast_GET_SIZE(object items)
    PyObject *PySequence_Fast_GET_ITEM(object items, Py_ssize_t index)

# Where the fields of a header are; `records.batch` tells what they are.
cdef enum:
    LENGTH_AT = 8
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    COUNT_AT = 57
    HEADER_BYTES = 61
    LOG_OVERHEAD = 12
    MAGIC = 2
    CODEC_MASK = 0x07
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    MOST_FRAMING_BYTES = 21
    FIRST_CAPACITY = 1024
    NO_HEADER = -1


# A key, a value, or a header's name or value.
cdef struct Content:
    const char *start  # NULL stands for None
    Py_ssize_t size


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class BatchBuilder:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size_estimate
    cdef object codec
    cdef int64_t base_offset
    cdef int32_t leader_epoch
    cdef int attributes
    # Room for the header, and the records: `size_estimate` bytes are used.
    cdef uint8_t *batch
    cdef Py_ssize_t capacity
    # What was built last, in place of the records.
    cdef bytes built
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp
    cdef int64_t last_delta

    def __cinit__(
        self,
        *,
        codec=Codec.NONE,
        base_offset=0,
        is_transactional=False,
        is_control=False,
        leader_epoch=-1,
    ):
        self.codec = Codec.of(codec)
        self.base_offset = integer("base_offset", base_offset, 64)
        self.leader_epoch = <int32_t> integer("leader_epoch", leader_epoch, 32)
        self.attributes = self.codec
        if is_transactional:
            self.attributes |= TRANSACTIONAL
        if is_control:
            self.attributes |= CONTROL
        self.size_estimate = HEADER_BYTES
        self.last_delta = -1
        self.reserve(FIRST_CAPACITY)

    def __dealloc__(self):
        PyMem_Free(self.batch)

    def append(self, timestamp_ms, key, value, headers=(), *, offset=None):
        cdef int64_t timestamp
        cdef int64_t base
        cdef int64_t offset_delta = self.last_delta + 1
        cdef Content key_content
        cdef Content value_content
        cdef Py_ssize_t bound
        cdef Py_ssize_t body_size
        cdef uint8_t *at
        if self.built is not None:
            raise ValueError("the batch is complete: create another batch for this record")
        timestamp = integer("timestamp_ms", timestamp_ms, 64)
        base = self.base_timestamp if self.count else timestamp
        if offset is not None or offset_delta > INT32_MAX:
            offset_delta = self.checked_delta(offset)
        if is_too_far(base, timestamp):
            raise ValueError(
                f"timestamp_ms {timestamp} is too far from {base}, the timestamp of the batch's "
                "first record: the difference must fit into 64 bits"
            )
        if type(headers) is not tuple and type(headers) is not list:
            headers = as_tuple(headers)
        bound = look_at_content(key, &key_content, "key", NO_HEADER)
        bound += look_at_content(value, &value_content, "value", NO_HEADER)
        bound += measure_headers(headers)
        body_size = 1 + varint_size(timestamp - base) + varint_size(offset_delta) + bound
        bound += MOST_FRAMING_BYTES
        if bound > INT32_MAX - (self.size_estimate - LOG_OVERHEAD):
            raise ValueError(
                "a batch must have less than 2 GiB: create another batch for this "
                "record"
            )
        if bound > self.capacity - self.size_estimate:
            self.reserve(self.size_estimate + bound)

        at = put_varint(self.batch + self.size_estimate, body_size)
        at[0] = 0  # attributes: none are defined
        at = put_varint(at + 1, timestamp - base)
        at = put_varint(at, offset_delta)
        at = put_content(at, &key_content)
        at = put_content(at, &value_content)
        at = put_headers(at, headers)
        self.size_estimate = at - self.batch
        if self.count == 0 or timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.base_timestamp = base
        self.last_delta = offset_delta
        self.count += 1

    def build(self, *, producer_id=-1, producer_epoch=-1, base_sequence=-1):
        cdef int64_t id_ = integer("producer_id", producer_id, 64)
        cdef int64_t epoch = integer("producer_epoch", producer_epoch, 16)
        cdef int64_t sequence = integer("base_sequence", base_sequence, 32)
        cdef bytes built
        cdef uint8_t *start
        cdef Py_ssize_t size
        if not self.count:
            raise ValueError("a batch needs at least one record")
        if self.built is None:
            built = self.without_producer()
        else:
            built = PyBytes_FromStringAndSize(
                PyBytes_AS_STRING(self.built), PyBytes_GET_SIZE(self.built)
            )
        start = <uint8_t *> PyBytes_AS_STRING(built)
        size = PyBytes_GET_SIZE(built)
        put_int(start + PRODUCER_ID_AT, id_, 8)
        put_int(start + PRODUCER_EPOCH_AT, epoch, 2)
        put_int(start + BASE_SEQUENCE_AT, sequence, 4)
        checked = PyMemoryView_FromMemory(
            <char *> start + ATTRIBUTES_AT, size - ATTRIBUTES_AT, PyBUF_READ
        )
        put_int(start + CRC_AT, loaded()(checked), 4)
        self.built = built
        PyMem_Free(self.batch)
        self.batch = NULL
        self.capacity = 0
        return built

    cdef bytes without_producer(self):
        """Return the batch but for what depends on its producer."""
        cdef const char *records = <const char *> self.batch + HEADER_BYTES
        cdef Py_ssize_t size = self.size_estimate - HEADER_BYTES
        cdef bytes payload = None
        cdef bytes made
        cdef uint8_t *start
        if self.attributes & CODEC_MASK:
            from aiokafka_lite.records.compression import compress  # on first use: see there

            payload = compress(self.codec, PyBytes_FromStringAndSize(records, size))
            records = PyBytes_AS_STRING(payload)
            size = PyBytes_GET_SIZE(payload)
        made = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + size)
        start = <uint8_t *> PyBytes_AS_STRING(made)
        put_int(start, self.base_offset, 8)
        put_int(start + LENGTH_AT, HEADER_BYTES - LOG_OVERHEAD + size, 4)
        put_int(start + LEADER_EPOCH_AT, self.leader_epoch, 4)
        start[MAGIC_AT] = MAGIC
        put_int(start + ATTRIBUTES_AT, self.attributes, 2)
        put_int(start + LAST_OFFSET_DELTA_AT, self.last_delta, 4)
        put_int(start + BASE_TIMESTAMP_AT, self.base_timestamp, 8)
        put_int(start + MAX_TIMESTAMP_AT, self.max_timestamp, 8)
        put_int(start + COUNT_AT, self.count, 4)
        memcpy(start + HEADER_BYTES, records, size)
        return made

    cdef int64_t checked_delta(self, offset) except -1:
        """Return the delta of the next record where it is not simply the one after the last."""
        delta = self.last_delta + 1
        if offset is not None:
            delta = <object> integer("offset", offset, 64) - self.base_offset
            if delta <= self.last_delta:
                raise ValueError(
                    f"offset {offset} is too low: the next record of this batch must have offset "
                    f"{<object> self.base_offset + self.last_delta + 1} or higher"
                )
        if delta > INT32_MAX:
            raise ValueError(
                f"offset {self.base_offset + delta} is more than {INT32_MAX} above the batch's "
                "first offset: create another batch"
            )
        return delta

    cdef int reserve(self, Py_ssize_t needed) except -1:
        """Have room for a batch of that size, at least."""
        cdef Py_ssize_t capacity = max(needed, 2 * self.capacity)
        cdef void *room = PyMem_Realloc(self.batch, capacity)
        if room is NULL:
            raise MemoryError()
        self.batch = <uint8_t *> room
        self.capacity = capacity
        return 0


def size_of(key, value, headers=()):
    cdef Content content
    cdef Py_ssize_t size = MOST_FRAMING_BYTES
    if type(headers) is not tuple and type(headers) is not list:
        headers = as_tuple(headers)
    size += look_at_content(key, &content, "key", NO_HEADER)
    size += look_at_content(value, &content, "value", NO_HEADER)
    return size + measure_headers(headers)


# --- Measuring -------------------------------------------------------------------------------------
# What a caller gives is checked here, and nowhere else.

cdef inline int64_t integer(str what, given, int bits) except? -1:
    """Return a number that has so many bits."""
    cdef int64_t number
    if not isinstance(given, int):
        raise TypeError(f"{what} must be int, not {type(given).__name__}")
    try:
        number = PyLong_AsLongLong(given)
    except OverflowError:
        raise out_of_range(what, given, bits) from None
    if bits < 64 and not -(<int64_t> 1 << (bits - 1)) <= number < <int64_t> 1 << (bits - 1):
        raise out_of_range(what, given, bits)
    return number


cdef out_of_range(str what, given, int bits):
    return ValueError(f"{what} is {given}, which does not fit into {bits} bits")


cdef inline bint is_too_far(int64_t base, int64_t number) noexcept:
    """Whether the difference has more than 64 bits."""
    if base < 0:
        return number > INT64_MAX + base
    return number < INT64_MIN + base


cdef inline Py_ssize_t look_at_content(
    given, Content *out, str what, Py_ssize_t header
) except -1:
    """Return what a key or a value takes with its length; `out` points into it."""
    if type(given) is bytes:
        out.start = PyBytes_AS_STRING(given)
        out.size = PyBytes_GET_SIZE(given)
    elif given is None:
        out.start = NULL
        return 1
    else:
        look_at_other(given, out, what, header)
    return varint_size(out.size) + out.size


cdef int look_at_other(given, Content *out, str what, Py_ssize_t header) except -1:
    cdef Py_buffer view
    if isinstance(given, bytes):
        out.start = PyBytes_AS_STRING(given)
        out.size = PyBytes_GET_SIZE(given)
    elif isinstance(given, bytearray):
        out.start = PyByteArray_AS_STRING(given)
        out.size = PyByteArray_GET_SIZE(given)
    elif isinstance(given, memoryview):
        if not given.c_contiguous:
            raise TypeError(
                f"{named(what, header)} is a memoryview that is not contiguous: pass bytes(view)"
            )
        PyObject_GetBuffer(given, &view, PyBUF_SIMPLE)
        out.start = <const char *> view.buf
        out.size = view.len
        # The view holds the memory itself, and nobody releases it while no Python code runs.
        PyBuffer_Release(&view)
    else:
        raise TypeError(
            f"{named(what, header)} must be bytes, bytearray, memoryview or None, "
            f"not {type(given).__name__}"
        )
    if out.start is NULL:  # of no bytes
        out.start = b""
    return 0


cdef str named(str what, Py_ssize_t header):
    return what if header == NO_HEADER else f"{what} of headers[{header}]"


cdef as_tuple(headers):
    if not isinstance(headers, Sequence):
        raise TypeError(f"headers must be a sequence of pairs, not {type(headers).__name__}")
    return tuple(headers)


cdef inline Py_ssize_t measure_headers(headers) except -1:
    """Return what headers take, with their count: of a list or a tuple."""
    if PySequence_Fast_GET_SIZE(headers) == 0:
        return 1
    return measure_some_headers(headers)


cdef Py_ssize_t measure_some_headers(headers) except -1:
    cdef Content content
    cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(headers)
    cdef Py_ssize_t size = varint_size(count)
    cdef Py_ssize_t index
    for index in range(count):
        header = <object> PySequence_Fast_GET_ITEM(headers, index)
        if not isinstance(header, (tuple, list)) or PySequence_Fast_GET_SIZE(header) != 2:
            raise TypeError(
                f"headers[{index}] must be a pair of name and value, not {type(header).__name__}"
            )
        name = <object> PySequence_Fast_GET_ITEM(header, 0)
        if not isinstance(name, str):
            raise TypeError(f"the name of headers[{index}] must be str, not {type(name).__name__}")
        look_at_name(name, &content)
        size += varint_size(content.size) + content.size
        value = <object> PySequence_Fast_GET_ITEM(header, 1)
        size += look_at_content(value, &content, "the value", index)
    return size


cdef inline int look_at_name(name, Content *out) except -1:
    # The text keeps its UTF-8, so this is as good as a pointer into it.
    out.start = PyUnicode_AsUTF8AndSize(name, &out.size)
    return 0


cdef inline Py_ssize_t varint_size(int64_t number) noexcept:
    cdef uint64_t raw = zigzag(number)
    cdef Py_ssize_t size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


cdef inline uint64_t zigzag(int64_t number) noexcept:
    return <uint64_t> number << 1 ^ <uint64_t> (number >> 63)


# --- Writing ---------------------------------------------------------------------------------------
# Each function writes what was measured, and returns where the next one goes on.

cdef inline uint8_t *put_varint(uint8_t *at, int64_t number) noexcept:
    cdef uint64_t raw = zigzag(number)
    while raw > 0x7F:
        at[0] = <uint8_t> (raw & 0x7F | 0x80)
        raw >>= 7
        at += 1
    at[0] = <uint8_t> raw
    return at + 1


cdef inline uint8_t *put_content(uint8_t *at, const Content *content) noexcept:
    if content.start is NULL:
        at[0] = 0x01  # -1
        return at + 1
    at = put_varint(at, content.size)
    memcpy(at, content.start, content.size)
    return at + content.size


cdef inline uint8_t *put_headers(uint8_t *at, headers) except NULL:
    cdef Content content
    cdef Py_ssize_t count = PySequence_Fast_GET_SIZE(headers)
    cdef Py_ssize_t index
    at = put_varint(at, count)
    for index in range(count):
        header = <object> PySequence_Fast_GET_ITEM(headers, index)
        look_at_name(<object> PySequence_Fast_GET_ITEM(header, 0), &content)
        at = put_content(at, &content)
        value = <object> PySequence_Fast_GET_ITEM(header, 1)
        look_at_content(value, &content, "the value", index)
        at = put_content(at, &content)
    return at


cdef inline void put_int(uint8_t *at, int64_t number, int size) noexcept:
    """Write the lowest bytes of a number, the highest of them first."""
    cdef int index
    for index in range(size):
        at[index] = <uint8_t> (number >> (8 * (size - 1 - index)) & 0xFF)
