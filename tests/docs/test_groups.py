"""What docs/groups.md says of groups is so: defaults, states, words, and what its programs do."""

from __future__ import annotations

import asyncio
import enum
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from aiokafka_lite import (
    AIOKafkaConsumer,
    ConsumerRebalanceListener,
    CooperativeStickyPartitionAssignor,
    TopicPartition,
)
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.config import MIGRATION_POLICIES
from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    ConsumerProtocolMemberMetadata,
    RangePartitionAssignor,
    RebalanceProtocol,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.consumer.assignors.sticky import StickyPartitionAssignor
from aiokafka_lite.consumer.config import DEFAULT_ASSIGNORS, ConsumerConfig
from aiokafka_lite.consumer.membership.classic.member import MemberState as ClassicState
from aiokafka_lite.consumer.membership.classic.rebalance import common_protocol, own_assignors
from aiokafka_lite.consumer.membership.kip848.heartbeat import (
    SETTLED_MAX_S,
    SETTLED_S_A_MEMBER,
    UNSETTLED_FOR_S,
    UNSETTLED_S,
)
from aiokafka_lite.consumer.membership.kip848.member import MemberState as ConsumerState
from aiokafka_lite.errors import UnsupportedVersionError
from tests.docs.shown_commands import commands_in, understood
from tests.support import inside
from tests.support.rows import tps
from tests.support.waiting import until

PAGE = (Path(__file__).parents[2] / "docs" / "groups.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.M)
QUOTES = [each.replace("\n> ", " ") for each in re.findall(r"^> ((?:.*\n)+?)$", PAGE, re.M)]
BOTH = ["classic", "consumer"]


def from_page(name: str) -> object:
    """What a snippet of the page calls by a name."""
    pattern = rf"^(?:async )?\w+ {name}\b|^{name} ="
    (code,) = (each for each in SNIPPETS if re.search(pattern, each, re.M))
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 -- the page's own example
    return names[name]


def section(title: str) -> str:
    """What the page says under a title."""
    return re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], flags=re.M)[0]


# --- What is stated ----------------------------------------------------------------------------
def test_defaults_are_as_stated() -> None:
    config, text = ConsumerConfig(), " ".join(PAGE.split())
    assert config.partition_assignment_strategy == DEFAULT_ASSIGNORS
    assignors = ", ".join(each.__name__ for each in DEFAULT_ASSIGNORS)
    assert f'`group_protocol` is `"{config.group_protocol}"`' in text
    assert f"`partition_assignment_strategy` is `({assignors})`" in text
    assert common_protocol(own_assignors(DEFAULT_ASSIGNORS)) is RebalanceProtocol.EAGER
    assert (
        f"minus `heartbeat_interval_ms`: {config.rebalance_hold_s:g} s if both settings have their "
        "defaults" in text
    )
    assert f"from `session_timeout_ms` ({config.rebalance_timeout_s:g} s) instead" in text
    assert f"`session_timeout_ms` ({config.session_timeout_s:g} s by default)" in text
    assert "(45 s by default) in KIP-848" in text
    assert config.group_session_s == 45
    assert f"every `heartbeat_interval_ms` ({config.heartbeat_interval_s:g} s)" in text
    assert config.group_heartbeat_interval_s is None  # by the size of the group
    assert f"| settled | {UNSETTLED_S:g} to {SETTLED_MAX_S:g} s by the size of the group" in PAGE
    assert (round(1 / SETTLED_S_A_MEMBER), "about ten heartbeats a second" in text) == (10, True)
    assert f"in the last {UNSETTLED_FOR_S:g} s | {UNSETTLED_S:g} s |" in PAGE


def test_settings_that_are_named_exist() -> None:
    arguments = inspect.signature(AIOKafkaConsumer).parameters
    table = section("Settings that are the broker's in KIP-848")
    named = re.findall(r"`(\w+_\w+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.M)))
    assert len(named) > 8
    assert [name for name in named if name not in arguments] == []


def test_table_has_every_state_of_both_protocols() -> None:
    lines = re.findall(r"^\|( `[A-Z]+`.*)\|$", PAGE, re.M)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    states = [(name, row) for row in rows for name in re.findall(r"`([A-Z]+)`", row[0])]
    by_protocol: list[tuple[type[enum.Enum], int]] = [(ClassicState, 1), (ConsumerState, 2)]
    for kind, column in by_protocol:
        told = {name for name, row in states if row[column]}
        assert told - {"FENCED", "REFUSED"} == set(kind.__members__) - {"FENCED", "REFUSED"}
    assert {"FENCED", "REFUSED"} <= {name for name, _ in states}


def test_table_has_every_policy() -> None:
    table = section("From classic to KIP-848, and back")
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) == set(MIGRATION_POLICIES)


