"""Which topic has which name now: a broker confirms it before offsets are committed by name.

A topic may be deleted and recreated, and offsets of the former one mean nothing in the new one. The
view of the cluster learns of it late if nothing is fetched meanwhile. So a broker is asked, at most
once a second. A topic that is recreated within that second may still get such offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.client import Cluster
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster_requests import metadata_request
from aiokafka_lite.consumer.commits.committed import pause
from aiokafka_lite.consumer.positions.topic_changes import NO_IDS, is_gone
from aiokafka_lite.errors import (
    ClientClosedError,
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

# For so long an id that a broker has confirmed is taken to be the topic's.
CONFIRMED_S: Final = 1.0


class ConfirmedTopics:
    """When brokers have confirmed the ids of topics. One writer: `confirm`.

    Args:
        cluster: Has the brokers, and the view that learns of a recreated topic.
        new_backoff: Makes the pauses between attempts.
    """

    def __init__(self, cluster: Cluster, new_backoff: Callable[[], Backoff]) -> None:
        self._cluster = cluster
        self._new_backoff = new_backoff
        # By name and id, the loop time of the question.
        self._confirmed: dict[tuple[str, bytes], float] = {}

    async def confirm(self, topic_ids: Mapping[str, bytes], deadline: float) -> None:
        """Have a broker confirm the ids under which topics were read, unless one has just done so.

        Raises:
            CommitFailedError: A topic was deleted, or recreated under another id.
            KafkaTimeoutError: No broker answers in time.
            KafkaError: It refuses.
        """
        asked_at = asyncio.get_running_loop().time()
        valid = {each: at for each, at in self._confirmed.items() if asked_at < at + CONFIRMED_S}
        asked = {
            name: read_as for name, read_as in topic_ids.items() if (name, read_as) not in valid
        }
        if not asked:
            return
        try:
            answer = await self._ask(asked, deadline)
        except ClientClosedError:
            return  # the consumer is stopped: its group refuses what it commits as a member
        self._confirmed = valid | dict.fromkeys(asked.items(), asked_at)
        found = {topic.name: topic for topic in answer.topics}
        former = [name for name in sorted(asked) if not self._is_same(found.get(name), asked[name])]
        if former:
            for name in former:
                del self._confirmed[name, asked[name]]
            with contextlib.suppress(KafkaError, asyncio.TimeoutError):
                async with timeout_at(deadline):
                    await self._cluster.refresh()
            raise _of_former_topics(former)

    async def _ask(self, topics: Mapping[str, bytes], deadline: float) -> MetadataResponse:
        request, backoff = metadata_request(topics.keys(), may_create=False), self._new_backoff()
        while True:
            try:
                async with timeout_at(deadline):
                    return await self._cluster.request_any(request)
            except (KafkaError, asyncio.TimeoutError) as error:
                passes = not isinstance(error, KafkaError) or error.retriable
                if isinstance(error, ClientClosedError) or not passes:
                    raise
                if not await pause(backoff, deadline):
                    raise KafkaTimeoutError(
                        f"no broker has told in time whether {sorted(topics)} were recreated"
                    ) from error

    def _is_same(self, found: MetadataResponseTopic | None, read_as: bytes) -> bool:
        """Whether an answer is about the topic that was read, or about one that was before it."""
        if found is None or found.error_code == UnknownTopicOrPartitionError.errno:
            return False
        known = self._cluster.view.topics.get(found.name or "")
        if known is not None and found.topic_id in known.former_ids:
            return True
        return read_as in (found.topic_id, *NO_IDS) or found.topic_id in NO_IDS

    def is_former(self, topic: str, read_as: bytes) -> bool:
        """Whether the topic that was read under an id is deleted, as far as the view knows."""
        view = self._cluster.view
        now = view.topic_id(topic)
        return is_gone(view, topic) or (now is not None and read_as not in (now, *NO_IDS))

    def raise_if_former(self, topic_ids: Mapping[str, bytes]) -> None:
        """Refuse offsets of topics that are deleted: one of the same name would get them.

        Raises:
            CommitFailedError: The view knows of such topics.
        """
        former = [name for name, read_as in topic_ids.items() if self.is_former(name, read_as)]
        if former:
            raise _of_former_topics(sorted(former))


def _of_former_topics(names: list[str]) -> CommitFailedError:
    return CommitFailedError(
        f"topics were deleted since their records were returned: {', '.join(names)}; "
        "the transaction is aborted"
    )
