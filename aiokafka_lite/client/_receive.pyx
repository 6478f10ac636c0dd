# cython: language_level=3, boundscheck=False, wraparound=False, binding=True
"""What a connection does when bytes come, in one go where they are one small answer.

`connection.py`, `wire.py` and `frames.py` say what each step is, and keep the state. Whatever is
not one whole frame in the head, and the answer to a request that nobody has given up, is left to
them, and then nothing was changed.

Who has sent a request with a `SmallAnswers` as its `on_done` reads the answer where it came, so
that no frame is made of it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.list cimport PyList_GET_SIZE
from libc.stdint cimport int32_t, uint8_t

from aiokafka_lite._slots cimport get, is_none, is_true, put, slot_offset
from aiokafka_lite.records._cursor cimport read_int32

from aiokafka_lite.client.frames import (
    MOST_SPARE_HEADS,
    SIZE_BYTES,
    SMALLEST_FRAME_BYTES,
    UNCHECKED_BYTES,
    FrameBuffers,
    FrameReader,
    _spare_heads,
)
from aiokafka_lite.client.wire import Wire

cdef list spare_heads = _spare_heads
cdef Py_ssize_t most_spare = MOST_SPARE_HEADS
cdef Py_ssize_t size_bytes = SIZE_BYTES
cdef int32_t least_bytes = SMALLEST_FRAME_BYTES
cdef int32_t most_bytes = UNCHECKED_BYTES

cdef Py_ssize_t reader_rest = slot_offset(FrameReader, "rest")
cdef Py_ssize_t reader_head = slot_offset(FrameReader, "head")
cdef Py_ssize_t reader_end = slot_offset(FrameReader, "_end")
cdef Py_ssize_t reader_missing = slot_offset(FrameReader, "_missing")
cdef Py_ssize_t reader_buffers = slot_offset(FrameReader, "_buffers")
cdef Py_ssize_t buffers_large = slot_offset(FrameBuffers, "large")
cdef Py_ssize_t wire_error = slot_offset(Wire, "error")
cdef Py_ssize_t wire_in_flight = slot_offset(Wire, "in_flight")


cdef class SmallAnswers:
    cdef bint read(self, object exchange, const uint8_t *start, Py_ssize_t size) except -1:
        """Read an answer, without its size; False: it is to be called instead. Changes nothing."""
        return False

    cdef int finish(self, object exchange) except -1:
        """Do what comes of an answer that was read."""
        return 0


# Of `Connection`, and what it does by itself, as `take_over` was told.
cdef Py_ssize_t connection_reader
cdef Py_ssize_t connection_wire
cdef Py_ssize_t connection_is_draining
cdef Py_ssize_t exchange_on_done
cdef Py_ssize_t exchange_waiter
cdef Py_ssize_t exchange_error
cdef object exchange_class
cdef object plain_get_buffer
cdef object plain_buffer_updated


def take_over(connection_cls, exchange_cls):
    """Let connections receive by these functions."""
    global connection_reader, connection_wire, connection_is_draining
    global exchange_on_done, exchange_waiter, exchange_error
    global exchange_class, plain_get_buffer, plain_buffer_updated
    connection_reader = slot_offset(connection_cls, "_reader")
    connection_wire = slot_offset(connection_cls, "wire")
    connection_is_draining = slot_offset(connection_cls, "_is_draining")
    exchange_on_done = slot_offset(exchange_cls, "_on_done")
    exchange_waiter = slot_offset(exchange_cls, "_waiter")
    exchange_error = slot_offset(exchange_cls, "error")
    exchange_class = exchange_cls
    plain_get_buffer = connection_cls.get_buffer
    plain_buffer_updated = connection_cls.buffer_updated
    connection_cls.get_buffer = get_buffer
    connection_cls.buffer_updated = buffer_updated


def get_buffer(self, sizehint):
    reader = get(self, connection_reader)
    if is_none(reader, reader_missing) and is_none(reader, reader_rest) and spare_heads:
        head = spare_heads.pop()
        put(reader, reader_head, head)
        put(reader, reader_missing, head)
        return head
    return plain_get_buffer(self, sizehint)


def buffer_updated(self, Py_ssize_t nbytes):
    try:
        if receive(self, nbytes):
            return
    except Exception as error:
        self.callback_failed(error)
        return
    plain_buffer_updated(self, nbytes)


cdef bint receive(connection, Py_ssize_t nbytes) except -1:
    """Take bytes that are one small answer; False: there is more, or something else, to do."""
    reader = get(connection, connection_reader)
    if (
        is_none(reader, reader_head)
        or not is_none(reader, reader_rest)
        or <Py_ssize_t> get(reader, reader_end)
        or <list> get(get(reader, reader_buffers), buffers_large)
        or nbytes < size_bytes + least_bytes
        or is_true(connection, connection_is_draining)
    ):
        return False
    wire = get(connection, connection_wire)
    if not is_none(wire, wire_error):
        return False
    head = get(reader, reader_head)
    cdef dict in_flight = get(wire, wire_in_flight)
    cdef Py_buffer view
    cdef const uint8_t *start
    cdef int32_t size
    PyObject_GetBuffer(head, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t *> view.buf
        size = read_int32(start)
        if size != nbytes - size_bytes or size > most_bytes:
            return False
        start += size_bytes
        correlation_id = read_int32(start)
        exchange = in_flight.get(correlation_id)
        if (
            type(exchange) is not exchange_class
            or not is_none(exchange, exchange_error)
            or not is_none(exchange, exchange_waiter)
        ):
            return False
        on_done = get(exchange, exchange_on_done)
        if not isinstance(on_done, SmallAnswers):
            return False
        if not (<SmallAnswers> on_done).read(exchange, start, size):
            return False
    finally:
        PyBuffer_Release(&view)
    del in_flight[correlation_id]
    put(reader, reader_head, None)
    put(reader, reader_missing, None)
    if PyList_GET_SIZE(spare_heads) < most_spare:
        spare_heads.append(head)
    (<SmallAnswers> on_done).finish(exchange)
    return True
