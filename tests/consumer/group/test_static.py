"""Members with an instance id (KIP-345), who takes whose place, and places kept over a stop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RangePartitionAssignor
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.errors import CommitFailedError, FencedInstanceIdError
from aiokafka_lite.processing import Outputs
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from aiokafka_lite.protocol.messages.consumer_group_describe import Member as DescribedMember
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    LeaveGroupRequest,
)
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.epoch_groups import beats_of, requests_of
from tests.support.group_requests import GroupRequests
from tests.support.listeners import Losing
from tests.support.protocols import in_both_protocols
from tests.support.reading import consumer_of, values
from tests.support.rows import rows, tps
from tests.support.waiting import PATIENCE_S, eventually, until

Record: TypeAlias = "ConsumerRecord[bytes | None, bytes | None]"
Settings: TypeAlias = "Mapping[str, object]"
COUNT: Final = 4
EAGER: Final[Settings] = {
    "group_protocol": "classic",
    "partition_assignment_strategy": (RangePartitionAssignor,),
}
COOPERATIVE: Final[Settings] = {
    "group_protocol": "classic",
    "partition_assignment_strategy": (CooperativeStickyPartitionAssignor,),
}
CONSUMER: Final[Settings] = {"group_protocol": "consumer"}
EVERY_ONE: Final[Mapping[str, Settings]] = {
    "eager": EAGER,
    "cooperative": COOPERATIVE,
    "consumer": CONSUMER,
}

pytestmark = pytest.mark.real_if_long


class Member:
    """A consumer whose listener's calls are on record."""

    def __init__(self, place: Place, instance_id: str | None = None, **settings: object) -> None:
        self.listener = Losing()
        arguments: dict[str, object] = {
            "bootstrap_servers": place.kafka.bootstrap_servers,
            "group_id": place.group,
            "group_instance_id": instance_id,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 6000,
            "fetch_max_wait_ms": 50,
            "retry_backoff_ms": 20,
            **place.settings,
            **settings,
        }
        self.consumer = AIOKafkaConsumer(**arguments)  # type: ignore[arg-type]
        self.consumer.subscribe([place.topic], listener=self.listener)
        place.made.append(self)

    async def start(self) -> Member:
        await asyncio.wait_for(self.consumer.start(), PATIENCE_S)
        return self

    @property
    def has(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    async def next(self) -> tuple[int, int]:
        record = await asyncio.wait_for(self.consumer.getone(), PATIENCE_S)
        return record.partition, record.offset

    async def read_on(self) -> None:
        """Read until a get raises."""
        while True:
            await self.next()

    @property
    def was_told_of(self) -> set[int]:
        """The partitions that the listener was told of as assigned, some time."""
        told = [tps for name, tps in self.told() if name == "assigned"]
        return {tp.partition for tp in set().union(*told)}

    def told(self) -> list[tuple[str, set[TopicPartition]]]:
        """What the listener was called with, but for calls about nothing."""
        return [(name, tps) for name, tps in self.listener.calls if tps]


class Place:
    """A group of a protocol, and a topic that it reads."""

    def __init__(self, kafka: KafkaHandle, topic: str, settings: Mapping[str, object]) -> None:
        self.kafka, self.topic, self.settings = kafka, topic, settings
        self.group = unique("g")
        self.made: list[Member] = []

    @property
    def is_classic(self) -> bool:
        return self.settings["group_protocol"] == "classic"

    async def instance_ids(self) -> list[str | None]:
        """The instance ids of all whom the coordinator counts in."""
        if self.is_classic:
            group = await GroupRequests(self.kafka, self.group).describe()
            return sorted((m.group_instance_id for m in group.members), key=str)
        return sorted((member.instance_id for member in await self.described()), key=str)

    async def described(self) -> list[DescribedMember]:
        """The members of a group of the consumer protocol."""
        request = ConsumerGroupDescribeRequest(group_ids=[self.group])
        async with self.kafka.raw() as client:
            (described,) = (await client.request(request)).groups
        return described.members

    def _release(self, instance_id: str, member_id: str) -> ConsumerGroupHeartbeatRequest:
        """Give a static member's place up for a while."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=member_id, member_epoch=-2, instance_id=instance_id
        )

    async def take_over(self, instance_id: str) -> Member:
        """Start another with an instance id that one has, and believes to have."""
        if not self.is_classic:
            # Nobody else may say so, and then it is free: as after a session that nobody noticed.
            # Another member has it at once, so that the older one cannot join again.
            (older,) = await self.described()
            between = str(uuid.uuid4())
            joining = ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=between,
                member_epoch=0,
                instance_id=instance_id,
                rebalance_timeout_ms=6000,
                subscribed_topic_names=[self.topic],
                topic_partitions=[],
            )
            async with self.kafka.raw() as client:
                # In between, a heartbeat of the older one would have it wait for the instance id.
                for answer in await client.requests(
                    self._release(instance_id, older.member_id), joining
                ):
                    assert answer.error_code == 0
                fenced = self.made[0].consumer
                await until(lambda: fenced.health().verdict == "dead")
                release = self._release(instance_id, between)
                assert (await client.request(release)).error_code == 0
        return await Member(self, instance_id).start()


@asynccontextmanager
async def place_of(
    kafka: KafkaHandle, settings: Mapping[str, object], *, count: int = COUNT
) -> AsyncIterator[Place]:
    place = Place(kafka, await kafka.create_topic(partitions=count), settings)
    try:
        yield place
    finally:
        await asyncio.gather(*(member.consumer.stop() for member in place.made))


def is_shared_out(*among: Member) -> bool:
    """Whether each partition has one owner, and the counts differ by one at most."""
    counts = [len(each.has) for each in among]
    held = sorted(number for each in among for number in each.has)
    return held == list(range(COUNT)) and max(counts) - min(counts) <= 1


# --- Two with the same id ---------------------------------------------------------------------
@pytest.mark.parametrize("kind", EVERY_ONE)
async def test_who_is_fenced_hands_out_and_commits_nothing_and_says_why(
    kafka: KafkaHandle, kind: str
) -> None:
    async with place_of(kafka, EVERY_ONE[kind], count=1) as place:
        tp = TopicPartition(place.topic, 0)
        await kafka.produce(place.topic, 0, rows(0, 5))
        older = await Member(place, "twin").start()
        assert await older.next() == (0, 0)

        twin = await place.take_over("twin")
        with pytest.raises(FencedInstanceIdError, match=r"'twin'.*of its own"):
            await older.read_on()
        for offsets in (None, {tp: 1}, None):
            with pytest.raises(FencedInstanceIdError, match="'twin'"):
                await older.consumer.commit(offsets)
        with pytest.raises(FencedInstanceIdError):
            await older.next()
        assert older.told() == [("assigned", {tp}), ("lost", {tp})]
        health = older.consumer.health()
        assert health.verdict == "dead"
        assert "'twin'" in health.reasons[0]
        assert "create another consumer with another group_instance_id" in health.reasons[0]
        assert await twin.consumer.committed(tp) is None
        assert await twin.next() == (0, 0)
        await twin.consumer.commit()

        # It has nothing to say to the group either, whatever it is told to.
        assert await older.consumer.stop(leave=True) == {}
        assert await place.instance_ids() == ["twin"]
        with pytest.raises(CommitFailedError, match="stopped"):
            await older.consumer.commit()
        assert await twin.consumer.committed(tp) == 1
        assert await twin.next() == (0, 1)


async def test_a_commit_during_the_callback_of_who_is_fenced_says_so(kafka: KafkaHandle) -> None:
    class Committing(Losing):
        consumer: AIOKafkaConsumer
        raised: BaseException | None = None

        async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
            await super().on_partitions_lost(lost)
            try:
                await self.consumer.commit()
            except FencedInstanceIdError as error:
                self.raised = error

    async with place_of(kafka, COOPERATIVE, count=1) as place:
        await kafka.produce(place.topic, 0, rows(0, 1))
        older, listener = Member(place, "twin"), Committing()
        listener.consumer = older.consumer
        older.consumer.subscribe([place.topic], listener=listener)
        await older.start()
        await older.next()
        await place.take_over("twin")
        await until(lambda: listener.raised is not None)


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
async def test_what_is_kept_through_a_rebalance_is_lost_when_it_ends_in_fencing(api: str) -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with place_of(kafka, COOPERATIVE) as place:
            one = await Member(place, "one").start()
            await until(lambda: one.told() == [("assigned", tps(place.topic, *range(COUNT)))])
            broker.on(api).fail(FencedInstanceIdError)
            other = await kafka.create_topic()
            one.consumer.subscribe([place.topic, other], listener=one.listener)
            await until(lambda: one.consumer.health().verdict == "dead")
            assert one.told()[1:] == [("lost", tps(place.topic, *range(COUNT)))]
            assert one.has == set()
            with pytest.raises(FencedInstanceIdError):
                await one.consumer.commit()


# --- Restarts ---------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", EVERY_ONE)
async def test_three_members_are_restarted_in_turn_and_nobody_else_moves(
    kafka: KafkaHandle, kind: str
) -> None:
    async with place_of(kafka, EVERY_ONE[kind], count=6) as place:
        names = ("one", "two", "three")
        members = {name: await Member(place, name).start() for name in names}
        await until(lambda: sorted(len(each.has) for each in members.values()) == [2, 2, 2])
        await until(lambda: all(each.was_told_of >= each.has for each in members.values()))
        shares = {name: each.has for name, each in members.items()}
        for turn, name in enumerate(names):
            mine, others = shares[name], [members[other] for other in names if other != name]
            told = [list(other.told()) for other in others]
            for partition in range(6):
                await kafka.produce(place.topic, partition, rows(turn, 1))
            await members[name].consumer.stop()
            members[name] = await Member(place, name).start()
            again = members[name]
            await until(lambda again=again, mine=mine: again.has == mine)  # type: ignore[misc]
            got = {(await again.next())[0] for _ in range(len(mine) * (turn + 1))}
            assert got == mine
            await again.consumer.commit()
            assert again.told() == [("assigned", tps(place.topic, *mine))]
            assert [other.told() for other in others] == told
        assert {name: each.has for name, each in members.items()} == shares
        assert await place.instance_ids() == sorted(names)


# --- Partitions that wait for a next owner ------------------------------------------------------
class Away(Losing):
    """Has a member end, or unsubscribe, while partitions are revoked, before it joins again."""

    def __init__(self, member: Member, way: str) -> None:
        super().__init__()
        self._member, self._way = member, way
        self.is_revoking = asyncio.Event()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await super().on_partitions_revoked(revoked)
        if not self.is_revoking.is_set():
            self.is_revoking.set()
            if self._way == "restarts":
                await asyncio.Event().wait()  # until the stop
            self._member.consumer.unsubscribe()


@pytest.mark.parametrize(
    ("way", "leads"),
    [
        pytest.param("restarts", True, id="restart-leader"),
        pytest.param("restarts", False, id="restart-follower", marks=pytest.mark.slow),
        pytest.param("unsubscribes", True, id="unsubscribe-leader", marks=pytest.mark.slow),
        pytest.param("unsubscribes", False, id="unsubscribe-follower"),
    ],
)
async def test_what_a_static_member_revokes_before_it_is_away_is_assigned(
    kafka: KafkaHandle, way: str, *, leads: bool
) -> None:
    settings = {**COOPERATIVE, "rebalance_timeout_ms": 1_000, "rebalance_hold_ms": 0}
    async with place_of(kafka, settings) as place:
        if not leads:  # it has another topic, so that it has nothing to revoke
            leader = Member(place, "leader")
            leader.consumer.subscribe([await kafka.create_topic()])
            await leader.start()
            await until(lambda: len(leader.has) == 1)
        one, two = Member(place, "one"), Member(place, "two")
        listener = Away(one, way)
        one.consumer.subscribe([place.topic], listener=listener)
        await one.start()
        await until(lambda: len(one.has) == COUNT)
        joining = asyncio.ensure_future(two.start())
        await asyncio.wait_for(listener.is_revoking.wait(), PATIENCE_S)
        if way == "restarts":
            await one.consumer.stop(1)
            one = await Member(place, "one").start()
        else:
            one.consumer.subscribe([place.topic], listener=listener)
        await joining
        await until(lambda: is_shared_out(one, two))
        assert len(one.has) == len(two.has)


# --- What a stop leaves -----------------------------------------------------------------------
STAYS: Final = {
    (None, None): False,
    (None, True): False,
    (None, False): True,
    ("one", None): True,
    ("one", True): False,
    ("one", False): True,
}


@pytest.mark.parametrize("kind", ["eager", "consumer"])
@pytest.mark.parametrize(("instance_id", "leave"), STAYS)
async def test_a_stop_leaves_or_keeps_the_place_as_it_is_told(
    kafka: KafkaHandle, kind: str, instance_id: str | None, leave: bool | None
) -> None:
    async with place_of(kafka, EVERY_ONE[kind], count=1) as place:
        await kafka.produce(place.topic, 0, rows(0, 2))
        member = await Member(place, instance_id, enable_auto_commit=True).start()
        await member.next()
        if leave is None:
            await member.consumer.stop()
        else:
            await member.consumer.stop(leave=leave)
        stays = STAYS[instance_id, leave]
        assert await place.instance_ids() == ([instance_id] if stays else [])
        # The last commit was made in either case.
        reader = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=place.group)
        reader.assign([TopicPartition(place.topic, 0)])
        async with reader:
            assert await reader.committed(TopicPartition(place.topic, 0)) == 1


async def test_async_with_keeps_to_the_default() -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with place_of(kafka, EAGER) as place:
            async with Member(place, "one").consumer, Member(place).consumer:
                pass
            assert await place.instance_ids() == ["one"]


@pytest.mark.parametrize("kind", EVERY_ONE)
async def test_the_partitions_of_who_leaves_for_good_are_others_at_once(
    kafka: KafkaHandle, kind: str
) -> None:
    async with place_of(kafka, EVERY_ONE[kind]) as place:
        one = await Member(place, "one").start()
        two = await Member(place, "two").start()
        await until(lambda: is_shared_out(one, two))
        # A session is 6 s in the classic protocol, and 45 s in the consumer protocol.
        for _ in range(2):
            began = asyncio.get_running_loop().time()
            await two.consumer.stop(leave=True)
            await until(lambda: len(one.has) == COUNT)
            assert asyncio.get_running_loop().time() - began < 4
            assert await place.instance_ids() == ["one"]
            two = await Member(place, "two").start()
            await until(lambda two=two: is_shared_out(one, two))  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["eager", "consumer"])
async def test_nobody_moves_when_a_dynamic_member_stays(kafka: KafkaHandle, kind: str) -> None:
    async with place_of(kafka, EVERY_ONE[kind]) as place:
        one, two = await Member(place).start(), await Member(place).start()
        await until(lambda: is_shared_out(one, two))
        mine, told = one.has, one.told()
        await two.consumer.stop(leave=False)
        beats = int(str(one.consumer.metrics()["heartbeats_total"])) + 6
        await until(lambda: int(str(one.consumer.metrics()["heartbeats_total"])) >= beats)
        assert (one.has, one.told()) == (mine, told)
        assert await place.instance_ids() == [None, None]


@pytest.mark.virtual_time
async def test_the_place_of_a_dynamic_member_that_stays_ends_with_its_session() -> None:
    async with Broker(group_min_session_timeout_ms=100) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with place_of(kafka, {**EAGER, "session_timeout_ms": 500}) as place:
            one, two = await Member(place).start(), await Member(place).start()
            await until(lambda: is_shared_out(one, two))
            await two.consumer.stop(leave=False)
            three = await Member(place).start()  # waits for the session, as all of the group do
            await until(lambda: is_shared_out(one, three))
            assert requests_of(broker, LeaveGroupRequest) == []


async def test_a_place_that_was_kept_when_all_was_unsubscribed_is_given_up_by_the_stop(
    kafka: KafkaHandle,
) -> None:
    for settings in (EAGER, CONSUMER):
        async with place_of(kafka, settings) as place:
            one = await Member(place, "one").start()
            one.consumer.unsubscribe()
            await until(lambda one=one: one.consumer.metrics()["group_state"] == "UNJOINED")  # type: ignore[misc]
            assert await place.instance_ids() == ["one"]
            await one.consumer.stop(leave=True)
            await eventually(place.instance_ids, [])


async def test_what_is_sent_is_what_the_documentation_says() -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        said: dict[tuple[str | None, bool | None], tuple[list[str | None], list[int]]] = {}
        for instance_id, leave in STAYS:
            for settings in (EAGER, CONSUMER):
                async with place_of(kafka, settings) as place:
                    member = await Member(place, instance_id).start()
                    await member.consumer.stop(leave=leave)
                    leaves = [
                        each.group_instance_id
                        for request in requests_of(broker, LeaveGroupRequest)
                        if request.group_id == place.group
                        for each in request.members
                    ]
                    epochs = [
                        beat.member_epoch
                        for beat in beats_of(broker)
                        if beat.group_id == place.group and beat.member_epoch < 0
                    ]
                    before = said.get((instance_id, leave), ([], []))
                    said[instance_id, leave] = (before[0] + leaves, before[1] + epochs)
        assert said == {
            (None, None): ([None], [-1]),
            (None, True): ([None], [-1]),
            (None, False): ([], []),
            ("one", None): ([], [-2]),
            ("one", True): (["one"], [-1]),
            ("one", False): ([], [-2]),
        }


@in_both_protocols
async def test_a_static_member_whose_session_is_over_takes_its_own_place_again(
    protocol: str,
) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", "v")
        listener = Losing()
        consumer = consumer_of(
            broker,
            group_id="g",
            group_instance_id="i",
            group_protocol=protocol,
            heartbeat_interval_ms=50,
        )
        consumer.subscribe(["t"], listener=listener)
        async with consumer:
            broker.expire_session("g", inside.member_id(consumer))
            calls = listener.calls
            await until(lambda: [name for name, _ in calls][-2:] == ["lost", "assigned"])
            assert await values(consumer, 1) == [b"v"]
            await consumer.commit()


def static_member(broker: Broker) -> AIOKafkaConsumer:
    return consumer_of(
        broker,
        "t",
        group_id="g",
        group_instance_id="i",
        group_protocol="classic",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
    )


async def test_a_commit_from_before_a_static_member_took_its_own_place_again_fences_nobody() -> (
    None
):
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", "v")
        consumer = static_member(broker)
        async with consumer:
            assert await values(consumer, 1) == [b"v"]
            beat = broker.on("Heartbeat").delay(0.2, 1)
            broker.expire_session("g", inside.member_id(consumer))
            await beat.reached()
            # JoinGroup has a connection of its own, and arrives earlier.
            broker.on("OffsetCommit").delay(0.5, 1)
            with pytest.raises(CommitFailedError):
                await consumer.commit()
            assert any(FencedInstanceIdError.errno in each.error_codes for each in broker.requests)
            assert await values(consumer, 1) == [b"v"]
            await consumer.commit()


async def test_a_transaction_from_before_a_static_member_took_its_own_place_again_ends_no_run() -> (
    None
):
    async with Broker() as broker:
        for topic in ("t", "out"):
            broker.create_topic(topic)
        broker.produce("t", "v")
        consumer = static_member(broker)
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="copy"
        )
        calls: list[bytes | None] = []

        async def handle(record: Record, outputs: Outputs) -> None:
            calls.append(record.value)
            outputs.send("out", record.value)
            if len(calls) == 1:
                beat = broker.on("Heartbeat").delay(0.2, 1)
                broker.expire_session("g", inside.member_id(consumer))
                await beat.reached()
                broker.on("TxnOffsetCommit").delay(2, 1)

        async with consumer, producer:
            running = asyncio.create_task(consumer.run(handle, transactions=producer))
            await until(
                lambda: any(
                    FencedInstanceIdError.errno in each.error_codes for each in broker.requests
                )
            )
            broker.produce("t", "w")
            await until(lambda: len(calls) == 3)
            await consumer.stop()
            await running
        assert calls == [b"v", b"v", b"w"]