def test_commands_are_understood() -> None:
    lines = [
        line for b in re.findall(r"```console\n(.*?)```", PAGE, re.S) for line in commands_in(b)
    ]
    assert len(lines) == 3
    for line in lines:
        understood(line)


def test_the_first_restart_is_eager_and_the_second_cooperative() -> None:
    lists = [
        own_assignors(cast("list[type[AbstractPartitionAssignor]]", from_page(name)))
        for name in ("FIRST", "SECOND")
    ]
    assert [common_protocol(each).name for each in lists] == ["EAGER", "COOPERATIVE"]
    assert type(lists[0][0]) is type(lists[1][0]) is DEFAULT_ASSIGNORS[0]
    assert {type(each) for each in lists[0]} <= set(DEFAULT_ASSIGNORS)


# --- What its programs do ------------------------------------------------------------------------
class Storage:
    """Keeps for each partition who has its table, and counts loads and saves."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, object] = {}
        self.loads = self.saves = 0

    async def load(self, tp: TopicPartition) -> object:
        self.loads += 1
        assert tp not in self.owners, "two members have it"
        self.owners[tp] = table = object()
        return table

    async def save(self, tp: TopicPartition, table: object) -> None:
        self.saves += 1
        assert self.owners.pop(tp) is table


class Tables(ConsumerRebalanceListener):
    """What the page's listener is to type checkers."""

    of: dict[TopicPartition, object]

    def __init__(self, storage: Storage) -> None: ...


@asynccontextmanager
async def members(
    broker: Broker, *listeners: ConsumerRebalanceListener | None, **settings: object
) -> AsyncIterator[list[AIOKafkaConsumer]]:
    """Members of the group "billing", none of which is started."""
    async with AsyncExitStack() as stack:
        made = []
        for listener in listeners:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=broker.bootstrap_servers,
                group_id="billing",
                heartbeat_interval_ms=100,
                auto_offset_reset="earliest",
                **settings,  # type: ignore[arg-type]
            )
            consumer.subscribe(["orders"], listener=listener)
            stack.push_async_callback(consumer.stop)
            made.append(consumer)
        yield made


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        broker.create_topic("orders", 4)
        for number in range(4):
            for _ in range(10):
                broker.produce("orders", b"one", partition=number)
        yield broker


@pytest.mark.parametrize(
    ("settings", "moved"),
    [
        ({"group_protocol": "classic"}, 4),
        ({"partition_assignment_strategy": [CooperativeStickyPartitionAssignor]}, 2),
        ({"group_protocol": "consumer"}, 2),
    ],
    ids=["eager", "cooperative", "kip848"],
)
async def test_the_tables_of_a_listener_follow_its_partitions_in_every_protocol(
    broker: Broker, settings: dict[str, object], moved: int
) -> None:
    storage = Storage()
    make = cast("type[Tables]", from_page("Tables"))
    listeners = [make(storage), make(storage)]
    async with members(broker, *listeners, **settings) as (one, two):
        await one.start()
        assert listeners[0].of.keys() == tps("orders", 0, 1, 2, 3)
        await two.start()
        await until(lambda: len(listeners[1].of) == len(listeners[0].of) == 2)
        assert one.assignment() == listeners[0].of.keys()
        assert two.assignment() == listeners[1].of.keys()
        assert (storage.saves, storage.loads) == (moved, 4 + moved)


@pytest.mark.parametrize("protocol", BOTH)
async def test_event_and_explain_say_for_what_a_rebalance_waits_in_the_words_of_the_page(
    broker: Broker, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told, explained = (as_pattern(quote) for quote in QUOTES)
    tell = cast("Callable[[AIOKafkaConsumer], Awaitable[None]]", from_page("tell_of_waiting"))
    tp = TopicPartition("orders", 3)  # which moves in both protocols
    async with members(broker, None, None, group_protocol=protocol) as (one, two):
        await one.start()
        telling = asyncio.ensure_future(tell(one))
        one.pause(*(one.assignment() - {tp}))
        assert (await one.getmany(timeout_ms=5000)).keys() == {tp}
        joining = asyncio.ensure_future(two.start())
        await until(lambda: re.fullmatch(explained, one.explain(tp)))
        await until(lambda: re.fullmatch(told, capsys.readouterr().out.strip()))
        await one.getmany(timeout_ms=0)
        await joining
        telling.cancel()


ZONES = ("zone-a", "zone-b")
RACK_AWARE = [RangePartitionAssignor, StickyPartitionAssignor, CooperativeStickyPartitionAssignor]


class InZones:
    """Partitions of which each has a replica where the page says."""

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(6))

    def replica_racks(self, topic: str) -> dict[int, frozenset[str]]:
        return {number: frozenset({zone}) for number, zone in enumerate(row_of_racks("is in")[:6])}


