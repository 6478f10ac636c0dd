"""The memory of growing columns, and how a row is added to them."""

from cpython.mem cimport PyMem_RawRealloc
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from aiokafka_lite.records._cursor cimport Bytes, Parsed, Slice

cdef enum:
    LEAST_CAPACITY = 64
    MOST_SPARES = 2  # pieces for each place


# What memory serves for. Pieces for the same are about equally large from batch to batch.
cdef enum Place:
    ANY
    OFFSETS
    TIMESTAMPS
    KEY_BOUNDS
    KEYS
    VALUE_BOUNDS
    VALUES
    PLACES


# --- memory that grows ---------------------------------------------------------------------------

cdef struct Growing:
    uint8_t *start
    Py_ssize_t size  # of what is in use
    Py_ssize_t capacity
    Py_ssize_t expected  # about what it held when it was last handed out
    int place  # where it serves; ANY: it is not worth keeping


cdef inline bint grow(Growing *memory, Py_ssize_t needed) noexcept nogil:
    """Have at least `needed` bytes; False if there is no memory, and then nothing has changed."""
    cdef Py_ssize_t capacity = max(needed, 2 * memory.capacity, memory.expected, LEAST_CAPACITY)
    cdef void *moved = PyMem_RawRealloc(memory.start, capacity)
    if moved is NULL:
        return False
    memory.start = <uint8_t *> moved
    memory.capacity = capacity
    return True


cdef inline bint has_room(Growing *memory, Py_ssize_t more) noexcept nogil:
    return more <= memory.capacity - memory.size or grow(memory, memory.size + more)


cdef inline bint fill_up(Growing *bits, Py_ssize_t size, int byte) noexcept nogil:
    """Have `size` bytes, those that are new set to `byte`."""
    if bits.size >= size:
        return True
    if not has_room(bits, size - bits.size):
        return False
    memset(bits.start + bits.size, byte, size - bits.size)
    bits.size = size
    return True


cdef inline void clear_bit(Growing *bits, Py_ssize_t row) noexcept nogil:
    bits.start[row >> 3] &= <uint8_t> ~(1 << (row & 7))


cdef inline void set_bit(Growing *bits, Py_ssize_t row) noexcept nogil:
    bits.start[row >> 3] |= <uint8_t> (1 << (row & 7))


# --- bytes, one value behind the other -----------------------------------------------------------

cdef struct Values:
    Growing bounds  # int32, one more than there are values
    Growing content
    Growing valid  # a bit for each value, all set as far as it reaches but those of nulls
    Py_ssize_t null_count


cdef inline bint can_put(Values *values, Py_ssize_t row, Slice value) noexcept nogil:
    """Make room for a value, but for its bound; False if there is no memory."""
    if value.start is NULL:
        return fill_up(&values.valid, (row >> 3) + 1, 0xFF)
    return has_room(&values.content, value.size)


cdef inline void copy(uint8_t *into, const uint8_t *start, Py_ssize_t size) noexcept nogil:
    """Copy bytes; few, as keys have, without a call."""
    if 8 <= size <= 16:
        memcpy(into, start, 8)
        memcpy(into + size - 8, start + size - 8, 8)
    elif size > 0:  # without any, there may be no memory yet
        memcpy(into, start, size)


cdef inline void put(Values *values, Py_ssize_t row, Slice value) noexcept nogil:
    """Write the value of `row`, for which there is room."""
    if value.start is NULL:
        values.null_count += 1
        clear_bit(&values.valid, row)
    else:
        copy(values.content.start + values.content.size, value.start, value.size)
        values.content.size += value.size
    (<int32_t *> values.bounds.start)[row + 1] = <int32_t> values.content.size


# --- rows ----------------------------------------------------------------------------------------

cdef class Spares:
    cdef Growing[PLACES][MOST_SPARES] pieces
    cdef int[PLACES] counts

    cdef void keep(self, Growing memory) noexcept
    cdef void give(self, Growing *memory) noexcept


