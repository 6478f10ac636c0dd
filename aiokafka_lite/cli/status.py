"""The broker's status page over HTTP, on 127.0.0.1 only: a page that reads JSON, without changes.

A view is a page of rows, made in slices of the loop's time. Long names and lists are cut: `total`
is the number of all rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

from aiokafka_lite import __version__
from aiokafka_lite._pages import (
    ROWS,
    SHARED,
    Answer,
    Json,
    PageQuery,
    clip,
    problem,
    read_assets,
    refusal,
)
from aiokafka_lite._pages.serving import listening
from aiokafka_lite.broker import Broker, Partition, Topic
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.members import ClassicGroupMember
from aiokafka_lite.broker.groups.coordinator import Group
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup, ConsumerGroupMember
from aiokafka_lite.broker.groups.kip848.machine import preferred_assignor
from aiokafka_lite.broker.groups.modern.group import ModernMember
from aiokafka_lite.broker.groups.share.assignor import ASSIGNOR
from aiokafka_lite.broker.groups.share.group import ShareGroup, ShareGroupMember
from aiokafka_lite.broker.network.processor import Processor
from aiokafka_lite.broker.network.request_log import SeenRequest
from aiokafka_lite.broker.node import BrokerNode
from aiokafka_lite.broker.slices import LoopSlices
from aiokafka_lite.errors import BrokerResponseError, KafkaError, for_code
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import OffsetCommitValue
from aiokafka_lite.protocol.messages.group_members import ConsumerProtocolAssignment
from aiokafka_lite.protocol.wire import uuid_to_str

MOST_NAMED: Final = 20


def numbers_text(numbers: Sequence[int]) -> str:
    more = len(numbers) - MOST_NAMED
    named = ", ".join(map(str, numbers[:MOST_NAMED]))
    return f"{named} and {more} more" if more > 0 else named


class MeasuredSlices(LoopSlices):
    """Measures the time worked, without that of other tasks."""

    def __init__(self) -> None:
        super().__init__()
        self._began = self._now_s()
        self._worked_s = 0.0

    @property
    def worked_s(self) -> float:
        return self._worked_s + self._now_s() - self._began

    async def maybe_rest(self) -> None:
        """Yield to the event loop if the slice is used up. Called after each piece of work."""
        if self.is_over:
            self._worked_s = self.worked_s
            await self.rest()
            self._began = self._now_s()


T = TypeVar("T")


class NotThereError(Exception):
    pass


async def overview(broker: Broker, query: PageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    """Return the numbers above every view."""
    config = broker.config
    return {
        "version": __version__,
        "bootstrap_servers": clip(broker.bootstrap_servers),
        "cluster_id": broker.cluster_id,
        "storage": "memory" if config.data_dir is None else clip(str(config.data_dir)),
        "controller": broker.controller_id,
        "failure": None if broker.failure is None else clip(repr(broker.failure)),
        "nodes": [_node(node) for node in islice(broker.nodes.values(), ROWS)],
        "topics": len(broker.topics),
        "partitions": broker.catalog.partition_count,
        "groups": sum(len(node.groups.groups) for node in broker.nodes.values()),
        "connections": broker.connection_count,
        "requests": broker.requests.total,
    }


def _node(node: BrokerNode) -> dict[str, Json]:
    return {
        "id": node.id,
        "address": node.bootstrap_servers,
        "rack": node.address.rack,
        "is_up": node.is_up,
        "connections": node.connection_count,
    }


async def topics(broker: Broker, query: PageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    found = broker.topics.values()
    return await _page(found, query, slices, _topic_row, name=lambda topic: topic.name)


async def _topic_row(each: Topic, slices: MeasuredSlices) -> dict[str, Json]:
    records = size_bytes = leaderless = 0
    for partition in tuple(each.partitions):
        records += partition.high_watermark - partition.log_start_offset
        size_bytes += partition.log.size
        leaderless += partition.leader_id < 0
        await slices.maybe_rest()
    return {
        "name": each.name,
        "is_internal": each.is_internal,
        "partitions": each.partition_count,
        "replication": len(each.partitions[0].replicas),
        "leaderless": leaderless,
        "records": records,
        "size_bytes": size_bytes,
        "configs": clip(", ".join(f"{k}={v}" for k, v in each.config.overrides.items())),
    }


async def topic(broker: Broker, query: PageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    each = broker.topics.get(query.name)
    if each is None:
        raise NotThereError("there is no such topic")
    return {
        "name": each.name,
        "id": uuid_to_str(each.topic_id),
        "configs": clip(", ".join(f"{k}={v}" for k, v in each.config.overrides.items())),
        **await _page(each.partitions, query, slices, _partition_row, name=lambda p: str(p.index)),
    }


async def _partition_row(each: Partition, slices: MeasuredSlices) -> dict[str, Json]:
    await slices.maybe_rest()
    return {
        "partition": each.index,
        "leader": each.leader_id,
        "leader_epoch": each.leader_epoch,
        "replicas": numbers_text(each.replicas),
        "isr": numbers_text(each.isr),
        "start": each.log_start_offset,
        "end": each.high_watermark,
        "records": each.high_watermark - each.log_start_offset,
        "size_bytes": each.log.size,
    }


class _CoordinatedGroup(NamedTuple):
    node: BrokerNode
    group: Group


def _all_groups(broker: Broker) -> Iterator[_CoordinatedGroup]:
    for node in broker.nodes.values():
        for each in tuple(node.groups.groups.values()):
            yield _CoordinatedGroup(node, each)


async def groups(broker: Broker, query: PageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    async def row(each: _CoordinatedGroup, slices: MeasuredSlices) -> dict[str, Json]:
        lag: int | None = None
        partitions = 0
        async for _, _, _, behind in _lags(broker, each, slices):
            lag = behind if lag is None else lag + (behind or 0)
            partitions += 1
        return {**group_fields(each.node, each.group), "partitions": partitions, "lag": lag}

    found = _all_groups(broker)
    return await _page(found, query, slices, row, name=lambda each: each.group.group_id)


async def group(broker: Broker, query: PageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    found = next((each for each in _all_groups(broker) if each.group.group_id == query.name), None)
    if found is None:
        raise NotThereError("there is no such group")

    async def row(each: _Lag, slices: MeasuredSlices) -> dict[str, Json]:
        topic_name, partition, committed, lag = each
        return {
            "topic": topic_name,
            "partition": partition,
            "committed": committed.offset,
            "lag": lag,
            "metadata": clip(committed.metadata),
            "committed_at_ms": committed.commit_timestamp,
        }

    lags = [each async for each in _lags(broker, found, slices)]
    return {
        **group_fields(found.node, found.group),
        "member_rows": member_rows(broker, found.group),
        **await _page(lags, query, slices, row, name=lambda each: each[0]),
    }


# Topic, partition, committed offset, and the records after it, None if unknown.
_Lag: TypeAlias = tuple[str, int, OffsetCommitValue, int | None]


async def _lags(
    broker: Broker, each: _CoordinatedGroup, slices: MeasuredSlices
) -> AsyncIterator[_Lag]:
    committed = each.node.groups.offsets.fetch_all(each.group.group_id)
    for name, offsets in tuple(committed.items()):
        topic = broker.topics.get(name)
        for index, offset in tuple(offsets.items()):
            partition = None if topic is None else topic.partition(index)
            # The lag of a committed offset beyond the end is 0.
            lag = None if partition is None else max(partition.high_watermark - offset.offset, 0)
            yield name, index, offset, lag
            await slices.maybe_rest()


async def connections(broker: Broker, query: PageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    """Include the latest request of each that the log still has."""
    latest: dict[str, SeenRequest] = {}
    for seen in broker.requests:
        latest[seen.peer] = seen
        await slices.maybe_rest()

    async def row(each: tuple[BrokerNode, Processor], slices: MeasuredSlices) -> dict[str, Json]:
        await slices.maybe_rest()
        node, connection = each
        seen = latest.get(connection.peer)
        return {
            "peer": connection.peer,
            "node": node.id,
            "client": None if seen is None else clip(seen.client_id or ""),
            "request": None if seen is None else f"{seen.api} v{seen.api_version}",
            "is_waiting": seen is not None and seen.answered_at is None,
            "idle_s": round(broker.loop.time() - connection.last_active_at, 3),
        }

    everyone = [
        (node, connection) for node in broker.nodes.values() for connection in node.connections
    ]
    return await _page(everyone, query, slices, row, name=lambda each: each[1].peer)


async def requests(broker: Broker, query: PageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    now = broker.loop.time()

    async def row(seen: SeenRequest, slices: MeasuredSlices) -> dict[str, Json]:
        await slices.maybe_rest()
        took_s = None if seen.answered_at is None else seen.answered_at - seen.arrived_at
        return {
            "number": seen.number,
            "ago_s": round(now - seen.arrived_at, 3),
            "api": f"{seen.api} v{seen.api_version}",
            "node": seen.node_id,
            "client": clip(seen.client_id or ""),
            "peer": seen.peer,
            "size_bytes": seen.size_bytes,
            "took_ms": None if took_s is None else round(took_s * 1000, 3),
            "errors": ", ".join(_error_name(code) for code in sorted(seen.error_codes)),
        }

    def name(seen: SeenRequest) -> str:
        return f"{seen.api} {seen.client_id or ''} {seen.peer}"

    return await _page(reversed(list(broker.requests)), query, slices, row, name=name)


def _error_name(code: int) -> str:
    return for_code(code).message if code in BrokerResponseError.by_code else str(code)


async def _page(
    things: Iterable[T],
    query: PageQuery,
    slices: MeasuredSlices,
    row: Callable[[T, MeasuredSlices], Awaitable[dict[str, Json]]],
    *,
    name: Callable[[T], str],
) -> dict[str, Json]:
    """Return the rows of a page. Concurrent changes do not matter."""
    chosen: Sequence[T] = things if isinstance(things, list) else list(things)
    if query.find:
        wanted, found = query.find.lower(), []
        for each in chosen:
            if wanted in name(each).lower():
                found.append(each)
            await slices.maybe_rest()
        chosen = found
    first = (query.page - 1) * ROWS
    return {
        "total": len(chosen),
        "page": query.page,
        "page_rows": ROWS,
        "rows": [await row(each, slices) for each in chosen[first : first + ROWS]],
    }


# Decoding more would block the loop.
MOST_DECODED_BYTES: Final = 16 << 10


def group_fields(coordinator: BrokerNode, group: Group) -> dict[str, Json]:
    if isinstance(group, ConsumerGroup):
        kind, generation = group.type, group.epoch
        assignor: str | None = preferred_assignor(group.members.values())
    elif isinstance(group, ShareGroup):
        kind, generation, assignor = group.type, group.epoch, ASSIGNOR
    else:
        kind, generation, assignor = "classic", group.generation, group.protocol
    return {
        "id": group.group_id,
        "state": group.state.value,
        "type": kind,
        "protocol": clip(assignor or ""),
        "generation": generation,
        "members": len(group.members),
        "coordinator": coordinator.id,
    }


def member_rows(broker: Broker, group: Group) -> list[Json]:
    if isinstance(group, ClassicGroup):
        return [
            _row(member, member.instance_id, _decoded_text(member.assignment))
            for member in islice(group.members.values(), ROWS)
        ]
    members: Iterable[ConsumerGroupMember | ShareGroupMember] = group.members.values()
    return [
        _row(
            member,
            member.instance_id if isinstance(member, ConsumerGroupMember) else None,
            _assigned_text(broker, member.assigned),
        )
        for member in islice(members, ROWS)
    ]


def _row(
    member: ClassicGroupMember | ModernMember, instance_id: str | None, assignment: str
) -> dict[str, Json]:
    return {
        "member": clip(member.member_id),
        "instance": None if instance_id is None else clip(instance_id),
        "client": clip(member.client_id),
        "host": member.client_host.removeprefix("/"),
        "assignment": assignment,
    }


def _assigned_text(broker: Broker, assigned: Mapping[bytes, Iterable[int]]) -> str:
    named = []
    for topic_id, partitions in assigned.items():
        topic = broker.topic_by_id(topic_id)
        if topic is not None:
            named.append(f"{topic.name} {numbers_text(sorted(partitions))}")
    return clip(", ".join(named))


def _decoded_text(assignment: bytes) -> str:
    """Empty if the leader's assignment cannot be decoded."""
    if not assignment:
        return ""
    if len(assignment) > MOST_DECODED_BYTES:
        return f"{len(assignment):,} bytes"
    try:
        topics = decode_versioned(ConsumerProtocolAssignment, assignment).assigned_partitions
    except (KafkaError, ValueError):
        return f"{len(assignment):,} bytes that cannot be decoded"
    return clip(", ".join(f"{each.topic} {numbers_text(each.partitions)}" for each in topics))


