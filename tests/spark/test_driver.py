"""What the driver's processes decide about streaming queries, without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.errors import OptionError
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.errors import DataLossError
from aiokafka_lite.spark.micro_batches import MicroBatches
from aiokafka_lite.spark.planner import batch_tasks
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle


class Queries:
    """Runs of one streaming query on topic `t` of two partitions, one after another."""

    def __init__(self, broker: BrokerThread) -> None:
        self.broker = broker
        self.running: list[MicroBatches] = []
        broker.create_topic("t", 2)

    def produce(self, partition: int, count: int = 1) -> None:
        for _ in range(count):
            self.broker.produce("t", "value", partition=partition)

    def raw(self, **given: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "subscribe": "t",
            "fetchoffset.retryintervalms": "1",
            **{name.lower(): value for name, value in given.items()},
        }

    def run(self, **given: str) -> MicroBatches:
        return self.run_with(given)

    def run_with(
        self, given: Mapping[str, str], *, has_admission_control: bool = True
    ) -> MicroBatches:
        raw = self.raw(**given)
        self.running.append(MicroBatches(raw, has_admission_control=has_admission_control))
        return self.running[-1]


@pytest.fixture
def queries(kafka_broker: BrokerThread) -> Iterator[Queries]:
    queries = Queries(kafka_broker)
    yield queries
    for query in queries.running:
        query.close()
    worker.close_all()


def at(*offsets: int) -> Offsets:
    return {TopicPartition("t", partition): offset for partition, offset in enumerate(offsets)}


def spans(query: MicroBatches, start: Offsets, end: Offsets) -> dict[int, tuple[int, int]]:
    return {
        each.partition: (each.start, each.end) for task in query.tasks(start, end) for each in task
    }


# --- Where a query begins --------------------------------------------------------------------
def test_the_beginning_is_the_same_however_often_it_is_asked_for(queries: Queries) -> None:
    queries.produce(0, 3)
    query = queries.run()
    assert query.initial() == at(3, 0)
    queries.produce(0)
    assert query.initial() == at(3, 0)


def test_a_query_that_begins_at_the_end_has_an_empty_first_batch(queries: Queries) -> None:
    queries.produce(0, 3)
    batches = queries.run()
    start = batches.initial()
    queries.produce(1, 2)
    assert batches.next_end(start, is_limited=True) == start
    assert batches.newest == at(3, 2)
    assert batches.next_end(start, is_limited=True) == at(3, 2)


def test_records_before_the_first_batch_was_done_are_read_by_the_next_run(
    queries: Queries,
) -> None:
    queries.produce(0, 3)
    first = queries.run()
    logged = first.next_end(first.initial(), is_limited=True)
    first.close()  # killed: the first batch is in the checkpoint, and not done
    queries.produce(0, 2)
    queries.produce(1, 4)
    second = queries.run()
    begun_again = second.initial()
    assert begun_again == at(5, 4)
    assert spans(second, begun_again, logged) == {}
    end = second.next_end(logged, is_limited=True)
    assert spans(second, logged, end) == {0: (3, 5), 1: (0, 4)}


def test_only_partitions_that_begin_at_their_end_wait_for_the_second_batch(
    queries: Queries,
) -> None:
    queries.produce(0, 3)
    queries.produce(1, 3)
    batches = queries.run(startingOffsets='{"t":{"0":1,"1":-1}}')
    start = batches.initial()
    queries.produce(0, 2)
    queries.produce(1, 2)
    assert start == at(1, 3)
    assert batches.next_end(start, is_limited=True) == at(5, 3)


def test_timestamps_that_no_record_has_begin_at_the_end_as_well(queries: Queries) -> None:
    queries.produce(0, 2)
    query = queries.run(
        startingTimestamp="99999999999999", startingOffsetsByTimestampStrategy="latest"
    )
    start = query.initial()
    queries.produce(0)
    assert start == at(2, 0)
    assert query.next_end(start, is_limited=True) == start


def test_a_query_from_the_earliest_has_everything_in_its_first_batch(queries: Queries) -> None:
    queries.produce(0, 3)
    query = queries.run(startingOffsets="earliest")
    end = query.next_end(query.initial(), is_limited=True)
    assert spans(query, query.initial(), end) == {0: (0, 3)}


def test_a_first_batch_that_aged_out_is_a_loss_and_not_an_empty_one(queries: Queries) -> None:
    queries.produce(0, 3)
    first = queries.run(startingOffsets="earliest")
    logged = first.next_end(first.initial(), is_limited=True)
    queries.produce(0, 3)
    handle = KafkaHandle("embedded", queries.broker.bootstrap_servers)
    asyncio.run(handle.delete_records("t", 0, 5))
    second = queries.run(startingOffsets="earliest")
    with pytest.raises(DataLossError, match=r"t.*0"):
        second.tasks(second.initial(), logged)


# --- Where batches end -----------------------------------------------------------------------
def test_available_now_ends_where_partitions_ended_when_it_began(queries: Queries) -> None:
    queries.produce(0, 4)
    query = queries.run(startingOffsets="earliest", maxOffsetsPerTrigger="3")
    query.fix_target()
    queries.produce(0, 4)
    end = query.next_end(query.initial(), is_limited=True)
    assert end == at(3, 0)
    assert spans(query, at(0, 0), end) == {0: (0, 3)}
    assert query.next_end(end, is_limited=True) == at(4, 0)
    assert query.next_end(at(4, 0), is_limited=True) == at(4, 0)


def test_available_now_reads_nothing_of_a_query_that_begins_at_the_end(queries: Queries) -> None:
    query = queries.run()
    query.fix_target()
    queries.produce(0, 4)
    start = query.initial()
    for _ in range(2):
        assert query.next_end(start, is_limited=True) == start
    assert query.tasks(start, start) == []


def test_available_now_fails_when_what_it_was_to_read_is_gone(queries: Queries) -> None:
    queries.produce(0, 4)
    query = queries.run(startingOffsets="earliest")
    query.fix_target()
    end = query.next_end(query.initial(), is_limited=True)
    queries.broker.recreate_topic("t")
    with pytest.raises(DataLossError, match="availableNow"):
        query.tasks(at(0, 0), end)


def test_available_now_leaves_the_batch_of_an_earlier_run_to_the_option(queries: Queries) -> None:
    queries.produce(0, 3)
    killed = queries.run(startingOffsets="earliest")
    logged = killed.next_end(killed.initial(), is_limited=True)
    killed.close()
    queries.broker.recreate_topic("t")
    queries.produce(0)
    query = queries.run(startingOffsets="earliest", failOnDataLoss="false")
    query.fix_target()
    assert spans(query, at(0, 0), logged) == {0: (0, 3)}


def test_a_trigger_that_takes_everything_is_not_limited(queries: Queries) -> None:
    queries.produce(0, 5)
    batches = queries.run(startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert batches.next_end(batches.initial(), is_limited=False) == at(5, 0)


def test_a_limit_that_spark_cannot_count_from_is_refused(queries: Queries) -> None:
    with pytest.raises(OptionError, match=r"maxOffsetsPerTrigger=2 .*PySpark 4\.2"):
        queries.run_with({"maxOffsetsPerTrigger": "2"}, has_admission_control=False)


def test_without_admission_control_the_source_remembers_where_batches_ended(
    queries: Queries,
) -> None:
    queries.produce(0, 5)
    given = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "2",
        "admissionControl": "source",
    }
    first = queries.run_with(given, has_admission_control=False)
    assert first.next_end(None, is_limited=True) == at(2, 0)
    assert first.next_end(None, is_limited=True) == at(4, 0)
    # The next run is told what the checkpoint has, before anything else.
    second = queries.run_with(given, has_admission_control=False)
    assert second.tasks(at(2, 0), at(2, 0)) == []
    assert second.next_end(None, is_limited=True) == at(4, 0)


def test_a_batch_waits_for_enough_records_or_a_delay(queries: Queries) -> None:
    queries.produce(0, 1)
    batches = queries.run(startingOffsets="earliest", minOffsetsPerTrigger="3")
    start = batches.next_end(batches.initial(), is_limited=True)
    assert start == at(1, 0)  # the first never waits
    queries.produce(0, 2)
    assert batches.next_end(start, is_limited=True) == start
    queries.produce(1, 1)
    assert batches.next_end(start, is_limited=True) == at(3, 1)


# --- The rest --------------------------------------------------------------------------------
def test_what_was_processed_is_committed_to_the_group_that_was_named(queries: Queries) -> None:
    queries.produce(0, 3)
    queries.run(commitOffsetsToGroup="shown").processed(at(2, 0))
    assert queries.broker.committed("shown") == at(2, 0)


def test_small_ranges_of_a_batch_query_share_a_task(queries: Queries) -> None:
    queries.produce(0, 3)
    queries.produce(1, 3)
    (task,) = batch_tasks(queries.raw())
    assert [(each.tp, each.start, each.end) for each in task] == [
        (TopicPartition("t", 0), 0, 3),
        (TopicPartition("t", 1), 0, 3),
    ]
    assert len(batch_tasks(queries.raw(minPartitions="2"))) == 2


def test_the_next_batch_query_finds_connections_open(queries: Queries) -> None:
    batch_tasks(queries.raw())
    before = len(queries.broker.requests.of("ApiVersions"))
    batch_tasks(queries.raw())
    assert len(queries.broker.requests.of("ApiVersions")) == before


def test_warnings_of_options_are_told(queries: Queries, caplog: pytest.LogCaptureFixture) -> None:
    batch_tasks(queries.raw(maxOffsetsPerTrigger="2"))
    assert "maxOffsetsPerTrigger has no effect" in caplog.text


@pytest.mark.parametrize(
    ("beginning", "read"),
    [
        ({"startingOffsets": "latest"}, {}),
        ({"startingOffsets": "earliest"}, {0: (0, 3), 1: (0, 1)}),
        ({"startingOffsets": '{"t": {"0": 1, "1": -1}}'}, {0: (1, 3)}),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 0, "1": 0}}'}, {0: (0, 3), 1: (0, 1)}),
    ],
)
def test_partitions_added_before_the_first_batch_was_done_are_read_by_the_next_run(
    queries: Queries, beginning: dict[str, str], read: dict[int, tuple[int, int]]
) -> None:
    queries.produce(0, 3)
    queries.produce(1, 1)
    first = queries.run(**beginning)
    logged = first.next_end(first.initial(), is_limited=True)
    first.close()  # killed: the first batch is in the checkpoint, and not done
    queries.broker.add_partitions("t", 3)
    queries.produce(2, 2)
    second = queries.run(**beginning)
    assert spans(second, second.initial(), logged) == read
    end = second.next_end(logged, is_limited=True)
    assert spans(second, logged, end) == {2: (0, 2)}


@pytest.mark.parametrize("has_admission_control", [True, False])
@pytest.mark.parametrize(
    ("offsets", "problem"),
    [
        ({"0": 0}, "leaves out t/1"),
        ({"0": 0, "1": 0, "2": 0}, "names t/2, which do not exist or are not subscribed"),
    ],
)
@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_a_new_query_names_each_partition_or_none(
    queries: Queries,
    option: str,
    offsets: dict[str, int],
    problem: str,
    has_admission_control: bool,
) -> None:
    for partition in (0, 1):
        queries.produce(partition)
    given = {option: json.dumps({"t": offsets})}
    query = queries.run_with(given, has_admission_control=has_admission_control)
    begun = query.initial()
    start = begun if has_admission_control else None
    said = f"option {option} {problem}: the option must name each"
    with pytest.raises(OptionError, match=said):
        query.next_end(start, is_limited=True)
    with pytest.raises(OptionError, match=said):
        batch_tasks(queries.raw(**given))


def test_a_topic_deleted_before_the_first_batch_was_done_is_a_loss(
    queries: Queries, caplog: pytest.LogCaptureFixture
) -> None:
    queries.broker.create_topic("u", 1)
    queries.produce(0, 3)
    beginning = {"subscribe": "t,u", "startingOffsets": '{"t": {"0": 0, "1": 0}, "u": {"0": -2}}'}
    first = queries.run(**beginning)
    logged = first.next_end(first.initial(), is_limited=True)
    first.close()
    queries.broker.delete_topic("u")
    beginning["subscribe"] = "t"
    failing = queries.run(**beginning)
    with pytest.raises(DataLossError, match="u/0"):
        failing.tasks(failing.initial(), logged)
    going_on = queries.run(**beginning, failOnDataLoss="false")
    assert spans(going_on, going_on.initial(), logged) == {0: (0, 3)}
    assert "u/0" in caplog.text


def test_partitions_that_go_before_the_first_batch_are_a_loss(queries: Queries) -> None:
    queries.broker.create_topic("u", 1)
    query = queries.run(subscribe="t,u", startingOffsets="earliest")
    begun = query.initial()
    ended = {tp: 0 for tp in begun if tp.topic == "t"}
    assert query.next_end(begun, is_limited=True) == begun
    with pytest.raises(DataLossError, match="u/0 were deleted"):
        query.tasks(begun, ended)
