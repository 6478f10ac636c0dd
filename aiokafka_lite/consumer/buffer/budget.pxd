"""The fields of byte budgets as members of a C structure, for compiled modules."""

cimport cython


cdef class ByteBudget


cdef class Reservation:
    cdef public ByteBudget _budget
    cdef public bint is_claimed
    cdef public bint is_kept
    cdef public long long size_bytes


cdef class ByteBudget:
    cdef public object _claimant
    cdef public long long _claimed_bytes
    cdef public long long _inflated_bytes
    cdef public long long _known_room_bytes
    cdef public long long _least_notice_bytes
    cdef public bint _is_short
    cdef public object _on_release
    cdef public long long headroom_bytes
    cdef public long long limit_bytes
    cdef public long long pending_bytes
    cdef public long long room_bytes
    cdef public long long source_count
    cdef public long long used_bytes

    cdef long long _kept_free_bytes(self)
    cpdef bint is_ample(self)
    @cython.locals(before_bytes=cython.longlong, room_bytes=cython.longlong)
    cpdef take_for_processing(self, long long size_bytes)
    cpdef long long quota_bytes(self)
