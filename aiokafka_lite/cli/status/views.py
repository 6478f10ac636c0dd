"""What the status page shows of a broker, as JSON: a page of rows at a time, made in slices.

Only what `Broker` offers to everybody is read, and nothing is written. Names are cut where they
are longer than anyone reads, lists where they are longer than anyone scrolls: `total` says how many
there are.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from aiokafka_lite import __version__
from aiokafka_lite._pages import ROWS, Json, clip, page_number
from aiokafka_lite.broker import Broker, Partition, Topic
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.offsets.cache import CommittedOffset
from aiokafka_lite.broker.network.processor import Processor
from aiokafka_lite.broker.network.request_log import SeenRequest
from aiokafka_lite.broker.node import BrokerNode
from aiokafka_lite.cli.status.group_rows import group_fields, member_rows
from aiokafka_lite.cli.status.slices import MeasuredSlices
from aiokafka_lite.cli.status.values import numbers_text
from aiokafka_lite.errors import BrokerResponseError, for_code
from aiokafka_lite.protocol.schema import uuid_to_str

T = TypeVar("T")


class NotThereError(Exception):
    """The topic, group or page does not exist, or no more."""


class BrokerPageQuery(NamedTuple):
    """The parameters of a request.

    Attributes:
        name: Of the topic or the group that it is about.
        find: Rows have this in their names.
        page: Counts from 1.
    """

    name: str
    find: str
    page: int

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> BrokerPageQuery:
        """Read a request's parameters; what cannot be a page is the first."""
        return cls(
            name=parameters.get("name", ""),
            find=parameters.get("find", ""),
            page=page_number(parameters.get("page", "")),
        )


async def overview(
    broker: Broker, query: BrokerPageQuery, slices: MeasuredSlices
) -> dict[str, Json]:
    """Return what stands above every view: the cluster, and how much there is of everything."""
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


async def topics(broker: Broker, query: BrokerPageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    """Return the topics in the order they were made."""
    page = await _page(broker.topics.values(), query, slices, name=lambda topic: topic.name)
    return await page.to_json(_topic_row, slices)


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


async def topic(broker: Broker, query: BrokerPageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    """Return one topic's partitions."""
    each = broker.topics.get(query.name)
    if each is None:
        raise NotThereError("there is no such topic")
    page = await _page(each.partitions, query, slices, name=lambda p: str(p.index))
    return {
        "name": each.name,
        "id": uuid_to_str(each.topic_id),
        "configs": clip(", ".join(f"{k}={v}" for k, v in each.config.overrides.items())),
        **await page.to_json(_partition_row, slices),
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


async def groups(broker: Broker, query: BrokerPageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    """Return the groups."""

    async def row(each: _CoordinatedGroup, slices: MeasuredSlices) -> dict[str, Json]:
        lag: int | None = None
        partitions = 0
        async for _, _, _, behind in _lags(broker, each, slices):
            lag = behind if lag is None else lag + (behind or 0)
            partitions += 1
        return {**group_fields(each.node, each.group), "partitions": partitions, "lag": lag}

    page = await _page(_all_groups(broker), query, slices, name=lambda each: each.group.group_id)
    return await page.to_json(row, slices)


async def group(broker: Broker, query: BrokerPageQuery, slices: MeasuredSlices) -> dict[str, Json]:
    """Return one group's members and what it has committed."""
    found = next((each for each in _all_groups(broker) if each.group.group_id == query.name), None)
    if found is None:
        raise NotThereError("there is no such group")
    offsets: list[Json] = []
    total, first = 0, (query.page - 1) * ROWS
    async for topic_name, partition, committed, lag in _lags(broker, found, slices):
        if first <= total < first + ROWS:
            offsets.append(
                {
                    "topic": topic_name,
                    "partition": partition,
                    "committed": committed.offset,
                    "lag": lag,
                    "metadata": clip(committed.metadata),
                    "committed_at_ms": committed.commit_timestamp_ms,
                }
            )
        total += 1
    return {
        **group_fields(found.node, found.group),
        "member_rows": member_rows(broker, found.group),
        "total": total,
        "page": query.page,
        "rows": offsets,
    }


async def _lags(
    broker: Broker, each: _CoordinatedGroup, slices: MeasuredSlices
) -> AsyncIterator[tuple[str, int, CommittedOffset, int | None]]:
    """Yield topic, partition, what is committed, and the records after it, None if unknown."""
    committed = each.node.groups.offsets.fetch_all(each.group.group_id)
    for name, offsets in tuple(committed.items()):
        topic = broker.topics.get(name)
        for index, offset in tuple(offsets.items()):
            partition = None if topic is None else topic.partition(index)
            # A commit of an offset that is gone since, or is not there yet, is behind by nothing.
            lag = None if partition is None else max(partition.high_watermark - offset.offset, 0)
            yield name, index, offset, lag
            await slices.maybe_rest()


async def connections(
    broker: Broker, query: BrokerPageQuery, slices: MeasuredSlices
) -> dict[str, Json]:
    """Return the open connections, with the latest request of each that the log still has."""
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
    page = await _page(everyone, query, slices, name=lambda each: each[1].peer)
    return await page.to_json(row, slices)


async def requests(
    broker: Broker, query: BrokerPageQuery, slices: MeasuredSlices
) -> dict[str, Json]:
    """Return the latest requests, the newest first."""
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

    page = await _page(reversed(list(broker.requests)), query, slices, name=name)
    return await page.to_json(row, slices)


def _error_name(code: int) -> str:
    return for_code(code).message if code in BrokerResponseError.by_code else str(code)


class _Page(Generic[T]):
    """The things of one page, before they are made rows."""

    def __init__(self, things: Sequence[T], total: int, number: int) -> None:
        self._things = things
        self._total = total
        self._number = number

    async def to_json(
        self, row: Callable[[T, MeasuredSlices], Awaitable[dict[str, Json]]], slices: MeasuredSlices
    ) -> dict[str, Json]:
        """Make the rows."""
        return {
            "total": self._total,
            "page": self._number,
            "page_rows": ROWS,
            "rows": [await row(each, slices) for each in self._things],
        }


async def _page(
    things: Iterable[T], query: BrokerPageQuery, slices: MeasuredSlices, *, name: Callable[[T], str]
) -> _Page[T]:
    """Choose what the query wants to see; what changes meanwhile does not matter."""
    chosen: Sequence[T] = things if isinstance(things, list) else list(things)
    if query.find:
        wanted, found = query.find.lower(), []
        for each in chosen:
            if wanted in name(each).lower():
                found.append(each)
            await slices.maybe_rest()
        chosen = found
    first = (query.page - 1) * ROWS
    return _Page(chosen[first : first + ROWS], len(chosen), query.page)
