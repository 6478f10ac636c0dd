# cython: language_level=3, boundscheck=False, wraparound=False
"""Columns in the memory layout of Arrow, compiled. What they must do is told in `_columns_py`.

A row is added by `add` in the pxd, inlined into the cursors' loops; here is what comes once a
batch: making room, what rows have in common, and handing the memory out. Memory changes hands
without being copied: `finish` gives each piece to a `Memory`, which frees it when nobody reads it
any more.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from aiokafka_lite.records._cursor cimport Bytes, Parsed, Slice, varint_slice

from aiokafka_lite.errors import CorruptRecordException, RecordTooLargeError

cdef extern from "Python.h":
    int PyBuffer_FillInfo(
        Py_buffer *view, object exporter, void *start, Py_ssize_t size, int readonly, int flags
    ) except -1

# The types that `finish` gives, imported when it first does.
cdef object shapes = None

cdef enum:
    HEADER_BYTES = 8  # what a header takes beside its bytes: two int32
    MOST_SPARE_BYTES = 32 * 1024 * 1024
    MOST_SCRATCH_BYTES = 64 * 1024
    FEW = 8  # of the memory's bytes, one in so many


cdef class Spares:
    """Memory that nobody reads any more, kept to be filled again in the same place.

    Fresh memory costs more than filling it: the kernel clears each page when it is first touched,
    and large pieces that are freed go back to it.
    """

    cdef void keep(self, Growing memory) noexcept:
        cdef int *count = &self.counts[memory.place]
        if memory.place != ANY and memory.capacity <= MOST_SPARE_BYTES and count[0] < MOST_SPARES:
            self.pieces[memory.place][count[0]] = memory
            count[0] += 1
        else:
            PyMem_RawFree(memory.start)

    cdef void give(self, Growing *memory) noexcept:
        """Let memory that has none yet have a piece, if there is one."""
        cdef int *count = &self.counts[memory.place]
        if memory.start is NULL and count[0]:
            count[0] -= 1
            memory.start = self.pieces[memory.place][count[0]].start
            memory.capacity = self.pieces[memory.place][count[0]].capacity

    def __dealloc__(self):
        cdef int place
        for place in range(<int> PLACES):
            while self.counts[place]:
                self.counts[place] -= 1
                PyMem_RawFree(self.pieces[place][self.counts[place]].start)


@cython.no_gc_clear
cdef class Memory:
    """Owns a piece of memory and lets others read it, through the buffer protocol."""

    cdef Growing held
    cdef Spares spares

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.held.start, self.held.size, True, flags)

    def __len__(self):
        return self.held.size

    def __dealloc__(self):
        if self.spares is not None:
            self.spares.keep(self.held)


cdef Memory detach(Growing *memory, Py_ssize_t size, Spares spares):
    """Hand over the first `size` bytes, and start anew with none.

    Few bytes are copied out of memory that is large because the batches before were: it is better
    kept to be filled again. When they no longer are, it shrinks.
    """
    cdef Memory detached = Memory.__new__(Memory)
    cdef void *fitting
    cdef bint is_too_large
    memory.expected = max(size + size // 8, memory.expected - memory.expected // 8)
    is_too_large = memory.expected < memory.capacity // 4
    detached.spares = spares
    if memory.start is NULL or (size < memory.capacity // FEW and not is_too_large):
        if not grow(&detached.held, size):
            raise MemoryError
        if size:
            memcpy(detached.held.start, memory.start, size)
    else:
        if is_too_large:
            fitting = PyMem_RawRealloc(memory.start, max(size, LEAST_CAPACITY))
            if fitting is not NULL:
                memory.start = <uint8_t *> fitting
                memory.capacity = max(size, LEAST_CAPACITY)
        detached.held = memory[0]
        memory.start = NULL
        memory.capacity = 0
    detached.held.size = size
    memory.size = 0
    return detached


cdef object valid_bits(
    Growing *bits, Py_ssize_t null_count, Py_ssize_t rows, int byte, Spares spares
):
    """Hand over the bits of `rows` values; None if there is a value everywhere."""
    if not null_count:
        return None
    if not fill_up(bits, (rows + 7) >> 3, byte):
        raise MemoryError
    return detach(bits, (rows + 7) >> 3, spares)


cdef int make_room(Growing *memory, Py_ssize_t size) except -1:
    """Make room for `size` bytes in all."""
    if memory.capacity < size and not grow(memory, size):
        raise MemoryError
    return 0


cdef int make_bounds(Growing *bounds, Py_ssize_t values) except -1:
    """Make room for the bounds of so many values, and write the first of them."""
    make_room(bounds, (values + 1) * sizeof(int32_t))
    (<int32_t *> bounds.start)[0] = 0  # memory may have been used before
    return 0


cdef object finish_values(Values *values, Py_ssize_t count, Spares spares):
    make_bounds(&values.bounds, count)
    return shapes.Binary(
        detach(&values.bounds, (count + 1) * sizeof(int32_t), spares),
        detach(&values.content, values.content.size, spares),
        valid_bits(&values.valid, values.null_count, count, 0xFF, spares),
    )


cdef void clear_values(Values *values) noexcept:
    values.content.size = values.valid.size = values.null_count = 0


cdef void free_values(Values *values) noexcept:
    PyMem_RawFree(values.bounds.start)
    PyMem_RawFree(values.content.start)
    PyMem_RawFree(values.valid.start)


cdef class Columns:
    def __cinit__(self):
        self.first_offset = self.last_offset = -1
        self.row_groups = []
        self.spares = Spares()
        self.offsets.place = OFFSETS
        self.timestamps.place = TIMESTAMPS
        self.keys.bounds.place = KEY_BOUNDS
        self.keys.content.place = KEYS
        self.values.bounds.place = VALUE_BOUNDS
        self.values.content.place = VALUES

    def __init__(
        self,
        *,
        bint offsets=True,
        int64_t timestamp_factor=1,
        bint keys=True,
        bint values=True,
        bint headers=True,
        byte_limit=None,
    ):
        if self.rows:
            raise TypeError("columns are set up once")
        self.wants_offsets = offsets
        self.timestamp_factor = timestamp_factor
        if timestamp_factor:
            self.least_timestamp = -(2**63 // <object> timestamp_factor)
            self.largest_timestamp = (2**63 - 1) // <object> timestamp_factor
        self.wants_keys = keys
        self.wants_values = values
        self.wants_headers = headers
        self.byte_limit = min(byte_limit or INT32_MAX, INT32_MAX)

    def __dealloc__(self):
        free_values(&self.keys)
        free_values(&self.values)
        free_values(&self.names)
        free_values(&self.header_values)
        PyMem_RawFree(self.offsets.start)
        PyMem_RawFree(self.timestamps.start)
        PyMem_RawFree(self.timestamp_valid.start)
        PyMem_RawFree(self.header_bounds.start)
        PyMem_RawFree(self.header_valid.start)
        PyMem_RawFree(self.row_headers.start)

    def __len__(self):
        return self.rows

    def mark(self):
        self.first_offset = -1

    def add(self, record):
        """Add a record without headers, such as those of magic 0 and 1."""
        cdef Parsed parsed
        cdef bytes key = record.key
        cdef bytes value = record.value
        self.reserve(1)
        parsed.offset = record.offset
        parsed.has_timestamp = record.timestamp is not None
        parsed.timestamp = record.timestamp if parsed.has_timestamp else 0
        parsed.key = slice_of(key)
        parsed.value = slice_of(value)
        parsed.header_count = 0
        return add(self, &parsed)

    cdef int reserve(self, Py_ssize_t rows) except -1:
        """Make room for so many rows, but for what is in them of any length."""
        if not self.rows:
            self.use_spares()
        rows += self.rows
        if self.wants_offsets:
            make_room(&self.offsets, rows * sizeof(int64_t))
        if self.timestamp_factor:
            make_room(&self.timestamps, rows * sizeof(int64_t))
        if self.wants_keys:
            make_bounds(&self.keys.bounds, rows)
        if self.wants_values:
            make_bounds(&self.values.bounds, rows)
        return 0

    cdef void use_spares(self) noexcept:
        """Begin with memory that was used before, if there is any."""
        self.spares.give(&self.offsets)
        self.spares.give(&self.timestamps)
        self.spares.give(&self.keys.bounds)
        self.spares.give(&self.keys.content)
        self.spares.give(&self.values.bounds)
        self.spares.give(&self.values.content)

    cpdef int end_row_group(
        self, object topic, object partition, object timestamp_type, Py_ssize_t first_row
    ) except -1:
        """Note what the rows from `first_row` on have in common."""
        if self.rows == first_row:
            return 0
        if self.group_rows and not (
            topic == self.group_topic
            and partition == self.group_partition
            and timestamp_type == self.group_timestamp_type
        ):
            self.close_row_group()
        self.group_topic = topic
        self.group_partition = partition
        self.group_timestamp_type = timestamp_type
        self.group_rows += self.rows - first_row
        return 0

    cdef int close_row_group(self) except -1:
        if self.group_rows:
            self.row_groups.append(
                (self.group_topic, self.group_partition, self.group_timestamp_type, self.group_rows)
            )
            self.group_rows = 0
        return 0

    cdef bint refuse(self, int64_t size_bytes) except -1:
        """Whether a row beyond the limit is for the next batch; one alone only if it has to."""
        if self.rows:
            self.is_full = True
            return True
        if size_bytes > INT32_MAX:
            raise RecordTooLargeError(
                f"a record of {size_bytes} bytes is too large for an Arrow column, which can "
                f"contain up to {INT32_MAX} bytes"
            )
        return False

    # --- headers ---------------------------------------------------------------------------------

    cdef int64_t read_headers(self, Bytes headers, int32_t count) except -1:
        """Find names and values of a row, whose headers were checked; return what they take."""
        cdef Slice *found
        cdef Py_ssize_t size = <Py_ssize_t> count * 2 * sizeof(Slice)
        cdef int32_t number
        make_room(&self.row_headers, size)
        found = <Slice *> self.row_headers.start
        self.row_names = None
        self.row_name_bytes = self.row_value_bytes = 0
        for number in range(count):
            if not (
                varint_slice(&headers, &found[2 * number])
                and varint_slice(&headers, &found[2 * number + 1])
            ):
                raise CorruptRecordException("a header is longer than its record")
            if not is_ascii(found[2 * number]):
                self.make_valid(&found[2 * number])
            self.row_name_bytes += found[2 * number].size
            if found[2 * number + 1].start is not NULL:
                self.row_value_bytes += found[2 * number + 1].size
        return self.row_name_bytes + self.row_value_bytes + count * <int64_t> HEADER_BYTES

    cdef int make_valid(self, Slice *name) except -1:
        """Turn a name into the UTF-8 that records show: what is no UTF-8 is replaced."""
        text = PyUnicode_DecodeUTF8(<char *> name.start, name.size, "replace")
        encoded = PyUnicode_AsUTF8String(text)
        if self.row_names is None:
            self.row_names = []
        self.row_names.append(encoded)
        name.start = <const uint8_t *> PyBytes_AS_STRING(encoded)
        name.size = PyBytes_GET_SIZE(encoded)
        return 0

    cdef int put_headers(self, int32_t count) except -1:
        """Write the headers of the row that is being added, found by `read_headers`."""
        cdef Slice *found = <Slice *> self.row_headers.start
        cdef int32_t number
        make_bounds(&self.header_bounds, self.rows + 1)
        make_bounds(&self.names.bounds, self.header_count + count)
        make_bounds(&self.header_values.bounds, self.header_count + count)
        if not (
            fill_up(&self.header_valid, (self.rows >> 3) + 1, 0)
            and has_room(&self.names.content, self.row_name_bytes)
            and has_room(&self.header_values.content, self.row_value_bytes)
            and fill_up(&self.header_values.valid, ((self.header_count + count) >> 3) + 1, 0xFF)
        ):
            raise MemoryError
        self.bound_rows(self.rows)
        set_bit(&self.header_valid, self.rows)
        for number in range(count):
            put(&self.names, self.header_count, found[2 * number])
            put(&self.header_values, self.header_count, found[2 * number + 1])
            self.header_count += 1
        self.header_row_count += 1
        if self.row_headers.capacity > MOST_SCRATCH_BYTES:
            PyMem_RawFree(self.row_headers.start)
            self.row_headers.start = NULL
            self.row_headers.capacity = 0
        return 0

    cdef void bound_rows(self, Py_ssize_t rows) noexcept:
        """Write where the headers end of those rows ahead that have none."""
        cdef int32_t *bounds = <int32_t *> self.header_bounds.start
        while self.bounded_rows < rows:
            self.bounded_rows += 1
            bounds[self.bounded_rows] = <int32_t> self.header_count

    # --- the end ---------------------------------------------------------------------------------

    def finish(self):
        global shapes
        cdef Py_ssize_t rows = self.rows
        if shapes is None:
            from aiokafka_lite.records import _columns_py as shapes
        try:
            self.close_row_group()
            return shapes.Filled(
                rows,
                tuple([shapes.RowGroup._make(group) for group in self.row_groups]),
                self.finish_offsets() if self.wants_offsets else None,
                self.finish_timestamps() if self.timestamp_factor else None,
                finish_values(&self.keys, rows, self.spares) if self.wants_keys else None,
                finish_values(&self.values, rows, self.spares) if self.wants_values else None,
                self.finish_headers() if self.header_count else None,
            )
        finally:
            self.clear()

    def clear(self):
        self.rows = 0
        self.size_bytes = 0
        self.is_full = False
        self.row_groups = []
        self.group_rows = 0
        self.timestamp_valid.size = self.timestamp_null_count = 0
        clear_values(&self.keys)
        clear_values(&self.values)
        self.header_valid.size = 0
        self.bounded_rows = self.header_row_count = self.header_count = 0
        clear_values(&self.names)
        clear_values(&self.header_values)

    cdef object finish_offsets(self):
        return detach(&self.offsets, self.rows * sizeof(int64_t), self.spares)

    cdef object finish_timestamps(self):
        return shapes.Timestamps(
            detach(&self.timestamps, self.rows * sizeof(int64_t), self.spares),
            valid_bits(
                &self.timestamp_valid, self.timestamp_null_count, self.rows, 0xFF, self.spares
            ),
        )

    cdef object finish_headers(self):
        make_bounds(&self.header_bounds, self.rows)
        self.bound_rows(self.rows)
        return shapes.Headers(
            detach(&self.header_bounds, (self.rows + 1) * sizeof(int32_t), self.spares),
            valid_bits(
                &self.header_valid, self.rows - self.header_row_count, self.rows, 0, self.spares
            ),
            finish_values(&self.names, self.header_count, self.spares),
            finish_values(&self.header_values, self.header_count, self.spares),
            self.header_count,
        )


cdef Slice slice_of(bytes content):
    cdef Slice found
    found.start = NULL
    found.size = -1
    if content is not None:
        found.start = <const uint8_t *> PyBytes_AS_STRING(content)
        found.size = PyBytes_GET_SIZE(content)
    return found


cdef inline bint is_ascii(Slice content) noexcept nogil:
    cdef uint8_t seen = 0
    cdef Py_ssize_t at
    for at in range(content.size):
        seen |= content.start[at]
    return seen < 0x80
