"""An outbox by itself: what goes into a transaction, and what does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Set
from contextlib import asynccontextmanager
from itertools import pairwise, zip_longest
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from aiokafka_lite.consumer.assignment.cursor import Cursor, Range
from aiokafka_lite.consumer.assignment.work import spans_of
from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.consumer.processing.outbox import (
    FIRST_PAUSE_S,
    LONGEST_TRANSACTION_END_S,
    MOST_BYTES,
    MOST_ENTRIES,
    Entry,
    GivenProducer,
    Outbox,
)
from aiokafka_lite.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OffsetMetadataTooLargeError,
    ProducerFenced,
    TransactionAbortableError,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

TP: Final = TopicPartition("t", 0)


class FakeOutput:
    size = 10

    def __init__(self, name: str, topic: str = "known") -> None:
        self.name = name
        self.topic = topic


class FakeJob:
    def __init__(self, offset: int, lane: str | None = None) -> None:
        self.record = self
        self.offset = offset
        self.order_key = lane
        self.cursor = CURSOR
        self.is_current = True


class FakeCursor:
    seeks = 0

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp

    def epoch_before(self, offset: int) -> int:
        return -1


CURSOR: Final = FakeCursor(TP)
OTHER: Final = FakeCursor(TopicPartition("t", 1))


class Transactions:
    """Stands for producer, offsets and run; transactions wait for `gate`."""

    can_replace: Final = False
    most_bytes: Final = 100
    longest_end_s = 100.0
    fatal_error: Exception | None = None
    encoded = None

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.written: list[list[str]] = []
        self.finished: list[int] = []
        self.refused_names: dict[str, Exception] = {}
        self.errors: list[Exception] = []
        # After which the producer can do nothing more.
        self.last_error: Exception | None = None
        # Above which offset the metadata have no room.
        self.room_to = 1_000
        self.told: list[tuple[str, list[int]]] = []
        self.known = {"known"}
        self.found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # What the offsets say besides.
        self.metadata = ""
        # The records of each time that there was room.
        self.moved: list[list[int]] = []
        self.told_apart = 0
        self.tell_end: Callable[[], None] = lambda: None

    async def lend(self) -> Transactions:
        return self

    def on_end(self, tell: Callable[[], None]) -> None:
        self.tell_end = tell

    async def dismiss(self) -> None:
        pass

    def knows(self, topic: str) -> bool:
        return topic in self.known

    async def count_partitions(self, topic: str) -> int:
        count = await self.found
        self.known.add(topic)
        return count

    async def write(self, outputs: Sequence[FakeOutput], offsets: object) -> dict[int, Exception]:
        await self.gate.wait()
        if self.errors:
            error = self.errors.pop(0)
            if error is self.last_error:
                self.fatal_error = error
            raise error
        names = [output.name for output in outputs]
        if bad := {n: e for n, name in enumerate(names) if (e := self.refused_names.get(name))}:
            return bad
        self.written.append(names)
        return {}

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        yield

    def group(self) -> SimpleNamespace:
        return SimpleNamespace(topic_ids={}, offsets=self)

    def if_finished(
        self, cursor: Cursor, records: Set[int]
    ) -> tuple[OffsetAndMetadata, Set[int]] | None:
        fitting = {each for each in records if each <= self.room_to}
        return (OffsetAndMetadata(0, self.metadata), fitting) if fitting else None

    def note_refused_metadata(self, offsets: object) -> None:
        self.metadata = ""

    async def tell_apart(self, offsets: object) -> None:
        self.told_apart += 1

    def note_committed(self, group: object, offsets: object) -> None:
        self.told.append(("noted", []))

    def begin_anew(self, cursors: object) -> None:
        self.told.append(("begun anew", []))

    def finish(self, job: FakeJob) -> None:
        job.is_current = False
        self.finished.append(job.offset)

    def refused(self, jobs: Sequence[FakeJob], error: Exception) -> None:
        self.told.append((type(error).__name__, [job.offset for job in jobs]))

    def handle_again(self, jobs: Sequence[FakeJob]) -> None:
        self.told.append(("again", [job.offset for job in jobs]))

    def outbox_failed(self, error: BaseException) -> None:
        self.told.append((type(error).__name__, []))

    def outbox_moved(self, jobs: Iterable[FakeJob]) -> None:
        self.moved.append([job.offset for job in jobs])


@pytest.fixture
async def transactions() -> Transactions:
    return Transactions()


@pytest.fixture
async def outbox(transactions: Transactions) -> AsyncIterator[Outbox]:
    any_of: Any = transactions
    outbox = Outbox(any_of, any_of, any_of, random.Random(1))
    await outbox.open()
    yield outbox
    transactions.gate.set()
    await outbox.close()


def undone(outbox: Outbox, partitions: list[TopicPartition]) -> dict[TopicPartition, Range]:
    places = ((job.cursor, job.record.offset) for job in outbox.undone() if job.is_current)
    return spans_of(places, partitions)


def entry(*offsets: int, lanes: str = "", topic: str = "known") -> Entry:
    """Return what came of records; `lanes` has a letter for each of them."""
    jobs = [cast("Job", FakeJob(*each)) for each in zip_longest(offsets, lanes)]
    return Entry(jobs, cast("Any", [FakeOutput(str(offset), topic) for offset in offsets]))


def again(entry: Entry, number: int) -> Entry:
    """Return what comes of one of its records when that is handled again."""
    job = entry.jobs[number]
    return Entry([job], cast("Any", [FakeOutput(f"{job.record.offset} again")]))


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


pytestmark = pytest.mark.virtual_time


async def test_what_came_meanwhile_shares_a_transaction(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.gate.clear()
    for number in range(4):
        outbox.put(entry(number))
        await settle()
    transactions.gate.set()
    await settle()
    assert transactions.written == [["0"], ["1", "2", "3"]]
    assert transactions.finished == [0, 1, 2, 3]
    assert [each for each, _ in transactions.told] == ["noted", "noted"]
    assert transactions.moved == [[0], [1, 2, 3]]
    assert transactions.told_apart == 0


async def test_an_entry_whose_record_is_anothers_by_now_is_dropped(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    gone, half, kept = entry(1), entry(2, 3), entry(4)
    for each in (gone, half, kept):
        outbox.put(each)
    cast("Any", gone.jobs[0]).is_current = cast("Any", half.jobs[0]).is_current = False
    transactions.gate.set()
    await settle()
    assert transactions.written == [["0"], ["4"]]
    assert ("again", [3]) in transactions.told
    last = entry(5)
    cast("Any", last.jobs[0]).is_current = False
    outbox.put(last)
    await settle()
    assert transactions.moved == [[0], [4], []]


async def test_one_that_is_refused_is_found_among_others_and_these_keep_their_order(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.refused_names = {"2": MessageSizeTooLargeError("2"), "5": ValueError("5")}
    for number in range(8):
        outbox.put(entry(number))
    await settle()
    assert [name for names in transactions.written for name in names] == list("013467")
    assert [each for each in transactions.told if each[1]] == [
        ("MessageSizeTooLargeError", [2]),
        ("ValueError", [5]),
    ]


class SpoiltOnce(dict[str, Exception]):
    """Refuses an output in the batch of another one that is refused, and not alone."""

    def get(self, name: str, default: Any = None) -> Any:
        return self.pop(name, None) if name == "2" else super().get(name, default)


async def test_one_that_is_refused_only_beside_another_is_written_in_its_order(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.refused_names = SpoiltOnce({each: ValueError(each) for each in ("2", "5")})
    for number in range(8):
        outbox.put(entry(number))
    await settle()
    assert [name for names in transactions.written for name in names] == list("0123467")
    assert [each for each in transactions.told if each[1]] == [("ValueError", [5])]


async def test_what_came_of_later_records_of_its_lanes_waits_for_a_list_that_is_refused(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.refused_names = {"2": MessageSizeTooLargeError("2")}
    refused = entry(1, 2, 3, lanes="aba")
    for each in (refused, entry(4, lanes="c"), entry(5, 6, lanes="cb"), entry(7, lanes="c")):
        outbox.put(each)
    await settle()
    assert transactions.written == [["4"]]
    assert not outbox.is_busy
    assert outbox.record_count == 3
    outbox.put(again(refused, 0))
    outbox.put(entry(8, lanes="a"))
    outbox.put(entry(9))
    outbox.put(entry(11, lanes="c"))
    await settle()
    assert transactions.written[1:] == [["1 again", "9"]]
    outbox.put(again(refused, 1))
    outbox.put(again(refused, 2))
    outbox.put(entry(10, lanes="a"))
    await settle()
    assert [name for names in transactions.written[2:] for name in names] == [
        *("2 again", "5", "6", "7", "11", "3 again", "8", "10")
    ]


async def test_one_that_is_refused_takes_no_other_out_of_its_transaction(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.refused_names = {"2": MessageSizeTooLargeError("2")}
    for number in range(5):
        outbox.put(entry(number, lanes="a"))
    await settle()
    assert transactions.written == [["0", "1", "3", "4"]]
    assert transactions.moved == [[2], [0, 1, 3, 4]]


async def test_one_that_waits_is_written_though_others_find_no_room_in_the_metadata(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    half = entry(1, 2, lanes="ab")
    for each in (half, entry(3, lanes="b"), entry(7)):
        outbox.put(each)
    cast("Any", half.jobs[0]).is_current = False
    transactions.room_to = 5
    transactions.gate.set()
    await settle()
    assert transactions.written == [["0"]]
    cast("Any", half.jobs[1]).is_current = False
    outbox.look_again()
    await settle()
    assert transactions.written[1:] == [["3"]]


async def test_what_is_of_other_partitions_is_handled_again_when_one_is_given_up(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    mixed = entry(1, 2)
    cast("Any", mixed.jobs[1]).cursor = OTHER
    outbox.put(mixed)
    assert undone(outbox, [OTHER.tp]) == {OTHER.tp: Range(2, 3)}
    assert undone(outbox, [TopicPartition("u", 0)]) == {}
    outbox.give_up([TP])
    assert transactions.told == [("again", [2])]
    assert undone(outbox, [OTHER.tp]) == {}
    assert outbox.is_writing([TP])
    assert not outbox.is_writing([OTHER.tp])


@pytest.mark.parametrize("most", ["entries", "bytes"])
async def test_a_transaction_is_bounded(
    transactions: Transactions, outbox: Outbox, most: str
) -> None:
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    transactions.room_to = 2 * MOST_ENTRIES
    sizes = {1: MOST_BYTES // 2, 2: MOST_BYTES // 2 - 1, 3: 1} if most == "bytes" else {}
    count = len(sizes) or MOST_ENTRIES
    for number in range(1, count + 3):
        each = entry(number)
        each.size = sizes.get(number, 10)
        outbox.put(each)
    transactions.gate.set()
    await settle()
    assert [len(names) for names in transactions.written] == [1, count, 2]


async def test_what_waits_at_the_close_fails_and_the_transaction_that_is_cut_off_begins_anew(
    transactions: Transactions, outbox: Outbox
) -> None:
    loop = asyncio.get_running_loop()
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    letter = asyncio.ensure_future(
        outbox.deliver(cast("Any", FakeJob(1)), cast("Any", FakeOutput("letter")))
    )
    await settle()
    began_at = loop.time()
    transactions.longest_end_s = 3
    await outbox.close()
    assert loop.time() - began_at == 3
    assert transactions.told == [("begun anew", [])]
    assert not outbox.is_busy
    with pytest.raises(IllegalStateError, match="run\\(\\) has ended"):
        await letter


async def test_a_close_that_is_cancelled_waits_some_seconds_for_its_transaction(
    transactions: Transactions, outbox: Outbox
) -> None:
    loop = asyncio.get_running_loop()
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    closing = asyncio.ensure_future(outbox.close())
    await asyncio.sleep(60)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert loop.time() == 60 + LONGEST_TRANSACTION_END_S


async def test_a_close_that_is_cancelled_gives_no_producer_back_that_still_aborts(
    transactions: Transactions, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    dismissed_at: list[float] = []

    async def write(outputs: object, offsets: object) -> dict[int, Exception]:
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(2)  # the abort
        return {}

    async def dismiss() -> None:
        dismissed_at.append(loop.time())

    monkeypatch.setattr(transactions, "write", write)
    monkeypatch.setattr(transactions, "dismiss", dismiss)
    transactions.longest_end_s = 3
    outbox.put(entry(0))
    await settle()
    closing = asyncio.ensure_future(outbox.close())
    began_at = loop.time()
    await asyncio.sleep(4)  # after 3 s the transaction is cut off
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert dismissed_at == [pytest.approx(began_at + 5)]


async def test_a_commit_that_fails_by_the_group_is_tried_again(
    transactions: Transactions, outbox: Outbox
) -> None:
    aborted = TransactionAbortableError("of another error")
    aborted.__cause__ = KafkaTimeoutError("passes")
    transactions.errors = [CommitFailedError("a rebalance"), aborted]
    outbox.put(entry(0))
    await asyncio.sleep(1)
    assert transactions.written == [["0"]]
    assert transactions.moved == [[0], [0], [0]]  # a rebalance waits no longer for a failed one


@pytest.mark.parametrize("is_told", [True, False])
async def test_metadata_that_are_refused_are_left_out(
    transactions: Transactions, outbox: Outbox, *, is_told: bool
) -> None:
    transactions.metadata = "finished ranges" if is_told else ""
    transactions.errors = [OffsetMetadataTooLargeError("too large")]
    outbox.put(entry(0))
    await settle()
    assert transactions.written == ([["0"]] if is_told else [])
    assert transactions.metadata == ""
    assert (("OffsetMetadataTooLargeError", []) in transactions.told) is not is_told


@pytest.mark.parametrize("is_lost", [True, False])
async def test_nothing_waits_for_a_record_that_is_not_to_be_finished_any_more(
    transactions: Transactions, outbox: Outbox, *, is_lost: bool
) -> None:
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    half = entry(1, 2, lanes="ab")
    for each in (half, entry(3, 4, lanes="bc"), entry(5, lanes="c"), entry(6, lanes="a")):
        outbox.put(each)
    cast("Any", half.jobs[0]).is_current = False
    transactions.gate.set()
    await settle()
    assert transactions.written == [["0"], ["6"]]
    assert ("again", [2]) in transactions.told
    assert outbox.awaits(half.jobs[1])
    if is_lost:
        outbox.give_up([TP])
        assert outbox.record_count == 0
        await outbox.close()
        assert not outbox.awaits(half.jobs[1])
        return
    cast("Any", half.jobs[1]).is_current = False
    outbox.look_again()
    await settle()
    assert transactions.written[2:] == [["3", "4", "5"]]


@pytest.mark.parametrize("is_found", [True, False])
async def test_what_names_an_unknown_topic_holds_up_its_lanes_only(
    transactions: Transactions, outbox: Outbox, *, is_found: bool
) -> None:
    outbox.put(entry(1, lanes="a", topic="other"))
    outbox.put(entry(2, lanes="a"))
    outbox.put(entry(3, 4, lanes="bc", topic="other"))
    outbox.put(entry(5, lanes="c"))
    outbox.put(entry(6, lanes="d"))
    await settle()
    assert transactions.written == [["6"]]
    assert outbox.is_busy
    assert undone(outbox, [TP]) == {TP: Range(1, 6)}
    if is_found:
        transactions.found.set_result(1)
        await settle()
        assert transactions.written[1:] == [["1", "2", "3", "4", "5"]]
    else:
        transactions.found.set_exception(UnknownTopicOrPartitionError("other"))
        await settle()
        assert transactions.written[1:] == [["2"]]
        refused = [each for each in transactions.told if each[0] == "UnknownTopicOrPartitionError"]
        assert [offsets for _, offsets in refused] == [[1], [3, 4]]
        outbox.put(again(entry(3, lanes="b"), 0))
        assert outbox.record_count == 2  # 5 waits for 4, which is handled again
    await settle()
    assert not outbox.is_busy


@pytest.mark.parametrize("then", ["is found", "is revoked", "is lost"])
async def test_a_topic_without_an_answer_is_a_trouble_while_an_entry_waits_for_it(
    transactions: Transactions, outbox: Outbox, then: str
) -> None:
    waiting = entry(1, topic="other")
    outbox.put(waiting)
    await settle()
    unanswered, transactions.found = transactions.found, asyncio.get_running_loop().create_future()
    unanswered.set_exception(KafkaTimeoutError("no answer"))
    await asyncio.sleep(2 * FIRST_PAUSE_S)
    assert "1 records wait for a commit: KafkaTimeoutError: no answer" in " ".join(
        outbox.troubles()
    )
    transactions.gate.clear()
    if then == "is found":
        transactions.found.set_result(1)
    elif then == "is revoked":
        outbox.give_up([TP])
    else:
        cast("Any", waiting.jobs[0]).is_current = False
        outbox.look_again()
    await settle()
    assert list(outbox.troubles()) == []
    assert outbox.is_busy is (then == "is found")
    assert outbox.record_count == (then == "is found")


async def test_a_producer_that_fails_while_it_looks_for_a_topic_says_nothing_of_the_record(
    transactions: Transactions, outbox: Outbox
) -> None:
    outbox.put(entry(1, topic="other"))
    await settle()
    transactions.fatal_error = ProducerFenced("another has the transactional id")
    transactions.found.set_exception(transactions.fatal_error)
    await settle()
    assert transactions.told == []


async def test_a_dead_letter_does_not_wait_for_an_earlier_record(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.refused_names = {"1": MessageSizeTooLargeError("1")}
    outbox.put(entry(1, 2, lanes="aa"))
    await settle()
    await outbox.deliver(cast("Any", FakeJob(3, "a")), cast("Any", FakeOutput("letter")))
    assert transactions.written == [["letter"]]


async def test_a_dead_letter_that_is_not_written_is_told_to_its_caller_only(
    transactions: Transactions, outbox: Outbox
) -> None:
    job, output = cast("Any", FakeJob(1)), cast("Any", FakeOutput("letter"))
    transactions.refused_names = {"letter": MessageSizeTooLargeError("letter")}
    with pytest.raises(MessageSizeTooLargeError):
        await outbox.deliver(job, output)
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    waiting = asyncio.ensure_future(outbox.deliver(job, output))
    await settle()
    outbox.give_up([OTHER.tp])
    outbox.give_up([TP])
    with pytest.raises(CommitFailedError):
        await waiting
    assert transactions.told == []


async def test_one_for_which_the_metadata_have_no_room_waits_for_those_before_it(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.room_to = 5
    outbox.put(entry(7))
    await settle()
    assert not outbox.is_busy
    assert "metadata is full" in "".join(outbox.troubles())
    outbox.put(entry(3, 9))
    outbox.put(entry(4))
    await settle()
    assert transactions.written == [["4"]]
    transactions.room_to = 1_000
    outbox.put(entry(5))
    await settle()
    assert transactions.written[1:] == [["7", "3", "9", "5"]]


async def test_a_later_record_waits_for_no_room_of_an_earlier_one_in_another_transaction(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.room_to = 5
    large = entry(7)
    large.size = MOST_BYTES  # it fills a transaction
    outbox.put(large)
    await settle()
    outbox.put(entry(4))
    await settle()
    assert transactions.written == [["4"]]


async def test_the_end_of_the_producer_ends_an_outbox_without_entries(
    transactions: Transactions, outbox: Outbox
) -> None:
    await settle()
    transactions.fatal_error = KafkaTimeoutError("not known")
    transactions.tell_end()
    await settle()
    assert transactions.told == [("KafkaTimeoutError", [])]
    assert not outbox.is_busy


async def test_an_error_that_passes_is_tried_again_and_one_that_stays_ends_it(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.errors = [KafkaTimeoutError("passes")] * 3
    outbox.put(entry(0))
    await settle()
    assert "1 records wait for a commit" in "".join(outbox.troubles())
    await asyncio.sleep(4 * FIRST_PAUSE_S)
    assert not transactions.written
    await asyncio.sleep(5 * FIRST_PAUSE_S)
    assert transactions.written == [["0"]]
    assert not list(outbox.troubles())
    transactions.errors = [KafkaTimeoutError("passes again")]
    outbox.put(entry(1))
    await asyncio.sleep(1.5 * FIRST_PAUSE_S)
    assert transactions.written == [["0"], ["1"]]
    transactions.last_error = KafkaTimeoutError("not known")
    transactions.errors = [transactions.last_error]
    outbox.put(entry(2))
    await settle()
    assert [each for each, _ in transactions.told[-2:]] == ["begun anew", "KafkaTimeoutError"]
    assert transactions.moved[-1] == [2]
    assert not outbox.is_busy


async def test_what_nobody_waits_for_any_more_is_not_written(
    transactions: Transactions, outbox: Outbox
) -> None:
    transactions.gate.clear()
    outbox.put(entry(0))
    await settle()
    job, output = cast("Any", FakeJob(1)), cast("Any", FakeOutput("letter"))
    waiting = asyncio.ensure_future(outbox.deliver(job, output))
    await settle()
    waiting.cancel()
    await settle()
    transactions.gate.set()
    await settle()
    assert transactions.written == [["0"]]
    assert waiting.cancelled()
    transactions.gate.clear()
    for number in range(2, 11):
        outbox.put(entry(number))
    assert not outbox.is_full  # by one output


async def test_it_is_full_from_so_many_bytes_on(transactions: Transactions, outbox: Outbox) -> None:
    transactions.gate.clear()
    for number in range(9):
        outbox.put(entry(number))
    smaller = entry(9)
    smaller.size = 9
    outbox.put(smaller)
    assert not outbox.is_full
    assert not list(outbox.troubles())
    last = entry(10)
    last.size = 1
    outbox.put(last)
    assert outbox.is_full
    outbox.give_up([TP])
    assert not outbox.is_full


async def test_what_comes_after_the_close_is_refused_and_holds_nobody_up(outbox: Outbox) -> None:
    await outbox.close()
    outbox.put(entry(0))
    assert not outbox.is_busy
    assert not outbox.record_count
    job, output = cast("Any", FakeJob(1)), cast("Any", FakeOutput("letter"))
    with pytest.raises(IllegalStateError, match="no longer written"):
        await outbox.deliver(job, output)


async def test_once_its_task_has_failed_a_letter_fails_by_the_same_error(
    transactions: Transactions, outbox: Outbox
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    transactions.held = fail  # type: ignore[method-assign, assignment]
    outbox.put(entry(0))
    await settle()
    assert transactions.told == [("ZeroDivisionError", [])]
    with pytest.raises(ZeroDivisionError):
        await outbox.deliver(cast("Any", FakeJob(1)), cast("Any", FakeOutput("letter")))


class Lending:
    """A producer that is lent, and its lease."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def lend(self, why: str) -> Lending:
        self.calls.append("lend")
        return self

    def release(self) -> None:
        self.calls.append("release")


