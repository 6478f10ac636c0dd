"""One checked cursor over bytes: all reading of records, and of small answers, goes through it.

Each function compares what it needs with what is left, `n > end - pos`, and never adds to a pointer
first; False means that it is not there, and then the cursor stands anywhere.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef struct Bytes:
    const uint8_t *pos
    const uint8_t *end


cdef struct Slice:
    const uint8_t *start  # NULL stands for None
    Py_ssize_t size


# What was read of a record.
cdef struct Parsed:
    int64_t offset
    int64_t timestamp
    bint has_timestamp
    Slice key
    Slice value
    int32_t header_count
    Bytes headers
    const uint8_t *end


# What these read has been checked to be there.

cdef inline int32_t read_int32(const uint8_t *at) noexcept nogil:
    return <int32_t> (
        <uint32_t> at[0] << 24 | <uint32_t> at[1] << 16 | <uint32_t> at[2] << 8 | <uint32_t> at[3]
    )


cdef inline int64_t read_int64(const uint8_t *at) noexcept nogil:
    return <int64_t> (
        <uint64_t> <uint32_t> read_int32(at) << 32 | <uint64_t> <uint32_t> read_int32(at + 4)
    )


cdef inline bint byte(Bytes *left, uint8_t *out) noexcept nogil:
    if left.end - left.pos < 1:
        return False
    out[0] = left.pos[0]
    left.pos += 1
    return True


cdef inline const uint8_t *long_varint(
    const uint8_t *pos, const uint8_t *end, uint64_t *out, int max_bytes, uint8_t max_last_byte
) noexcept nogil:
    """Read at most `max_bytes`, of which the last, if it is reached, is small enough to fit.

    Returns where it ends, NULL if it is none. It gets no `Bytes`, so that the compiler may keep
    those of its callers in registers.
    """
    cdef uint64_t raw = 0
    cdef int index
    for index in range(max_bytes):
        if end - pos < 1:
            return NULL
        raw |= <uint64_t> (pos[0] & 0x7F) << (7 * index)
        if pos[0] < 0x80:
            out[0] = raw
            return pos + 1 if index < max_bytes - 1 or pos[0] <= max_last_byte else NULL
        pos += 1
    return NULL


cdef inline bint int32(Bytes *left, int32_t *out) noexcept nogil:
    if left.end - left.pos < 4:
        return False
    out[0] = read_int32(left.pos)
    left.pos += 4
    return True


cdef inline bint int16(Bytes *left, int16_t *out) noexcept nogil:
    if left.end - left.pos < 2:
        return False
    out[0] = <int16_t> (<uint16_t> left.pos[0] << 8 | left.pos[1])
    left.pos += 2
    return True


cdef inline bint int64(Bytes *left, int64_t *out) noexcept nogil:
    if left.end - left.pos < 8:
        return False
    out[0] = read_int64(left.pos)
    left.pos += 8
    return True


cdef inline bint compact_length(Bytes *left, Py_ssize_t *out) noexcept nogil:
    """Read how many bytes or elements follow, -1 for null."""
    cdef uint64_t raw
    cdef const uint8_t *pos = long_varint(left.pos, left.end, &raw, 5, 0x0F)
    if pos is NULL:
        return False
    left.pos = pos
    out[0] = <Py_ssize_t> raw - 1
    return True


cdef inline bint varint(Bytes *left, int32_t *out) noexcept nogil:
    """Read a zigzag varint of 32 bits; most take one byte or two."""
    cdef uint64_t raw
    cdef const uint8_t *pos
    if left.pos < left.end and left.pos[0] < 0x80:
        raw = left.pos[0]
        left.pos += 1
    elif left.end - left.pos >= 2 and left.pos[1] < 0x80:
        raw = (left.pos[0] & 0x7F) | <uint64_t> left.pos[1] << 7
        left.pos += 2
    else:
        pos = long_varint(left.pos, left.end, &raw, 5, 0x0F)
        if pos is NULL:
            return False
        left.pos = pos
    out[0] = <int32_t> (raw >> 1) ^ -<int32_t> (raw & 1)
    return True


cdef inline bint varlong(Bytes *left, int64_t *out) noexcept nogil:
    """Read a zigzag varint of 64 bits; most take one byte or two."""
    cdef uint64_t raw
    cdef const uint8_t *pos
    if left.pos < left.end and left.pos[0] < 0x80:
        raw = left.pos[0]
        left.pos += 1
    elif left.end - left.pos >= 2 and left.pos[1] < 0x80:
        raw = (left.pos[0] & 0x7F) | <uint64_t> left.pos[1] << 7
        left.pos += 2
    else:
        pos = long_varint(left.pos, left.end, &raw, 10, 0x01)
        if pos is NULL:
            return False
        left.pos = pos
    out[0] = <int64_t> (raw >> 1) ^ -<int64_t> (raw & 1)
    return True


cdef inline bint slice_(Bytes *left, int32_t size, Slice *out) noexcept nogil:
    """Take `size` bytes, or None for -1."""
    if size == -1:
        out.start = NULL
        out.size = -1
        return True
    if size < 0 or size > left.end - left.pos:
        return False
    out.start = left.pos
    out.size = size
    left.pos += size
    return True


cdef inline bint varint_slice(Bytes *left, Slice *out) noexcept nogil:
    cdef int32_t size
    return varint(left, &size) and slice_(left, size, out)
