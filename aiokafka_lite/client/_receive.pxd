# Who takes small answers where they are, compiled.

from libc.stdint cimport uint8_t


cdef class SmallAnswers:
    """Is given as `on_done`; called as one where an answer is not small, or not to be taken so."""

    cdef bint read(self, object exchange, const uint8_t *start, Py_ssize_t size) except -1
    cdef int finish(self, object exchange) except -1
