"""Share groups from outside of their members: settings, a first join, and what is finished."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from aiokafka_lite.errors import for_code
from aiokafka_lite.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from aiokafka_lite.protocol.messages.share import ShareGroupHeartbeatRequest
from aiokafka_lite.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from tests.support.wire import RawClient

_GROUP_RESOURCE: Final = 32
_SET: Final = 0
_JOIN_EPOCH: Final = 0
_LEAVE_EPOCH: Final = -1
_JOIN_S: Final = 20.0
_PAUSE_S: Final = 0.1
_LATEST: Final = -1


async def configure_share_group(address: str, group: str, settings: Mapping[str, str]) -> None:
    """Set what a share group has at the cluster, by names without "share.".

    Raises:
        KafkaError: The cluster refused it.
    """
    configs = [
        AlterableConfig(name=f"share.{name}", config_operation=_SET, value=value)
        for name, value in settings.items()
    ]
    resource = AlterConfigsResource(
        resource_type=_GROUP_RESOURCE, resource_name=group, configs=configs
    )
    async with RawClient(address) as client:
        answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
    result = answer.responses[0]
    if result.error_code:
        raise for_code(result.error_code)(f"settings of {group}: {result.error_message}")


async def coordinator_address(address: str, group: str) -> str:
    """Return where a group's coordinator is; waits until there is one."""
    deadline = time.monotonic() + _JOIN_S
    while True:
        async with RawClient(address) as client:
            request = FindCoordinatorRequest(coordinator_keys=[group])
            (found,) = (await client.request(request)).coordinators
        if not found.error_code:
            return f"{found.host}:{found.port}"
        if time.monotonic() > deadline:
            raise for_code(found.error_code)(f"no coordinator of {group} in {_JOIN_S:g} s")
        await asyncio.sleep(_PAUSE_S)


async def initialize_share_group(address: str, group: str, topics: Sequence[str]) -> None:
    """Have a member join a group until it is assigned partitions, and leave.

    So the group has partitions that are initialised, which takes a second.
    """
    member_id, epoch = str(uuid.uuid4()), _JOIN_EPOCH
    deadline = time.monotonic() + _JOIN_S
    async with RawClient(await coordinator_address(address, group)) as client:
        while True:
            beat = ShareGroupHeartbeatRequest(
                group_id=group,
                member_id=member_id,
                member_epoch=epoch,
                subscribed_topic_names=[*topics] if epoch == _JOIN_EPOCH else None,
            )
            answer = await client.request(beat)
            epoch = epoch if answer.error_code else answer.member_epoch
            if answer.assignment and answer.assignment.topic_partitions:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{group} has no assignment for {_JOIN_S:g} s: {answer}")
            await asyncio.sleep(_PAUSE_S)
        leave = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=_LEAVE_EPOCH
        )
        await client.request(leave)


async def log_ends(client: RawClient, topic: str, partition_count: int) -> int:
    """Return the sum of the high watermarks of a topic, all of whose leaders are this node."""
    partitions = [
        ListOffsetsPartition(partition_index=index, timestamp=_LATEST)
        for index in range(partition_count)
    ]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=partitions)])
    (answer,) = (await client.request(request)).topics
    return sum(each.offset for each in answer.partitions)


class FinishedRecords:
    """Watches how many records of its topics a share group has finished, as the cluster knows it.

    That is what the lag of the group lacks to all records (KIP-1226). The stored start offsets
    would not do: brokers store them with the next change.

    Args:
        end: Returns how many records the topics have.

    Attributes:
        count: How many are finished.
        seen: Times in nanoseconds, and the count from then on.
    """

    def __init__(
        self, address: str, group: str, every_s: float, end: Callable[[], Awaitable[int]]
    ) -> None:
        self._address: Final = address
        self._group: Final = group
        self._every_s: Final = every_s
        self._end: Final = end
        self.count = 0
        self.seen: Final[list[tuple[int, int]]] = []
        self._wanted = sys.maxsize
        self._is_reached: Final = asyncio.Event()

    async def reach(self, count: int, within_s: float) -> bool:
        """Wait until so many records are finished, and return whether that was in time."""
        self._wanted = count
        if self.count < count:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_reached.wait(), within_s)
        return self.count >= count

    async def watch(self) -> None:
        """Ask again and again, until this is cancelled."""
        while True:
            try:
                await self._watch()
            except (OSError, EOFError):
                await asyncio.sleep(_PAUSE_S)  # another node coordinates the group soon

    async def _watch(self) -> None:
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=self._group, topics=None)
        request = DescribeShareGroupOffsetsRequest(groups=[asked])
        address = await coordinator_address(self._address, self._group)
        async with RawClient(address) as client:
            while True:
                end = await self._end()
                (described,) = (await client.request(request)).groups
                now_ns = time.monotonic_ns()
                if described.error_code:
                    raise OSError(described.error_message)
                lags = [each.lag for topic in described.topics for each in topic.partitions]
                # A record that was written meanwhile would count as finished.
                if lags and min(lags) >= 0 and end == await self._end():
                    self._note(now_ns, end - sum(lags))
                await asyncio.sleep(self._every_s)

    def _note(self, now_ns: int, count: int) -> None:
        if count > self.count:
            self.count = count
            self.seen.append((now_ns, count))
        if count >= self._wanted:
            self._is_reached.set()
