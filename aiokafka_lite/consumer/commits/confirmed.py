"""Confirms topic ids before a transaction commits offsets by name.

Offsets of a deleted topic are invalid in a recreated one, and the metadata may be old. So a broker
is asked, at most once a second. A topic that is recreated within that second may get such offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import sleep_before
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.cluster_requests import metadata_request
from aiokafka_lite.consumer.assignment.cursor import NO_IDS
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.positions.topic_changes import is_gone
from aiokafka_lite.errors import (
    ClientClosedError,
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from aiokafka_lite.structs import TopicPartition

# How long a confirmed id is valid.
CONFIRMED_S: Final = 1.0


class ConfirmedTopics:
    """Topic ids that brokers have confirmed. One writer: `confirm`."""

    def __init__(self, cluster: Cluster, core: Core) -> None:
        self._cluster = cluster
        self._core = core
        # Loop times of the requests, by name and id.
        self._confirmed: dict[tuple[str, bytes], float] = {}

    async def confirm(
        self, topic_ids: Collection[tuple[TopicPartition, bytes]], deadline: float
    ) -> None:
        """Confirm the ids under which partitions were read, unless they were confirmed lately.

        Raises:
            CommitFailedError: A topic was deleted, or recreated under another id.
            KafkaError: A broker refuses, or no broker answers in time.
        """
        asked_at = asyncio.get_running_loop().time()
        valid = {each: at for each, at in self._confirmed.items() if asked_at < at + CONFIRMED_S}
        read = dict.fromkeys((tp.topic, read_as) for tp, read_as in topic_ids)
        asked = [each for each in read if each not in valid]
        if not asked:
            return
        try:
            answer = await self._ask({name for name, _ in asked}, deadline)
        except ClientClosedError:
            return  # the consumer is stopped: its group refuses the commit
        found = {topic.name: topic for topic in answer.topics}
        former = [each for each in asked if not self._is_same(found.get(each[0]), each[1])]
        self._confirmed = valid | {each: asked_at for each in asked if each not in former}
        if former:
            with contextlib.suppress(KafkaError, asyncio.TimeoutError):
                async with timeout_at(deadline):
                    await self._cluster.refresh()
            raise _of_former_topics(name for name, _ in former)

    async def _ask(self, topics: Collection[str], deadline: float) -> MetadataResponse:
        request, backoff = metadata_request(topics, may_create=False), self._core.new_backoff()
        while True:
            try:
                async with timeout_at(deadline):
                    return await self._cluster.request_any(request)
            except (KafkaError, asyncio.TimeoutError) as error:
                if isinstance(error, KafkaError) and not error.retriable:
                    raise
                if not await sleep_before(deadline, backoff.next_delay_s()):
                    raise KafkaTimeoutError(
                        "offsets cannot be committed, because no broker confirmed in time that "
                        f"the topics {sorted(topics)} were not recreated"
                    ) from error

    def _is_same(self, found: MetadataResponseTopic | None, read_as: bytes) -> bool:
        """Whether the response is for the topic that was read, or for an older one."""
        if found is None or found.error_code == UnknownTopicOrPartitionError.errno:
            return False
        known = self._cluster.view.topics.get(found.name or "")
        if known is not None and found.topic_id in known.former_ids:
            return True
        return read_as in (found.topic_id, *NO_IDS) or found.topic_id in NO_IDS

    def is_former(self, topic: str, read_as: bytes) -> bool:
        view = self._cluster.view
        now = view.topic_id(topic)
        return is_gone(view, topic) or (now is not None and read_as not in (now, *NO_IDS))

    def raise_if_former(self, topic_ids: Collection[tuple[TopicPartition, bytes]]) -> None:
        former = [tp for tp, read_as in topic_ids if self.is_former(tp.topic, read_as)]
        if former:
            raise _of_former_topics(tp.topic for tp in former)


def _of_former_topics(names: Iterable[str]) -> CommitFailedError:
    return CommitFailedError(
        "the transaction is aborted, because topics were deleted after their records were "
        f"returned: {', '.join(sorted({*names}))}"
    )
