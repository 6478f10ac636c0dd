"""DeleteTopics (key 20).

v4 is flexible; v5 error messages, quotas (KIP-599); v6 names or ids (KIP-516), which replaced the
list of names by a list of topics.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Route,
    Struct,
    array,
    int16,
    int32,
    string,
    uuid,
)


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


class DeleteTopicsRequest(
    Request[DeleteTopicsResponse], key=20, versions="1-6", flexible="4+", route=Route.CONTROLLER
):
    """Delete topics."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")  # KIP-516
    topic_names: list[str] = array(string, "0-5", ignorable=True)
    timeout_ms: int = int32("0+")