async def test_the_producer_of_the_application_is_lent_once_until_it_is_dismissed() -> None:
    lending = Lending()
    source = GivenProducer(cast("Any", lending))
    for _ in range(2):
        await source.dismiss()
        for _ in range(2):
            assert cast("Any", await source.lend()) is lending
    assert lending.calls == ["lend", "release", "lend"]


# --- With a producer of its own, and callers that wait --------------------------------------------
class Replaceable(Transactions):
    """A producer that is replaced if it fails; nobody but callers of `deliver` hears of errors."""

    can_replace = True  # type: ignore[misc]

    def __init__(self) -> None:
        super().__init__()
        self.lend_errors: list[Exception] = []
        # Of lends after the next dismissal.
        self.later_errors: list[Exception] = []
        self.lent_at: list[float] = []
        self.dismissed = 0
        self.is_committed = True

    async def lend(self) -> Transactions:
        self.lent_at.append(asyncio.get_running_loop().time())
        if self.lend_errors:
            raise self.lend_errors.pop(0)
        return self

    async def dismiss(self) -> None:
        self.dismissed += 1
        self.fatal_error = None
        self.lend_errors, self.later_errors = self.later_errors, []

    async def are_committed(self, offsets: object) -> bool:
        return self.is_committed


@pytest.fixture
async def letters(replaceable: Replaceable) -> AsyncIterator[Outbox]:
    any_of: Any = replaceable
    outbox = Outbox(any_of, any_of, any_of, random.Random(1))
    await outbox.open()
    replaceable.lent_at.clear()
    yield outbox
    await outbox.close()
    assert replaceable.dismissed


