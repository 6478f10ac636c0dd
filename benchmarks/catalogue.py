"""All scenarios. Those of one family measure the same figures, and share a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.broker_scenarios import broker_scenarios
from benchmarks.contestants import (
    AIOKAFKA_ASYNC_FOR,
    AIOKAFKA_GETMANY,
    CONFLUENT_AIO,
    CONFLUENT_CONSUME,
    CONFLUENT_LEAST_CPU,
    CONFLUENT_LEAST_WALL,
    CONFLUENT_POLL,
    FLOOR,
    HANDLING_AIOKAFKA,
    HANDLING_FASTSTREAM,
    HANDLING_LITE,
    IMPORT_AIOKAFKA,
    IMPORT_CONFLUENT,
    IMPORT_LITE,
    JAVA_PERFORMANCE,
    LITE_ASYNC_FOR,
    LITE_BATCHES,
    LITE_GETMANY,
    LITE_POLL,
    MEMBER_AIOKAFKA,
    MEMBER_LITE_CONSUMER,
    MEMBER_LITE_RANGE,
    MEMBER_LITE_STICKY,
    MEMBERS_CONFLUENT,
    MOVE_AIOKAFKA,
    MOVE_CONFLUENT,
    MOVE_LITE,
    PRODUCE_AIOKAFKA,
    PRODUCE_CONFLUENT,
    PRODUCE_LITE,
    START_AIOKAFKA,
    START_CONFLUENT,
    START_LITE,
    Contestant,
)
from benchmarks.figures import (
    AGE,
    BEYOND,
    BROKER_CPU_NS,
    BROKER_CPU_PERCENT,
    CPU_MS,
    CPU_NS,
    CPU_PERCENT,
    CPU_US,
    FAILOVER,
    GROWTH,
    HANDLING,
    LATENESS,
    MOVED,
    REBALANCE,
    RSS,
    START,
    WALL_MS,
    WALL_NS,
)
from benchmarks.measure import Move
from benchmarks.scenarios import Scenario
from benchmarks.share_scenarios import share_scenarios
from benchmarks.topics import Topic


@dataclass(frozen=True, slots=True)
class Size:
    """How much work the scenarios are.

    Attributes:
        records: In each topic of 100-byte values.
        rounds: At full speed, where a run is short.
        timed_rounds: Where a run takes as long as it is told to.
        seconds: How long these are measured.
        settle_s: How long a client has to get 3,000 partitions under way.
        memory_seconds: How long the memory is looked at.
        scaling_records: The most that one run reads.
        starts: How often a consumer is started.
        start_rounds: Of starts one by one: Kafka has just started, and gets quicker for a while.
        crowd: How many consumers are alive in one loop.
        moves: How often a consumer is moved.
        replaced: How many members of a group are replaced.
        regroup_s: How long a group has to settle each time.
        handled: How many records handlers get.
        broker_records: What clients write to, or read from, each broker that is compared.
        share_starts: How many share groups are made.
        locked: How many records are handled for longer than they are locked.
        handler_s: How long that takes.
        cut_handler_s: How long handlers take whose connection is cut.
        has_all: Whether contestants take part that are seldom the best of their client.
    """

    records: int
    rounds: int
    timed_rounds: int
    seconds: float
    settle_s: float
    memory_seconds: float
    scaling_records: int
    starts: int
    start_rounds: int
    crowd: int
    moves: int
    replaced: int
    regroup_s: float
    handled: int
    broker_records: int
    share_starts: int
    locked: int
    handler_s: float
    cut_handler_s: float
    has_all: bool

    def contestants(
        self, core: tuple[Contestant, ...], others: tuple[Contestant, ...]
    ) -> tuple[Contestant, ...]:
        """Return who takes part."""
        return (*core, *others) if self.has_all else core


FULL: Final = Size(
    records=2_000_000,
    rounds=3,
    timed_rounds=2,
    seconds=10,
    settle_s=5,
    memory_seconds=16,
    scaling_records=10_000_000,
    starts=200,
    start_rounds=6,
    crowd=1000,
    moves=30,
    replaced=4,
    # By the consumer protocol librdkafka takes what it is given five seconds later.
    regroup_s=6,
    handled=200_000,
    broker_records=1_500_000,
    share_starts=5,
    locked=1000,
    handler_s=90,
    cut_handler_s=4,
    has_all=True,
)
QUICK: Final = Size(
    records=300_000,
    rounds=2,
    timed_rounds=1,
    seconds=4,
    settle_s=3,
    memory_seconds=8,
    scaling_records=1_000_000,
    starts=50,
    start_rounds=2,
    crowd=100,
    moves=10,
    replaced=2,
    regroup_s=2,
    handled=40_000,
    broker_records=600_000,
    share_starts=1,
    locked=200,
    handler_s=3,
    cut_handler_s=2,
    has_all=False,
)
QUICK_FAMILIES: Final = ("bulk", "trickle", "idle", "import", "broker-drain", "broker-footprint")
"""What `--quick` runs unless scenarios are named."""
BATCH_AXIS: Final = "records a batch"


def scenarios(size: Size) -> tuple[Scenario, ...]:
    """Return all scenarios."""
    return (
        *_bulk(size),
        *_paced(size),
        _idle(size),
        *_hold(size),
        *_memory(size),
        _import(size),
        *_start(size),
        *_moves(size),
        *_produce(size),
        *_processing(size),
        *scaling(size),
        *_failover(),
        _rebalance(size),
        *broker_scenarios(size.broker_records, size.rounds),
        *share_scenarios(size),
    )


def _bulk_topics(size: Size) -> dict[str, Topic]:
    """Topics for reading at full speed; big records are fewer, so that all take alike."""
    return {
        "plain": Topic("none", 100, size.records),
        "lz4": Topic("lz4", 100, size.records),
        "zstd": Topic("zstd", 100, size.records),
        "big": Topic("none", 1000, size.records // 4),
    }


def _bulk(size: Size) -> list[Scenario]:
    core = (
        LITE_POLL,
        LITE_GETMANY,
        LITE_ASYNC_FOR,
        LITE_BATCHES,
        AIOKAFKA_GETMANY,
        AIOKAFKA_ASYNC_FOR,
        CONFLUENT_LEAST_CPU,
        CONFLUENT_LEAST_WALL,
        FLOOR,
    )
    others = (
        LITE_POLL.on_uvloop(),
        LITE_GETMANY.on_uvloop(),
        LITE_ASYNC_FOR.on_uvloop(),
        AIOKAFKA_GETMANY.on_uvloop(),
        AIOKAFKA_ASYNC_FOR.on_uvloop(),
        CONFLUENT_CONSUME,
        JAVA_PERFORMANCE,
    )
    return [
        Scenario(
            name,
            family="bulk",
            title=topic.title,
            task="bulk",
            figures=(CPU_NS, WALL_NS, BEYOND),
            contestants=size.contestants(core, others),
            rounds=size.rounds,
            topics=(topic,),
        )
        for name, topic in _bulk_topics(size).items()
    ]


def _many_topics() -> tuple[Topic, ...]:
    return tuple(Topic(use=f"many-{number:02}", partition_count=100) for number in range(30))


def _paced(size: Size) -> list[Scenario]:
    core = (LITE_ASYNC_FOR, LITE_ASYNC_FOR.on_uvloop(), CONFLUENT_POLL)
    second = (AIOKAFKA_ASYNC_FOR, CONFLUENT_AIO)
    third = (LITE_POLL, AIOKAFKA_GETMANY)
    floors = (FLOOR, FLOOR.on_uvloop())
    trickle = Scenario(
        "trickle",
        family="trickle",
        title="1,000 records a second on 4 partitions",
        task="paced",
        figures=(CPU_US, *AGE),
        contestants=size.contestants((*core, *second, *floors), third),
        rounds=size.timed_rounds,
        topics=(Topic(use="paced"),),
        rate=1000,
        start="latest",
        settle_s=0.5,
        seconds=size.seconds,
    )
    slower = [
        replace(
            trickle,
            name=f"trickle-{rate}",
            title=f"{rate} records a second on 4 partitions",
            contestants=size.contestants((*core, *floors), (*second, *third)),
            rate=rate,
        )
        for rate in (100, 10)
    ]
    many = replace(
        trickle,
        name="many",
        family="many",
        title="500 records a second spread over 3,000 partitions",
        figures=(*trickle.figures, BROKER_CPU_PERCENT),
        contestants=size.contestants((*core, *second), third),
        topics=_many_topics(),
        rate=500,
        settle_s=size.settle_s,
    )
    return [trickle, *slower, many]


def _idle(size: Size) -> Scenario:
    return Scenario(
        "idle",
        family="idle",
        title="3,000 partitions, no records",
        task="idle",
        figures=(CPU_PERCENT,),
        contestants=size.contestants(
            (LITE_ASYNC_FOR, AIOKAFKA_GETMANY, CONFLUENT_POLL), (LITE_ASYNC_FOR.on_uvloop(),)
        ),
        rounds=1,
        topics=_many_topics(),
        start="latest",
        settle_s=size.settle_s,
        seconds=size.seconds,
    )


def _hold(size: Size) -> list[Scenario]:
    def sliced(contestant: Contestant) -> Contestant:
        return replace(contestant, loop="benchmarks.slice_loop")

    return [
        Scenario(
            f"hold-{name}",
            family="hold",
            title=topic.title,
            task="hold",
            figures=LATENESS,
            contestants=(
                sliced(LITE_ASYNC_FOR),
                LITE_ASYNC_FOR.on_uvloop(),
                sliced(LITE_POLL),
                sliced(AIOKAFKA_ASYNC_FOR),
                sliced(AIOKAFKA_GETMANY),
            ),
            rounds=size.timed_rounds,
            topics=(topic,),
        )
        for name, topic in _bulk_topics(size).items()
    ]


def _memory(size: Size) -> list[Scenario]:
    slow = Topic("none", 1000, 256_000, partition_count=64)
    cases = {
        "memory-plain": ("5 records a second", slow, 0.2),
        "memory-zstd": ("5 records a second", replace(slow, codec="zstd"), 0.2),
        "memory-steady": (
            "a thousand records a second",
            replace(slow, codec="zstd", value_bytes=10_000, records=32_000),
            0.001,
        ),
    }
    return [
        Scenario(
            name,
            family="memory",
            title=f"takes {pace} at most, of {topic.title}, 64 partitions",
            task="memory",
            figures=(RSS, GROWTH),
            contestants=(LITE_ASYNC_FOR, LITE_POLL, AIOKAFKA_ASYNC_FOR, CONFLUENT_POLL),
            rounds=1,
            topics=(topic,),
            seconds=size.memory_seconds,
            pause_s=pause_s,
        )
        for name, (pace, topic, pause_s) in cases.items()
    ]


def _failover() -> list[Scenario]:
    titles = {
        "kill": "SIGKILL: the group coordinator, the controller, the third",
        "restart": "SIGTERM: each in turn",
        "hang": "SIGSTOP for 15 s: a leader that is nothing else",
    }
    return [
        Scenario(
            f"failover-{course}",
            family="failover",
            title=f"{title}; 1,000 records a second, acks=all, three brokers",
            task="",
            figures=FAILOVER,
            contestants=(LITE_GETMANY, AIOKAFKA_GETMANY, CONFLUENT_POLL),
            rounds=1,
            course=course,
        )
        for course, title in titles.items()
    ]


def _rebalance(size: Size) -> Scenario:
    return Scenario(
        "rebalance",
        family="rebalance",
        title=f"four members on 24 partitions, 2,000 records a second; {size.replaced} of them are "
        "replaced in turn",
        task="rebalance",
        figures=REBALANCE,
        contestants=(
            MEMBER_LITE_CONSUMER,
            MEMBER_LITE_STICKY,
            MEMBER_LITE_RANGE,
            *MEMBERS_CONFLUENT,
            MEMBER_AIOKAFKA,
        ),
        # The best of several rounds would hide what was lost in the others.
        rounds=1,
        passes=size.replaced,
        settle_s=size.regroup_s,
    )


def _import(size: Size) -> Scenario:
    return Scenario(
        "import",
        family="import",
        title="import into a fresh interpreter, beyond what that takes itself",
        task="imports",
        figures=(WALL_MS, CPU_MS),
        contestants=(IMPORT_LITE, IMPORT_AIOKAFKA, IMPORT_CONFLUENT),
        rounds=size.timed_rounds,
        passes=10,
    )


def _start(size: Size) -> list[Scenario]:
    one_record = Topic("none", 100, 1, partition_count=1, use="start")
    return [
        Scenario(
            f"start-{'crowd-' if is_crowd else ''}{'group' if is_group else 'assign'}",
            family="start",
            title=(f"{size.crowd:,} consumers in one loop, " if is_crowd else "one consumer, ")
            + ("each in a group of its own" if is_group else "by assign"),
            task="start",
            figures=START,
            # A consumer of librdkafka has threads, and no loop.
            contestants=(START_LITE, START_AIOKAFKA) + ((START_CONFLUENT,) * (not is_crowd)),
            rounds=size.timed_rounds if is_crowd else size.start_rounds,
            topics=(one_record,),
            passes=size.crowd if is_crowd else size.starts,
            is_group=is_group,
            is_crowd=is_crowd,
        )
        for is_crowd in (False, True)
        for is_group in (False, True)
    ]


def _moves(size: Size) -> list[Scenario]:
    titles: Mapping[Move, str] = {
        "seek": "seek a partition",
        "resume": "resume a paused partition",
        "assign": "assign a partition beside others",
    }
    return [
        Scenario(
            f"moves-{move}",
            family="moves",
            title=f"{title}, while a long poll is in flight",
            task="moves",
            figures=MOVED,
            contestants=(MOVE_LITE, MOVE_AIOKAFKA, MOVE_CONFLUENT),
            # The best of several rounds would hide the longest wait.
            rounds=1,
            topics=(Topic("none", 100, 40, use="moves"),),
            passes=size.moves,
            settle_s=1,
            move=move,
        )
        for move, title in titles.items()
    ]


def _produce(size: Size) -> list[Scenario]:
    # Fewer than are read: writing one takes several times as long.
    cases = {
        "produce": Topic("none", 100, size.records // 4),
        "produce-big": Topic("none", 1000, size.records // 16),
    }
    return [
        Scenario(
            name,
            family="produce",
            title=f"write {topic.title}, to {topic.partition_count} partitions, acks=all",
            task="produce",
            figures=(CPU_NS, WALL_NS, BROKER_CPU_NS),
            contestants=size.contestants(
                (PRODUCE_LITE, PRODUCE_AIOKAFKA, PRODUCE_CONFLUENT),
                (PRODUCE_LITE.on_uvloop(), PRODUCE_AIOKAFKA.on_uvloop()),
            ),
            rounds=size.rounds,
            written=topic,
        )
        for name, topic in cases.items()
    ]


def _processing(size: Size) -> list[Scenario]:
    # By the duration of a handler in ms: the keys.
    cases = {"processing": (50, 10_000), "processing-short": (5, 1_000)}
    return [
        Scenario(
            name,
            family="processing",
            title=(
                f"handle {size.handled:,} records of {keys:,} keys, 500 at a time, "
                f"{duration_ms} ms each"
            ),
            task="processing",
            figures=HANDLING,
            contestants=size.contestants(
                (HANDLING_LITE, HANDLING_AIOKAFKA, HANDLING_FASTSTREAM),
                (HANDLING_LITE.on_uvloop(),),
            ),
            rounds=size.timed_rounds,
            topics=(Topic("none", 100, size.handled, partition_count=1, key_count=keys),),
            pause_s=duration_ms / 1000,
        )
        for name, (duration_ms, keys) in cases.items()
    ]


def scaling(size: Size) -> list[Scenario]:
    """Return scenarios where one thing at a time grows: records, partitions, records in a batch.

    Ten million records are a million, read ten times by one consumer that seeks back: nobody has to
    store more. The small topics of the third way are read several times too, to take long enough.
    Wall time is no figure here: who seeks at the end of a topic waits for the fetch that is out.
    """

    def scenario(axis: str, at: int, topic: Topic, passes: int = 1) -> Scenario:
        return Scenario(
            f"{axis.replace(' ', '-')}-{at}",
            family="scaling",
            title=f"{axis}: {at:,}",
            task="bulk",
            figures=(CPU_NS,),
            contestants=(LITE_POLL,),
            rounds=size.rounds,
            topics=(topic,),
            axis=axis,
            at=at,
            passes=passes,
        )

    million = Topic("none", 100, 1_000_000)
    return [
        scenario("records", 100_000, Topic("none", 100, 100_000)),
        *(
            scenario("records", records, million, records // million.records)
            for records in (1_000_000, 3_000_000, 10_000_000)
            if records <= size.scaling_records
        ),
        *(
            scenario("partitions", count, Topic("none", 100, 500_000, partition_count=count), 2)
            for count in (1, 10, 100, 1000)
        ),
        *(
            scenario(BATCH_AXIS, count, Topic("none", 50, 100_000, batch_records=count), 5)
            for count in (1, 10, 100, 1000, 10_000)
        ),
    ]
