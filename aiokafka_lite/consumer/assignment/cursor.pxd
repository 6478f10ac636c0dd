"""The fields of cursors and loans as members of C structures, for compiled modules."""

cimport cython


cdef class Cursor


@cython.final
cdef class Loan:
    cdef readonly Cursor cursor
    cdef readonly long long offset
    cdef readonly int leader_epoch
    cdef readonly bytes topic_id
    cdef readonly long long max_bytes


@cython.final
cdef class Cursor:
    cdef public object _committed
    cdef public int _committed_epoch
    cdef public bytes assigned_id
    cdef public tuple chunks
    cdef public long long corrupt_at
    cdef public int current_epoch
    cdef public tuple epoch_starts
    cdef public int failure_count
    cdef public long long fetched
    cdef public bint has_enough
    cdef public object high_watermark
    cdef public bint is_assigned
    cdef public bint is_paused
    cdef public bint is_withheld
    cdef public bint keeps_pause
    cdef public bint keeps_position
    cdef public object last_fetch_at
    cdef public object last_stable_offset
    cdef public int leader_epoch
    cdef public Loan loan
    cdef public object log_start_offset
    cdef public bytes new_topic_id
    cdef public object next_truncation
    cdef public object place
    cdef public object position
    cdef public object preferred_replica
    cdef public object processed
    cdef public object processed_in
    cdef public object progress
    cdef public object reach
    cdef public double retry_at
    cdef public str retry_reason
    cdef public object search
    cdef public int seeks
    cdef public object sought_to
    cdef public object source
    cdef public object started_at
    cdef public bytes topic_id
    cdef public object tp
    cdef public object undecided
    cdef public int validated_epoch
    cdef public int void_epoch
    cdef public object worked_by

    cpdef add_chunk(self, chunk)
    cpdef remove_chunk(self)
    cpdef tuple drop_chunks(self)
    cpdef answered(self, now, high_watermark, last_stable_offset, log_start_offset)
    cpdef advance(self, next_position, epochs)
    cpdef returned_to(self)
    cpdef process_to(self, offset)
    cpdef Loan lend_on(self, long long offset, long long max_bytes)
    cdef Loan _lend(self, long long max_bytes)
