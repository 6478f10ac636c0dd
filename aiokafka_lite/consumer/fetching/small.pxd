"""The fields of the settler of small responses as members of a C structure."""

cimport cython

from aiokafka_lite.client.backoff cimport Backoff
from aiokafka_lite.client.channel cimport Channel
from aiokafka_lite.client.wire cimport Asked, Wire
from aiokafka_lite.consumer.assignment.cursor cimport Cursor
from aiokafka_lite.consumer.buffer.budget cimport ByteBudget, Reservation
from aiokafka_lite.consumer.buffer.chunk cimport chunk_of
from aiokafka_lite.consumer.buffer.chunk_queue cimport ChunkQueue
from aiokafka_lite.consumer.buffer.waiter cimport RecordWaiter, Waiters
from aiokafka_lite.consumer.fetching._small cimport SmallPart, SmallCodec
from aiokafka_lite.consumer.fetching.choice cimport Choice
from aiokafka_lite.consumer.fetching.counts cimport NodeCounts
from aiokafka_lite.consumer.fetching.in_flight cimport InFlight
from aiokafka_lite.consumer.fetching.session cimport FetchSession
from aiokafka_lite.consumer.gate cimport Gate

cdef int FIRST_VERSION
cdef double BRIEF_S
cdef object OPEN


@cython.final
cdef class SmallAnswers:
    cdef public Backoff _backoff
    cdef public ByteBudget _budget
    cdef public object _buffer
    cdef public Choice _choice
    cdef public object _clock
    cdef public SmallCodec _codec
    cdef public NodeCounts _counts
    cdef public object _delivery
    cdef public bint _deserializes
    cdef public Gate _gate
    cdef public bint _is_application_brief
    cdef public long long _max_bytes
    cdef public long long _max_partition_bytes
    cdef public double _max_wait_s
    cdef public ChunkQueue _queue
    cdef public InFlight _request
    cdef public FetchSession _session
    cdef public object _settle
    cdef public object _source
    cdef public Waiters _waiters
    cdef readonly long long taken_count

    @cython.locals(connection=Channel)
    cdef bint _take(self, Asked exchange) except -1
    @cython.locals(session=FetchSession, request=InFlight)
    cdef bint _is_steady(self, Asked exchange, Wire wire, double now) except -1
    @cython.locals(reservation=Reservation, wanted_bytes=longlong)
    cdef bint _is_as_much_reserved(self) except -1
    @cython.locals(waiter=RecordWaiter, is_written=bint, woken_at=double)
    cdef _finish(self, Asked exchange, Channel connection, list parts, now)
    @cython.locals(part=SmallPart, cursor=Cursor, size_bytes=Py_ssize_t)
    cdef Py_ssize_t _settle_all(self, list parts, now) except -1
    cdef _buffer_and_lend(self, Cursor cursor, SmallPart part)
    @cython.locals(session=FetchSession, reservation=Reservation)
    cdef bytes _next_request(self, Asked exchange, Wire wire, double now)

