"""One partition's batches: order, sequences, and what a gap needs, without any network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.errors import KafkaConnectionError, KafkaError, OutOfOrderSequenceNumber
from aiokafka_lite.producing.batch import (
    MAX_SEQUENCE,
    BatchState,
    ProducerBatch,
    ProducerIdAndEpoch,
    sequence_after,
)
from aiokafka_lite.producing.partition_queue import MAX_IN_FLIGHT, TIMER_SLACK_S, PartitionQueue
from aiokafka_lite.records import read_header
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.structs import RecordMetadata, TopicPartition
from tests.producing.model_log import Answer, ModelLog, Sent

TP = TopicPartition("t", 0)
ME = ProducerIdAndEpoch(7, 0)
LOST = KafkaConnectionError("lost")
GAP = OutOfOrderSequenceNumber("gap")


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def batch_of(loop: asyncio.AbstractEventLoop, records: int = 1) -> ProducerBatch:
    batch = ProducerBatch(TP, 0.0, codec=Codec.NONE, is_transactional=False)
    for _ in range(records):
        future: asyncio.Future[RecordMetadata] = loop.create_future()
        batch.append(0, None, b"v", (), 40, future)
    return batch


def queue_with(loop: asyncio.AbstractEventLoop, batches: int, records: int = 1) -> PartitionQueue:
    """A queue with batches that are waiting, behind one that was acknowledged."""
    queue = PartitionQueue(TP)
    queue.waiting.extend(batch_of(loop, records) for _ in range(batches + 1))
    queue.send(queue.waiting[0], ME)
    queue.acknowledge(queue.numbered[0])
    return queue


def send_all(queue: PartitionQueue, identity: ProducerIdAndEpoch = ME) -> list[ProducerBatch]:
    sent = []
    while (batch := queue.next_batch(0.0)) is not None:
        queue.send(batch, identity)
        sent.append(batch)
    return sent


# --- Sequences -----------------------------------------------------------------------------
def test_batches_are_numbered_one_after_the_other(loop: asyncio.AbstractEventLoop) -> None:
    sent = send_all(queue_with(loop, 3, records=2))
    assert [batch.base_sequence for batch in sent] == [2, 4, 6]
    header = read_header(memoryview(sent[2].encoded()), 0)
    assert header is not None
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 6)


def test_sequences_go_round() -> None:
    assert sequence_after(MAX_SEQUENCE, 1) == 0
    assert sequence_after(MAX_SEQUENCE - 1, 5) == 3


def test_no_more_batches_are_in_flight_than_a_broker_remembers(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 7)
    sent = send_all(queue)
    assert len(sent) == MAX_IN_FLIGHT
    queue.acknowledge(sent[0])
    assert send_all(queue)[0].base_sequence == 6


def test_the_first_batch_of_a_producer_goes_alone(loop: asyncio.AbstractEventLoop) -> None:
    queue = PartitionQueue(TP)
    queue.waiting.extend(batch_of(loop) for _ in range(3))
    (first,) = send_all(queue)
    queue.retry(first, LOST, 0.0)
    assert send_all(queue) == [first]
    queue.acknowledge(first)
    assert len(send_all(queue)) == 2


def test_a_retry_has_the_same_bytes(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_with(loop, 1)
    (batch,) = send_all(queue)
    before = batch.encoded()
    queue.retry(batch, LOST, 0.0)
    assert send_all(queue) == [batch]
    assert batch.encoded() is before


# --- Retries -------------------------------------------------------------------------------
def test_what_failed_goes_before_anything_new_and_one_at_a_time(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 4)
    first, second = queue.waiting[0], queue.waiting[1]
    for batch in (first, second):
        queue.send(batch, ME)
    for batch in (first, second):
        queue.retry(batch, LOST, 0.0)
    assert send_all(queue) == [first]
    queue.acknowledge(first)
    assert send_all(queue)[0] is second
    assert [batch.base_sequence for batch in queue.numbered] == [2, 3, 4]


def test_nothing_overtakes_what_backs_off(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_with(loop, 2)
    batch = queue.waiting[0]
    queue.send(batch, ME)
    queue.retry(batch, LOST, 1.0)
    assert queue.next_batch(0.99) is None
    assert queue.next_batch(1.0 - TIMER_SLACK_S) is batch  # timers are early


def test_a_batch_behind_a_failed_one_is_out_of_order_without_a_gap(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 2)
    first, second = send_all(queue)
    queue.retry(first, LOST, 0.0)
    queue.refuse_as_out_of_order(second, GAP, 0.0)
    assert not queue.is_broken
    assert send_all(queue) == [first]


# --- Gaps ----------------------------------------------------------------------------------
def test_the_first_batch_out_of_order_is_a_gap_and_is_numbered_anew(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 3)
    first, second, third = send_all(queue)
    queue.acknowledge(first)
    queue.refuse_as_out_of_order(second, GAP, 0.0)
    assert queue.next_batch(0.0) is None
    assert not queue.can_be_mended  # the third may still be answered
    queue.refuse_as_out_of_order(third, GAP, 0.0)
    assert queue.can_be_mended
    queue.adopt(ME._replace(epoch=1))
    assert [second.base_sequence, third.base_sequence] == [0, 1]
    header = read_header(memoryview(second.encoded()), 0)
    assert header is not None
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


def test_a_lost_batch_that_was_written_leaves_no_gap(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_with(loop, 3)
    first, second = queue.waiting[0], queue.waiting[1]
    for batch in (first, second):
        queue.send(batch, ME)
    queue.retry(first, LOST, 0.0)
    queue.expire(first)
    assert queue.next_batch(0.0) is None  # nothing new as long as nobody knows
    queue.acknowledge(second)  # so the first was written, too
    assert not queue.is_broken
    (third,) = send_all(queue)
    assert (third.base_sequence, third.identity) == (3, ME)


def test_a_lost_batch_with_nothing_behind_it_is_taken_for_a_gap(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 2)
    batch = queue.waiting[0]
    queue.send(batch, ME)
    queue.retry(batch, LOST, 0.0)
    queue.expire(batch)
    assert queue.can_be_mended
    queue.adopt(ME._replace(epoch=1))
    (following,) = send_all(queue, ME._replace(epoch=1))
    assert (following.base_sequence, following.identity) == (0, ME._replace(epoch=1))
    queue.retry(following, LOST, 0.0)
    queue.expire(following)
    assert queue.can_be_mended


def test_a_batch_that_expires_on_the_wire_still_tells_of_a_gap(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 2)
    batch = queue.waiting[0]
    queue.send(batch, ME)
    queue.expire(batch)
    assert batch.state is BatchState.ON_WIRE
    queue.acknowledge(batch)
    assert not queue.is_broken
    assert send_all(queue)[0].base_sequence == 2


def test_a_batch_that_expires_on_the_wire_is_not_tried_again(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 1)
    (batch,) = send_all(queue)
    queue.expire(batch)
    queue.retry(batch, LOST, 0.0)
    assert batch.state is BatchState.DONE
    assert queue.can_be_mended


def test_another_epoch_is_taken_up_once_the_old_one_is_over(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 2)
    first = queue.waiting[0]
    queue.send(first, ME)
    later = ME._replace(epoch=3)
    (second,) = send_all(queue, later)
    assert (second.identity, second.base_sequence) == (ME, 2)
    queue.acknowledge(first)
    queue.acknowledge(second)
    queue.waiting.append(batch_of(loop))
    (third,) = send_all(queue, later)
    assert (third.identity, third.base_sequence) == (later, 0)


def test_batches_in_flight_keep_their_epoch(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_with(loop, 1)
    (batch,) = send_all(queue)
    with pytest.raises(AssertionError, match="in flight"):
        queue.adopt(ME._replace(epoch=1))
    with pytest.raises(AssertionError, match="not empty"):
        queue.reset()
    assert (queue.identity, batch.identity) == (ME, ME)
    queue.acknowledge(batch)
    queue.is_in_transaction = True
    queue.reset()
    assert (queue.is_broken, queue.is_doubtful, queue.is_in_transaction) == (False,) * 3


def test_the_first_batch_of_another_epoch_goes_alone(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_with(loop, 4)
    for batch in send_all(queue):
        queue.acknowledge(batch)
    queue.waiting.extend(batch_of(loop) for _ in range(4))
    later = ME._replace(epoch=1)
    (first,) = send_all(queue, later)
    queue.acknowledge(first)
    assert len(send_all(queue, later)) == 3


def test_parts_of_a_batch_have_its_sequences(loop: asyncio.AbstractEventLoop) -> None:
    queue = queue_with(loop, 2, records=4)
    first, second = send_all(queue)
    parts = first.split(first.size_bytes // 2, Codec.NONE)
    queue.replace(first, parts)
    queue.refuse_as_out_of_order(second, GAP, 0.0)
    assert [part.base_sequence for part in parts] == list(range(4, 8, parts[0].count))
    for part in (*parts, second):
        assert send_all(queue) == [part]
        queue.acknowledge(part)
    assert queue.is_empty
    assert not queue.is_broken


# --- Another log ---------------------------------------------------------------------------
def test_the_first_batch_for_a_recreated_topic_goes_alone(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = queue_with(loop, 6)
    old = [queue.waiting[0], queue.waiting[1]]
    for batch in old:
        queue.send(batch, ME)
    queue.begin_log(is_broken=False)
    for batch in old:  # of the old log, or of the new one
        assert send_all(queue) == []
        queue.acknowledge(batch)
    (first,) = send_all(queue)
    assert (first.base_sequence, first.identity) == (3, ME)
    queue.acknowledge(first)
    assert len(send_all(queue)) == 3


# --- Every interleaving ----------------------------------------------------------------------
class Course:
    """A queue, a log, and connections between them that lose what they are told to.

    The latest connection is to the leader. The others are to earlier ones, which answer no more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = PartitionQueue(TP)
        self.logs = [ModelLog()]
        # The one that metadata have brought news of.
        self.known_log = self.logs[0]
        self.identity = ME
        self._loop = loop
        self._numbers = count()
        self._values: dict[int, tuple[int, ...]] = {}
        self._batches: list[ProducerBatch] = []
        # Sent, in order: what the log said of each, None before it has seen it.
        self.wire: list[tuple[Sent, Answer | None]] = []
        # Sent to earlier leaders, the oldest first.
        self.old_wires: list[list[Sent]] = []
        self.acknowledged: list[int] = []
        self.given_up: set[int] = set()

    def add(self, records: int) -> None:
        batch = batch_of(self._loop, records)
        self._values[id(batch)] = tuple(next(self._numbers) for _ in range(records))
        self._batches.append(batch)  # so that no id is used twice
        self.queue.waiting.append(batch)

    @property
    def added(self) -> set[int]:
        return {value for values in self._values.values() for value in values}

    def send(self) -> None:
        batch = self.queue.next_batch(0.0)
        if batch is not None:
            self.queue.send(batch, self.identity)
            assert batch.identity is not None
            values = self._values[id(batch)]
            sent = Sent(batch, batch.identity, batch.base_sequence, values, self.known_log)
            self.wire.append((sent, None))

    def reach_log(self) -> None:
        for at, (sent, answer) in enumerate(self.wire):
            if answer is None:
                is_there = sent.log is self.logs[-1]
                self.wire[at] = (sent, sent.log.take(sent) if is_there else Answer.DELETED)
                return

    def write(self, records: int) -> None:
        """Add a batch, and let the leader answer one."""
        self.add(records)
        self.send()
        self.reach_log()
        self.answer()

    def recreate(self) -> None:
        self.logs.append(ModelLog())

    def hear_of_log(self) -> None:
        if self.known_log is not self.logs[-1]:
            self.known_log = self.logs[-1]
            self.queue.begin_log(is_broken=False)

    def answer(self) -> None:
        if not self.wire or self.wire[0][1] is None:
            return
        sent, answer = self.wire.pop(0)
        batch = sent.batch
        if answer is Answer.OUT_OF_ORDER:
            self.queue.refuse_as_out_of_order(batch, GAP, 0.0)
        elif answer is Answer.DELETED:
            self.queue.retry(batch, LOST, 0.0)
        else:
            assert answer is not Answer.OLD_EPOCH
            self.queue.acknowledge(batch)
            if not batch.is_expired:
                self.acknowledged += sent.values
        self.mend()

    def refuse(self, error: KafkaError | None) -> None:
        """The first that the log has not seen is refused without a look at its sequence."""
        if self.wire and self.wire[0][1] is None:
            sent, _ = self.wire.pop(0)
            if error is None:
                self.given_up.update(sent.values)
                self.queue.give_up(sent.batch)
            else:
                self.queue.retry(sent.batch, error, 0.0)
            self.mend()

    def cut(self, reached: int) -> None:
        """Lose the connection after so many of the requests have reached the log."""
        for _ in range(reached):
            self.reach_log()
        lost, self.wire = self.wire, []
        for sent, _ in lost:
            self.queue.retry(sent.batch, LOST, 0.0)
        self.mend()

    def move(self, reached: int) -> None:
        """Make another node the leader after so many of the requests have reached the log."""
        for _ in range(reached):
            self.reach_log()
        self.old_wires.append([sent for sent, _ in self.wire])
        self.wire = []

    def cut_old(self) -> None:
        """Lose the connection to the oldest of the earlier leaders."""
        if self.old_wires:
            for sent in self.old_wires.pop(0):
                self.queue.retry(sent.batch, LOST, 0.0)
            self.mend()

    def expire(self) -> None:
        under_way = [*self.queue.numbered, *self.queue.waiting]
        batch = next((each for each in under_way if not each.is_expired), None)
        if batch is not None:
            self.given_up.update(self._values[id(batch)])
            self.queue.expire(batch)
            self.mend()

    def mend(self) -> None:
        if self.queue.can_be_mended:
            if self.queue.identity == self.identity:
                self.identity = self.identity._replace(epoch=self.identity.epoch + 1)
            self.queue.adopt(self.identity)

    def finish(self) -> None:
        self.hear_of_log()
        while self.old_wires:
            self.cut_old()
        for _ in range(1000):
            if self.queue.is_empty:
                return
            self.send()
            self.reach_log()
            self.answer()
        raise AssertionError(f"{self.queue!r} never ends")