@pytest.fixture
async def replaceable() -> Replaceable:
    return Replaceable()


async def deliver(outbox: Outbox, offset: int, *, is_current: bool = True) -> None:
    job = FakeJob(offset)
    job.is_current = is_current
    await outbox.deliver(cast("Any", job), cast("Any", FakeOutput(str(offset))))


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_producer_that_fails_is_replaced_and_the_group_says_what_was_committed(
    replaceable: Replaceable, letters: Outbox, *, is_committed: bool
) -> None:
    replaceable.is_committed = is_committed
    replaceable.last_error = ProducerFenced("another has the transactional id")
    replaceable.errors = [replaceable.last_error]
    replaceable.later_errors = [KafkaTimeoutError("not yet")] * 3
    (found,) = await asyncio.gather(deliver(letters, 1), return_exceptions=True)
    times = replaceable.lent_at[1:]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == [pytest.approx(s, rel=0.21) for s in (0.1, 0.2, 0.4)]
    assert replaceable.dismissed == 1
    assert (found is None) is is_committed
    assert replaceable.finished == ([1] if is_committed else [])
    await deliver(letters, 2)
    assert replaceable.written == [["2"]]
    assert replaceable.told_apart == 2


async def test_an_outcome_that_cannot_be_learned_is_the_error_of_who_waits(
    replaceable: Replaceable, letters: Outbox
) -> None:
    replaceable.last_error = ProducerFenced("another has the transactional id")
    replaceable.errors = [replaceable.last_error]
    replaceable.later_errors = [TransactionalIdAuthorizationFailed("no more")]
    with pytest.raises(TransactionalIdAuthorizationFailed):
        await deliver(letters, 1)
    assert replaceable.finished == []