def row_of_racks(head: str) -> list[str]:
    """What a row of the page's example says of partitions 0 to 5, and how many are near."""
    (row,) = re.findall(rf"^\| {re.escape(head)}[^|]*\|(.*)\|$", section("Racks"), re.M)
    return [cell.strip() for cell in row.split("|")]


@pytest.mark.parametrize(
    ("head", "zones", "assignors"),
    [
        pytest.param("`range`, no", {}, [RangePartitionAssignor], id="without racks"),
        pytest.param("any of", dict(zip("AB", ZONES, strict=True)), RACK_AWARE, id="in racks"),
    ],
)
def test_members_in_zones_get_what_the_example_shows(
    head: str, zones: dict[str, str], assignors: list[type[AbstractPartitionAssignor]]
) -> None:
    *owners, near = row_of_racks(head)
    group = {
        name: ConsumerProtocolMemberMetadata(3, ["orders"], b"", rack_id=zones.get(name))
        for name in "AB"
    }
    for assignor in assignors:
        shares = assignor.assign(InZones(), group)
        told = {tp.partition: name for name in "AB" for tp in shares[name].partitions()}
        assert [told[number] for number in range(6)] == owners
    is_near = [dict(zip("AB", ZONES, strict=True))[owner] for owner in owners]
    assert near == f"{sum(map(str.__eq__, is_near, row_of_racks('is in')))} of 6"


def test_table_says_which_assignors_look_at_racks() -> None:
    rows = dict(re.findall(r"^\| (.*?) \| (yes|no|if|not)\b", section("Racks"), re.M))
    looking = {name for head, says in rows.items() if says == "yes" for name in head.split(", ")}
    assert looking == {f"`{each.name}`" for each in RACK_AWARE}
    assert [each for each in RACK_AWARE if not each.is_rack_aware] == []
    assert rows[f"`{RoundRobinPartitionAssignor.name}`"] == "no"
    assert not RoundRobinPartitionAssignor.is_rack_aware
    assert "classic group with the default assignors, `cooperative-sticky`" in section("Racks")
    assert DEFAULT_ASSIGNORS[0].name == "cooperative-sticky"


async def test_members_near_by_have_what_is_in_their_zone() -> None:
    near_by = cast("Callable[[str, str], AIOKafkaConsumer]", from_page("near_by"))
    async with Broker(nodes=2, racks=ZONES) as broker, AsyncExitStack() as stack:
        broker.create_topic("orders", 6, replication_factor=1)
        one, two = (near_by(broker.bootstrap_servers, zone) for zone in ZONES)
        for each in (one, two):
            stack.push_async_callback(each.stop)
            await each.start()
        await until(lambda: len(one.assignment()) == len(two.assignment()) == 3)
        for number, each in enumerate((one, two), start=1):
            view = inside.cluster(each).view
            places = [view.partition(tp) for tp in each.assignment()]
            assert {place.replicas for place in places if place is not None} == {(number,)}


def as_pattern(quote: str) -> str:
    """What a text is like that differs from a quote in numbers and the member's state."""
    text = re.sub(r"\\\(\w+\\\)", r"\\(\\w+\\)", re.escape(quote.strip()))
    return re.sub(r"\d+", r"\\d+", text)


async def test_auto_falls_back_to_the_default_assignor_with_one_refusal(broker: Broker) -> None:
    broker.on("ConsumerGroupHeartbeat").fail(UnsupportedVersionError, times=None)
    billing = cast("Callable[[str], AIOKafkaConsumer]", from_page("billing"))
    async with billing(broker.bootstrap_servers) as consumer:
        assert consumer.metrics()["group_protocol"] == "classic"
        assert len(consumer.assignment()) == 4
    assert len(broker.requests.of("ConsumerGroupHeartbeat")) == 1
