"""Fetch requests from a template: a consumer's differ only in session, limits and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from aiokafka_lite._compat import override
from aiokafka_lite.protocol.messages.fetch import (
    LAST_WITH_NAMES,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from aiokafka_lite.protocol.prepared import PreparedRequest
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.template import Counts, Template, Varying, compile_template

PartitionToFetch: TypeAlias = tuple[int, int, int, int]
"""Index, leader epoch (-1: not known), fetch offset, limit in bytes."""

TopicToFetch: TypeAlias = tuple[str, bytes, Sequence[PartitionToFetch]]
"""Name, id, and partitions. Which of name and id is sent depends on the version."""

TopicToForget: TypeAlias = tuple[str, bytes, Sequence[int]]
"""Name, id, and indexes of partitions to drop from the session."""

TemplateKey: TypeAlias = tuple[int, str | None, str, bool]
"""What templates differ by: version, client id, rack id, and whether one partition is named."""

_VARYING: Final[Varying] = {
    FetchRequest: (
        "max_wait_ms",
        "max_bytes",
        "session_id",
        "session_epoch",
        "topics",
        "forgotten_topics_data",
    ),
    FetchTopic: ("topic", "topic_id", "partitions"),
    FetchPartition: ("partition", "current_leader_epoch", "fetch_offset", "partition_max_bytes"),
    ForgottenTopic: ("topic", "topic_id", "partitions"),
}

# Most requests that follow a trickle name one partition: then nothing is repeated.
_ONE_PARTITION: Final[Counts] = {"topics": 1, "topics.partitions": 1, "forgotten_topics_data": 0}


class FetchTemplate:
    """Creates the Fetch requests of one consumer; their common fields are encoded once."""

    def __init__(self, *, max_wait_ms: int, min_bytes: int, isolation_level: int) -> None:
        self.max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._isolation_level = isolation_level
        self.templates: dict[TemplateKey, Template] = {}

    def request(
        self,
        *,
        session_id: int,
        session_epoch: int,
        max_bytes: int,
        topics: Sequence[TopicToFetch],
        forgotten: Sequence[TopicToForget] = (),
        rack_id: str = "",
        max_wait_ms: int | None = None,
    ) -> PreparedFetch:
        """Return a request, which refers to the arguments until it is sent."""
        return PreparedFetch(
            self,
            session_id,
            session_epoch,
            max_bytes,
            topics,
            forgotten,
            rack_id,
            self.max_wait_ms if max_wait_ms is None else max_wait_ms,
        )

    def compile(self, key: TemplateKey) -> Template:
        template = _compile(self._min_bytes, self._isolation_level, *key)
        self.templates[key] = template
        return template


@lru_cache(maxsize=64)
def _compile(
    min_bytes: int,
    isolation_level: int,
    version: int,
    client_id: str | None,
    rack_id: str,
    is_one: bool,
) -> Template:
    """Compile a template, once per process, because it takes a millisecond."""
    fixed = FetchRequest(min_bytes=min_bytes, isolation_level=isolation_level, rack_id=rack_id)
    counts = _ONE_PARTITION if is_one else {}
    return compile_template(fixed, _VARYING, version, client_id, counts)


class PreparedFetch(PreparedRequest[FetchResponse]):
    __slots__ = (
        "_template",
        "forgotten",
        "max_bytes",
        "max_wait_ms",
        "rack_id",
        "session_epoch",
        "session_id",
        "topics",
    )

    request_class = FetchRequest

    def __init__(
        self,
        template: FetchTemplate,
        session_id: int,
        session_epoch: int,
        max_bytes: int,
        topics: Sequence[TopicToFetch],
        forgotten: Sequence[TopicToForget],
        rack_id: str,
        max_wait_ms: int,
    ) -> None:
        self._template = template
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.max_bytes = max_bytes
        self.topics = topics
        self.forgotten = forgotten
        self.rack_id = rack_id
        self.max_wait_ms = max_wait_ms

    @property
    @override
    def usable_max_version(self) -> int:
        for _, topic_id, _ in self.topics:
            if topic_id == ZERO_UUID:
                return LAST_WITH_NAMES
        for _, topic_id, _ in self.forgotten:
            if topic_id == ZERO_UUID:
                return LAST_WITH_NAMES
        return FetchRequest.max_version

    @override
    def encode(self, version: int, correlation_id: int, client_id: str | None) -> bytes:
        topics, forgotten = self.topics, self.forgotten
        is_one = len(topics) == 1 and not forgotten and len(topics[0][2]) == 1
        key = version, client_id, self.rack_id, is_one
        encode = self._template.templates.get(key) or self._template.compile(key)
        return encode(
            correlation_id,
            self.max_wait_ms,
            self.max_bytes,
            self.session_id,
            self.session_epoch,
            topics,
            forgotten,
        )