# Some are rare, so that there is something under way when they come.
OFTEN = ["add", "send", "send", "reach_log", "answer", "refuse"]
MANY = ["write"] * 8
RARE = ["expire", "recreate", "hear_of_log"]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from([*OFTEN, *OFTEN, *OFTEN, *MANY, "cut", "cut", "move", "cut_old", *RARE]),
        st.integers(1, 3),
    ),
    max_size=120,
)


@given(actions=ACTIONS)
def test_whatever_is_lost_records_are_written_once_and_in_order(
    loop: asyncio.AbstractEventLoop, actions: list[tuple[str, int]]
) -> None:
    course = Course(loop)
    for action, number in actions:
        if action == "refuse":
            course.refuse(LOST if number > 1 else None)
        elif action in ("add", "write", "cut", "move"):
            getattr(course, action)(number)
        else:
            getattr(course, action)()
    course.finish()
    written: set[int] = set()
    for log in course.logs:
        assert log.values == sorted(set(log.values)), "each once, and in order"
        written |= set(log.values)
    assert len(course.acknowledged) == len(set(course.acknowledged))
    if all(action != "move" for action, _ in actions):
        assert course.acknowledged == sorted(course.acknowledged), "one leader answers in order"
    assert set(course.acknowledged) <= written, "what was acknowledged is there"
    assert course.added == set(course.acknowledged) | course.given_up, "no batch is forgotten"