# --- The page over HTTP -----------------------------------------------------------------------
HOST: Final = "127.0.0.1"
VIEWS: Final[
    Mapping[str, Callable[[Broker, PageQuery, MeasuredSlices], Awaitable[dict[str, Json]]]]
] = {
    "api/overview": overview,
    "api/topics": topics,
    "api/topic": topic,
    "api/groups": groups,
    "api/group": group,
    "api/connections": connections,
    "api/requests": requests,
}
MOST_REMEMBERED: Final = 100
# A view is recreated after this multiple of its cost: at most 1 % of the loop's time.
REST_PER_WORK: Final = 99
LEAST_REFRESH_MS: Final = 1_000


class _CachedView(NamedTuple):
    body: bytes
    until: float


class StatusPage:
    """Responds to requests. `hosts` are the accepted Host headers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.hosts: frozenset[str] = frozenset()
        self._files = {**SHARED, **read_assets(__package__, ("index.html", "status.js"))}
        self._files[""] = self._files.pop("index.html")
        self._cached: dict[tuple[str, PageQuery], _CachedView] = {}
        self._one_at_a_time = asyncio.Lock()

    async def answer(
        self, method: str, hosts: Sequence[str], path: str, parameters: Mapping[str, str]
    ) -> Answer:
        names = " or ".join(sorted(self.hosts))
        refused = refusal(method, hosts, self.hosts.__contains__, f"ask for {names}")
        if refused is not None:
            return refused
        if path in self._files:
            return self._files[path]
        if path not in VIEWS:
            return problem(404, "this page does not exist")
        return await self._view(path, PageQuery.of(parameters))

    async def _view(self, path: str, query: PageQuery) -> Answer:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            cached = self._cached.get((path, query))
            if cached is None or cached.until < loop.time():
                slices = MeasuredSlices()
                try:
                    view = await VIEWS[path](self._broker, query, slices)
                except NotThereError as error:
                    return problem(404, str(error))
                rest_s = slices.worked_s * REST_PER_WORK
                view["refresh_ms"] = max(LEAST_REFRESH_MS, int(rest_s * 1000))
                cached = _CachedView(json.dumps(view).encode(), loop.time() + rest_s)
                if len(self._cached) >= MOST_REMEMBERED:
                    self._cached.clear()
                self._cached[path, query] = cached
        return Answer(cached.body)


@asynccontextmanager
async def serve(broker: Broker, *, port: int = 0) -> AsyncIterator[str]:
    """Serve a broker's page during an `async with` block, which yields its address."""
    page = StatusPage(broker)
    hint = " (--status-port), or disable the page (--no-status)"
    async with listening(page.answer, HOST, port, name="the status page", hint=hint) as url:
        page.hosts = frozenset(f"{name}:{urlsplit(url).port}" for name in (HOST, "localhost"))
        yield url
