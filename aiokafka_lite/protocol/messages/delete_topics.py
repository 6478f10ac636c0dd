"""DeleteTopics (key 20).

v4 is flexible; v5 error messages, quotas (KIP-599); v6 names or ids (KIP-516), which replaced the
list of names by a list of topics.
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    string,
    uuid,
)
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps, run_to_end

_FIRST_WITH_IDS: Final = 6


class DeletableTopicResult(Struct):
    """A topic that was deleted, or why not."""

    name: str | None = string("0+", nullable="6+")
    topic_id: bytes = uuid("6+", ignorable=True)  # KIP-516
    error_code: int = int16("0+")
    error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-599


class DeleteTopicsResponse(Response):
    """The outcome by topic."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")


class DeleteTopicState(Struct):
    """A topic by name, or by id with a null name."""

    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: bytes = uuid("6+")  # KIP-516


class DeleteTopicsRequest(Request[DeleteTopicsResponse], key=20, versions="1-6", flexible="4+"):
    """Delete topics."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")  # KIP-516
    topic_names: list[str] = array(string, "0-5", ignorable=True)
    timeout_ms: int = int32("0+")

    @override
    def for_version(self, version: int) -> Self:
        if version >= _FIRST_WITH_IDS or not self.topics:
            return self
        names = [topic.name for topic in self.topics if topic.name is not None]
        if len(names) < len(self.topics):
            raise UnsupportedVersionError(
                f"a DeleteTopics v{version} request must contain topic names instead of topic ids"
            )
        return type(self)(topic_names=names, timeout_ms=self.timeout_ms)

    @override
    def from_version(self, version: int) -> Self:
        return run_to_end(self.from_version_in_steps(version))

    @override
    def from_version_in_steps(self, version: int) -> Steps[Self]:
        if version >= _FIRST_WITH_IDS:
            return self
        topics: list[DeleteTopicState] = []
        for name in self.topic_names:
            topics.append(DeleteTopicState(name=name))
            if not len(topics) % ELEMENTS_PER_STEP:
                yield
        return type(self)(topics=topics, timeout_ms=self.timeout_ms)