@pytest.mark.parametrize("is_wrapped", [True, False])
async def test_a_letter_of_an_ended_generation_is_written_in_another_transaction(
    replaceable: Replaceable, letters: Outbox, *, is_wrapped: bool
) -> None:
    refusal: Exception = CommitFailedError("a rebalance")
    if is_wrapped:
        cause, refusal = refusal, TransactionAbortableError("of another error")
        refusal.__cause__ = cause
    replaceable.errors = [refusal, refusal]
    await deliver(letters, 1)
    assert replaceable.written == [["1"]]
    assert replaceable.finished == [1]
    first, second, third = replaceable.lent_at
    assert [second - first, third - second] == [pytest.approx(s, rel=0.21) for s in (0.1, 0.2)]


@pytest.mark.parametrize("loses", ["its caller", "its partition"])
async def test_a_letter_that_is_given_up_in_a_refused_transaction_is_not_written(
    replaceable: Replaceable, letters: Outbox, loses: str
) -> None:
    replaceable.errors = [CommitFailedError("a rebalance")]
    replaceable.gate.clear()
    job = FakeJob(1)
    waiting = asyncio.ensure_future(
        letters.deliver(cast("Any", job), cast("Any", FakeOutput("x" * 200)))
    )
    await settle()
    if loses == "its caller":
        waiting.cancel()
        await asyncio.wait([waiting])
    else:
        job.is_current = False
    replaceable.gate.set()
    await asyncio.sleep(1)
    assert waiting.cancelled() or isinstance(waiting.exception(), CommitFailedError)
    assert letters.record_count == 0
    assert not letters.is_full
    assert replaceable.written == []