cdef class Columns:
    cdef readonly Py_ssize_t rows
    cdef readonly int64_t size_bytes
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly bint is_full
    cdef int64_t byte_limit
    cdef bint wants_offsets
    cdef int64_t timestamp_factor
    cdef int64_t least_timestamp  # which, multiplied, still is an int64
    cdef int64_t largest_timestamp
    cdef bint wants_keys
    cdef bint wants_values
    cdef bint wants_headers
    cdef list row_groups  # but for the latest, which may go on:
    cdef object group_topic
    cdef object group_partition
    cdef object group_timestamp_type
    cdef Py_ssize_t group_rows
    cdef Growing offsets
    cdef Growing timestamps
    cdef Growing timestamp_valid
    cdef Py_ssize_t timestamp_null_count
    cdef Values keys
    cdef Values values
    cdef Growing header_bounds
    cdef Py_ssize_t bounded_rows  # as far as header_bounds is filled
    cdef Growing header_valid
    cdef Py_ssize_t header_row_count
    cdef Py_ssize_t header_count
    cdef Values names
    cdef Values header_values
    # Of the row that is being added: names and values in turn, and what owns names made valid.
    cdef Growing row_headers
    cdef list row_names
    cdef Py_ssize_t row_name_bytes
    cdef Py_ssize_t row_value_bytes
    cdef Spares spares

    cdef int reserve(self, Py_ssize_t rows) except -1
    cdef int64_t read_headers(self, Bytes headers, int32_t count) except -1
    cdef int put_headers(self, int32_t count) except -1
    cdef bint refuse(self, int64_t size_bytes) except -1
    cpdef int end_row_group(
        self, object topic, object partition, object timestamp_type, Py_ssize_t first_row
    ) except -1
    cdef int close_row_group(self) except -1
    cdef void use_spares(self) noexcept
    cdef object finish_offsets(self)
    cdef object finish_timestamps(self)
    cdef object finish_headers(self)
    cdef int make_valid(self, Slice *name) except -1
    cdef void bound_rows(self, Py_ssize_t rows) noexcept


cdef inline bint add(Columns columns, const Parsed *record) except -1:
    """Add a row, for whose fixed parts `reserve` has made room; False if it does not fit.

    Everything that can fail comes first, so that a row is added whole or not at all.
    """
    cdef Py_ssize_t row = columns.rows
    cdef int64_t size_bytes = 0
    cdef bint has_headers = columns.wants_headers and record.header_count != 0
    cdef bint has_timestamp = record.has_timestamp
    if columns.wants_keys and record.key.start is not NULL:
        size_bytes = record.key.size
    if columns.wants_values and record.value.start is not NULL:
        size_bytes += record.value.size
    if has_headers:
        size_bytes += columns.read_headers(record.headers, record.header_count)
    if size_bytes > columns.byte_limit - columns.size_bytes and columns.refuse(size_bytes):
        return False
    if columns.timestamp_factor:
        if not columns.least_timestamp <= record.timestamp <= columns.largest_timestamp:
            has_timestamp = False
        if not has_timestamp and not fill_up(&columns.timestamp_valid, (row >> 3) + 1, 0xFF):
            raise MemoryError
    if columns.wants_keys and not can_put(&columns.keys, row, record.key):
        raise MemoryError
    if columns.wants_values and not can_put(&columns.values, row, record.value):
        raise MemoryError
    if has_headers:
        columns.put_headers(record.header_count)

    if columns.wants_offsets:
        (<int64_t *> columns.offsets.start)[row] = record.offset
    if columns.timestamp_factor:
        if has_timestamp:
            (<int64_t *> columns.timestamps.start)[row] = (
                record.timestamp * columns.timestamp_factor
            )
        else:
            (<int64_t *> columns.timestamps.start)[row] = 0
            columns.timestamp_null_count += 1
            clear_bit(&columns.timestamp_valid, row)
    if columns.wants_keys:
        put(&columns.keys, row, record.key)
    if columns.wants_values:
        put(&columns.values, row, record.value)
    columns.rows = row + 1
    columns.size_bytes += size_bytes
    if columns.first_offset < 0:
        columns.first_offset = record.offset
    columns.last_offset = record.offset
    return True
