# cython: language_level=3, boundscheck=False, wraparound=False
"""The short way of small responses: settle one, wake the waiting read, send the next request.

A consumer with a trickle of records spends its time here. The state, and the steps, are those of
`answer.py`, `source.py`, `session.py`, `buffer.py` and `wire.py`. They also handle each response
that is not plain. Tests compare both ways field by field. No state changes before a response is
known to be plain:

- The session is incremental, and its next request has the same partitions and reservation. No
  cursor is ready, recalled, claimed, backing off or read from a follower.
- The response has no errors, throttling, leader hints and aborted transactions. Its partitions
  have no buffered records.
- The batches are plain (`records.decoders.PlainBatchReader`), to their end.
- A read of all partitions waits.

Records are decoded at once, so the response's memory is not kept.

The next request is written last, because writing takes longest: it wakes the broker. If the
application is slow with its records, it is written before these are returned.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from aiokafka_lite.client.backoff cimport Backoff
from aiokafka_lite.client.wire cimport Asked, Wire
from aiokafka_lite.consumer.assignment.cursor cimport Cursor, Loan
from aiokafka_lite.consumer.buffer.waiter cimport RecordWaiter
from aiokafka_lite.consumer.buffer.budget cimport ByteBudget, Reservation
from aiokafka_lite.consumer.buffer.chunk cimport chunk_of
from aiokafka_lite.consumer.buffer.chunk_queue cimport ChunkQueue
from aiokafka_lite.consumer.fetching.choice cimport Choice
from aiokafka_lite.consumer.fetching.counts cimport NodeCounts
from aiokafka_lite.consumer.fetching.in_flight cimport InFlight
from aiokafka_lite.consumer.fetching.session cimport FetchSession
from aiokafka_lite.consumer.gate cimport Gate
from aiokafka_lite.records._cursor cimport Bytes, byte, compact_length, int16, int32, int64
from aiokafka_lite.records._decode cimport PlainBatches

from aiokafka_lite.client.wire import WireState
from aiokafka_lite.records import checksum

cdef enum:
    MOST_BYTES = 16 * 1024
    MOST_PARTITIONS = 16
    UUID_BYTES = 16
    FETCH = 1
    # The first version with topic ids (KIP-516), and the first without a replica id.
    FIRST_VERSION = 13
    FIRST_WITHOUT_REPLICA = 15
    # Sizes in a request: all around the topics, a topic without its partitions, a partition.
    REQUEST_BYTES = 40
    TOPIC_BYTES = 18
    PARTITION_BYTES = 33

cdef object OPEN = WireState.OPEN
cdef object POISONED = WireState.POISONED
# If the application takes longer with its records, the next request is written before.
cdef double BRIEF_S = 0.0002

# --- Fields of responses and requests --------------------------------------------------------
cdef struct Part:
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    int64_t next_offset
    int32_t leader_epoch
    const uint8_t *records
    Py_ssize_t records_size


cdef inline bint no_tags(Bytes *left) noexcept nogil:
    cdef uint8_t count
    return byte(left, &count) and count == 0


cdef inline uint8_t *put16(uint8_t *at, int32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 8)
    at[1] = <uint8_t> value
    return at + 2


cdef inline uint8_t *put32(uint8_t *at, int32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 24)
    at[1] = <uint8_t> (value >> 16)
    at[2] = <uint8_t> (value >> 8)
    at[3] = <uint8_t> value
    return at + 4


cdef inline uint8_t *put64(uint8_t *at, int64_t value) noexcept nogil:
    return put32(put32(at, <int32_t> (value >> 32)), <int32_t> value)


@cython.final
cdef class SmallAnswers:
    """Settles the small responses of one source, and leaves all others to `Source._answered`."""

    cdef object source
    cdef object settle
    cdef FetchSession session
    cdef Choice choice
    cdef InFlight request
    cdef NodeCounts counts
    cdef object buffer
    cdef Gate gate
    cdef ByteBudget budget
    cdef Backoff backoff
    cdef object replicas
    cdef object delivery
    cdef object clock
    # Created with the first records, because it loads the checksum library.
    cdef PlainBatches batches
    cdef bint check_crcs
    cdef bint is_read_committed
    # The buffer's own: it changes them but never replaces them.
    cdef ChunkQueue queue
    cdef dict waiters
    cdef bytes client_id
    cdef int32_t max_wait_ms
    cdef double max_wait_s
    cdef int32_t min_bytes
    cdef int32_t isolation_level
    cdef int64_t max_bytes
    cdef int64_t max_partition_bytes
    # The number of plain responses.
    cdef readonly long long taken_count
    # Whether it took little time with its latest records.
    cdef bint is_application_brief
    # The response that was read.
    cdef double now
    cdef int count
    cdef Part parts[MOST_PARTITIONS]
    cdef list asked
    cdef list decoded

    def __init__(self, source, sources, session, counts):
        config, buffer = sources.config, sources.buffer
        self.source = source
        self.settle = source._answered
        self.session = session
        self.counts = counts
        self.buffer = buffer
        self.gate = buffer._gate
        self.budget = sources.budget
        self.backoff = source._backoff
        self.replicas = sources.replicas
        self.delivery = buffer.delivery
        self.clock = source._loop.time
        self.check_crcs = config.check_crcs
        self.is_read_committed = config.is_read_committed
        self.queue = buffer.queue
        self.waiters = buffer._waiters
        self.choice = source.choice
        self.request = source._in_flight
        self.client_id = config.client_id.encode()
        self.max_wait_ms = config.fetch_max_wait_ms
        self.max_wait_s = config.fetch_max_wait_ms / 1000
        self.min_bytes = config.fetch_min_bytes
        self.isolation_level = config.isolation_level_code
        self.max_bytes = config.fetch_max_bytes
        self.max_partition_bytes = config.max_partition_fetch_bytes
        self.asked = []
        self.decoded = []

    def __call__(self, exchange):
        if isinstance(exchange, Asked) and self.read(exchange):
            self.finish(exchange)
        else:
            self.settle(exchange)

    # --- Is it plain? ------------------------------------------------------------------------
    cdef bint read(self, Asked exchange) except -1:
        """Read and decode a plain response. Changes no state, and returns False for any other."""
        cdef Py_buffer view
        if exchange.frame is None or len(exchange.frame) > MOST_BYTES:
            return False
        self.now = self.clock()
        if not self.is_steady(exchange) or self.now >= <double> self.replicas.lease_ends_at:
            return False
        PyObject_GetBuffer(exchange.frame, &view, PyBUF_SIMPLE)
        try:
            if self.read_answer(<const uint8_t *> view.buf, view.len) and self.decode():
                return True
        finally:
            PyBuffer_Release(&view)
        self.forget()
        return False

    cdef int forget(self) except -1:
        """Release the response that was read."""
        self.asked.clear()
        self.decoded.clear()
        return 0

    cdef bint is_steady(self, Asked exchange) except -1:
        """Whether the next request equals this one but for offsets, and a read waits for all."""
        source = self.source
        cdef FetchSession session = self.session
        cdef Wire wire = exchange._wire
        if (
            self.request.exchange is not exchange
            or not self.choice.is_settled()
            or session._changed
            or session._forgotten
            or not self.waiters
            or source._is_closed
            or source._is_throttled
            or source._error is not None
            or self.backoff.failures
            or not session._epoch
            or session._unnamed_count
            or self.buffer.sought
            or self.gate.holds
            or wire.state is not OPEN
            or wire.muted_until > self.now
            or exchange.version < FIRST_VERSION
        ):
            return False
        for wanted in self.waiters.values():
            if wanted:
                return False
        return self.is_as_much_reserved()

    cdef bint is_as_much_reserved(self) except -1:
        """Whether the next request would get the same reservation."""
        cdef ByteBudget budget = self.budget
        cdef Reservation reservation = self.request.reservation
        if (
            reservation is None
            or budget._is_short
            or reservation.is_claimed
            or budget.headroom_bytes
        ):
            return False
        cdef int64_t quota = max(1, budget.limit_bytes // (2 * max(1, budget.source_count)))
        cdef int64_t wanted = min(self.max_bytes, len(self.session._loans) * self.max_partition_bytes)
        return reservation.size_bytes == min(wanted, quota)

    cdef bint read_answer(self, const uint8_t *start, Py_ssize_t size) except -1:
        """Parse a whole response."""
        cdef Bytes left
        cdef int32_t throttle_ms
        cdef int16_t error_code
        cdef int32_t number
        cdef Py_ssize_t topic_count
        cdef Py_ssize_t partition_count
        left.pos = start
        left.end = start + size
        if not (
            int32(&left, &number)  # the correlation id
            and no_tags(&left)
            and int32(&left, &throttle_ms)
            and throttle_ms == 0
            and int16(&left, &error_code)
            and error_code == 0
            and int32(&left, &number)
            and number != 0
            and number == self.session._id
            and compact_length(&left, &topic_count)
        ):
            return False
        self.count = 0
        while topic_count > 0:
            topic_count -= 1
            if left.end - left.pos < UUID_BYTES:
                return False
            topic_id = PyBytes_FromStringAndSize(<const char *> left.pos, UUID_BYTES)
            left.pos += UUID_BYTES
            name = self.session._topic_names.get(topic_id)
            if name is None or not compact_length(&left, &partition_count):
                return False
            while partition_count > 0:
                partition_count -= 1
                if not self.read_partition(&left, name):
                    return False
            if not no_tags(&left):
                return False
        return no_tags(&left) and left.pos == left.end

    cdef bint read_partition(self, Bytes *left, object name) except -1:
        cdef int32_t index
        cdef int16_t error_code
        cdef int32_t replica
        cdef Py_ssize_t aborted_count
        cdef Part *part
        if self.count == MOST_PARTITIONS:
            return False
        part = &self.parts[self.count]
        if not (
            int32(left, &index)
            and int16(left, &error_code)
            and error_code == 0
            and int64(left, &part.high_watermark)
            and int64(left, &part.last_stable_offset)
            and int64(left, &part.log_start_offset)
            and compact_length(left, &aborted_count)
            and aborted_count <= 0
            and int32(left, &replica)
            and replica == -1
            and compact_length(left, &part.records_size)
            and part.records_size <= left.end - left.pos
        ):
            return False
        part.records = left.pos
        if part.records_size > 0:
            left.pos += part.records_size
        if not no_tags(left):
            return False
        cdef Loan loan = self.session._loans.get((name, index))
        if loan is None:
            return False
        cdef Cursor cursor = loan.cursor
        if (
            cursor.loan is not loan
            or cursor.chunks
            or cursor.retry_at
            or cursor.corrupt_at >= 0
            or cursor.preferred_replica is not None
        ):
            return False
        for other in self.asked:
            if other is loan:
                return False
        self.asked.append(loan)
        self.count += 1
        return True

    cdef bint decode(self) except -1:
        """Decode all records of the response."""
        cdef int index
        cdef Part *part
        cdef list records
        cdef Loan loan
        cdef PlainBatches batches = self.batches
        if batches is None:
            crc32c = checksum.loaded() if self.check_crcs else None
            batches = self.batches = PlainBatches(
                "", 0, b"", crc32c, self.is_read_committed
            )
        for index in range(self.count):
            part = &self.parts[index]
            if part.records_size <= 0:
                self.decoded.append(None)
                continue
            loan = <Loan> self.asked[index]
            tp = <tuple> loan.cursor.tp
            records = []
            try:
                if not batches.open_at(
                    (<tuple> tp)[0],
                    (<tuple> tp)[1],
                    part.records,
                    part.records_size,
                    loan.offset,
                ):
                    return False
                if not batches.take_records(records, MOST_BYTES):
                    return False
            except Exception:
                return False  # the long way raises it again
            if batches.pos != part.records_size or not records or batches.epoch_count > 1:
                return False
            part.next_offset = batches.next_offset
            part.leader_epoch = batches.leader_epoch
            self.decoded.append(records)
        return True

    # --- Take it -----------------------------------------------------------------------------
    cdef int finish(self, Asked exchange) except -1:
        now = self.now
        cdef RecordWaiter waiter = None
        cdef Wire wire = exchange._wire
        cdef bytes request
        cdef double woken_at
        cdef bint is_written = False
        try:
            if self.settle_all(now):
                waiter = self.wake_others()
            request = self.next_request(exchange, wire, now)
            if waiter is None or not self.is_application_brief:
                self.write(exchange, wire, request)
                is_written = True
        except Exception as error:  # a bug: the task of the source raises it
            self.forget()
            self.source.broken(error)
            return 0
        self.forget()
        self.taken_count += 1
        if waiter is None:
            return 0
        woken_at = self.clock()
        try:
            waiter.wake()  # the application's own code
        finally:  # also after sys.exit() in it
            now = self.clock()
            self.is_application_brief = <double> now - woken_at < BRIEF_S
            if not is_written:
                if not self.is_application_brief:  # the broker's time begins now
                    exchange.begin_time(now)
                    self.request.begin(self.session._epoch, now, self.max_wait_s)
                self.write(exchange, wire, request)
        return 0

    cdef Py_ssize_t settle_all(self, object now) except -1:
        """Settle all partitions; return the size of their records in bytes."""
        cdef int index
        cdef Part *part
        cdef Cursor cursor
        cdef Py_ssize_t size_bytes = 0
        for index in range(self.count):
            part = &self.parts[index]
            cursor = (<Loan> self.asked[index]).cursor
            cursor.answered(
                now,
                part.high_watermark,
                part.last_stable_offset if part.last_stable_offset >= 0 else None,
                part.log_start_offset,
            )
            if part.records_size > 0:
                size_bytes += part.records_size
                self.buffer_and_lend(cursor, part, self.decoded[index])
        cdef double now_s = now
        self.counts.answered(now_s, now_s - <double> self.request.sent_at)
        if size_bytes:
            self.counts.records_came(size_bytes)
        return size_bytes

    cdef int buffer_and_lend(self, Cursor cursor, Part *part, list records) except -1:
        """Buffer the records of a partition, and lend it from the offset after them."""
        chunk = chunk_of(
            cursor,
            self.delivery,
            records,
            part.next_offset,
            () if part.leader_epoch == -1 else ((cursor.fetched, part.leader_epoch),),
        )
        self.queue.append(chunk)
        # Partitions that had records go to the end.
        self.session.renew(cursor.lend_on(part.next_offset, self.max_partition_bytes))
        return 0

    cdef RecordWaiter wake_others(self):
        """Wake the waiting reads; return the one that can continue in this callback.

        There is one `RecordWaiter` at most: a steady read begins only if no other is in progress.
        """
        cdef RecordWaiter compiled = None
        for waiter in self.waiters:
            if type(waiter) is not RecordWaiter:
                if not waiter.done():
                    waiter.set_result(None)
            elif not (<RecordWaiter> waiter).is_done:
                compiled = waiter
        return compiled

    cdef bytes next_request(self, Asked exchange, Wire wire, object now):
        """Put the next request in flight with the same exchange; return its bytes.

        Only its offsets differ.
        """
        cdef FetchSession session = self.session
        session.succeeded(session._id)
        if self.source._quick is not None or self.source._retry_at is not None:
            self.source.asks_again()
        self.request.begin(session._epoch, now, self.max_wait_s)
        correlation_id = wire.next_id()
        encoded = self.encode(exchange.version, correlation_id)
        session._changed.clear()
        wire.put_in_flight(correlation_id, exchange, now)
        connection = (<object> exchange)._connection
        if exchange.deadline < <double> connection._timer_at:
            connection._set_timer(exchange.deadline)
        return encoded

    cdef int write(self, object exchange, Wire wire, bytes request) except -1:
        """Write the next request, unless the connection was lost."""
        connection = exchange._connection
        transport = connection._transport
        if transport is None or wire.state is POISONED:
            return 0
        try:
            transport.write(request)
        except (OSError, RuntimeError) as error:  # uvloop: RuntimeError once the transport closed
            connection._fail(wire.lost(error, is_sending=True))
        return 0

    cdef bytes encode(self, int32_t version, int32_t correlation_id):
        """Encode a request with the partitions whose offsets have changed."""
        cdef Py_ssize_t name_size = len(self.client_id)
        cdef Py_ssize_t size = REQUEST_BYTES + name_size + len(self.session._changed) * PARTITION_BYTES
        cdef dict topics = None
        cdef object only_id = None
        cdef object topic_id
        cdef Loan loan
        cdef list named = []
        for tp in self.session._changed:
            loan = self.session._loans[tp]
            topic_id = loan.topic_id
            if topics is not None:
                topics.setdefault(topic_id, []).append(loan)
            elif only_id is None or only_id == topic_id:
                only_id = topic_id
                named.append(loan)
            else:
                topics = {only_id: named, topic_id: [loan]}
        if topics is None:
            topics = {only_id: named} if named else {}
        size += len(topics) * TOPIC_BYTES
        if version < FIRST_WITHOUT_REPLICA:
            size += 4
        cdef bytes encoded = PyBytes_FromStringAndSize(NULL, size)
        cdef uint8_t *at = <uint8_t *> PyBytes_AS_STRING(encoded)
        at = put32(at, <int32_t> size - 4)
        at = put16(at, FETCH)
        at = put16(at, version)
        at = put32(at, correlation_id)
        at = put16(at, <int32_t> name_size)
        memcpy(at, PyBytes_AS_STRING(self.client_id), name_size)
        at += name_size
        at[0] = 0
        at += 1
        if version < FIRST_WITHOUT_REPLICA:
            at = put32(at, -1)
        at = put32(at, self.max_wait_ms)
        at = put32(at, self.min_bytes)
        at = put32(at, max(1, <int32_t> self.request.reservation.size_bytes))
        at[0] = <uint8_t> self.isolation_level
        at = put32(at + 1, <int32_t> self.session._id)
        at = put32(at, <int32_t> self.session._epoch)
        at[0] = <uint8_t> (len(topics) + 1)
        at += 1
        for topic_id, loans in topics.items():
            memcpy(at, PyBytes_AS_STRING(topic_id), UUID_BYTES)
            at += UUID_BYTES
            at[0] = <uint8_t> (len(<list> loans) + 1)
            at += 1
            for loan in <list> loans:
                tp = loan.cursor.tp
                at = put32(at, <int32_t> (<tuple> tp)[1])
                at = put32(at, <int32_t> loan.leader_epoch)
                at = put64(at, loan.offset)
                at = put32(at, -1)  # the last fetched epoch
                at = put64(at, -1)  # the log's start, for followers
                at = put32(at, <int32_t> loan.max_bytes)
                at[0] = 0
                at += 1
            at[0] = 0
            at += 1
        at[0] = 1  # no forgotten topics
        at[1] = 1  # no rack
        at[2] = 0
        return encoded