async def test_without_a_producer_each_letter_that_waits_fails_and_later_ones_are_written(
    replaceable: Replaceable, letters: Outbox
) -> None:
    replaceable.lend_errors = [KafkaTimeoutError("no broker")]
    found = await asyncio.gather(*(deliver(letters, n) for n in (1, 2)), return_exceptions=True)
    assert [type(each) for each in found] == [KafkaTimeoutError, KafkaTimeoutError]
    replaceable.errors = [KafkaTimeoutError("no answer")]
    with pytest.raises(KafkaTimeoutError, match="no answer"):
        await deliver(letters, 3)
    await deliver(letters, 4)
    assert replaceable.written == [["4"]]
    for _ in range(9):
        assert not letters.is_full
        await deliver(letters, 5)


async def test_a_letter_without_room_in_the_metadata_or_without_its_partition_fails_alone(
    replaceable: Replaceable, letters: Outbox
) -> None:
    replaceable.room_to = 5
    found = await asyncio.gather(
        deliver(letters, 1),
        deliver(letters, 7),
        deliver(letters, 2, is_current=False),
        return_exceptions=True,
    )
    assert [type(each) for each in found] == [
        type(None),
        OffsetMetadataTooLargeError,
        CommitFailedError,
    ]
    replaceable.room_to = 1_000
    await deliver(letters, 8)
    assert replaceable.written == [["1"], ["8"]]
    replaceable.gate.clear()
    waiting = [asyncio.ensure_future(deliver(letters, number)) for number in range(10, 20)]
    await settle()
    assert letters.is_full
    replaceable.gate.set()
    await asyncio.gather(*waiting)
