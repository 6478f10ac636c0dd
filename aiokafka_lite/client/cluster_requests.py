"""Requests that every client sends to a cluster, and the errors in their responses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    MetadataEmptyBrokerList,
    NodeNotReadyError,
    NoError,
    RebootstrapRequiredError,
    RequestTimedOutError,
    TLSError,
    for_code,
)
from aiokafka_lite.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

if TYPE_CHECKING:
    from aiokafka_lite.protocol.messages.metadata import (
        FindCoordinatorRequest,
        FindCoordinatorResponse,
    )

# After this time, another broker is asked.
MAX_METADATA_WAIT_S: Final = 10.0
GROUP_COORDINATOR: Final = 0
# Errors that another node may not return.
PASSING_ERRORS: Final = (
    KafkaConnectionError,
    KafkaProtocolError,
    NodeNotReadyError,
    RequestTimedOutError,
)


def metadata_request(topics: Collection[str] | None, *, may_create: bool) -> MetadataRequest:
    return MetadataRequest(
        topics=None
        if topics is None
        else [MetadataRequestTopic(name=topic) for topic in sorted(topics)],
        allow_auto_topic_creation=may_create,
    )


def raise_for_rebootstrap(response: MetadataResponse) -> None:
    if response.error_code == RebootstrapRequiredError.errno:
        raise RebootstrapRequiredError(
            "the broker requires the client to contact its bootstrap servers again (KIP-1102)"
        )


def raise_for_metadata(response: MetadataResponse) -> None:
    if response.error_code != NoError.errno:
        raise for_code(response.error_code)("the broker refuses metadata")
    if not response.brokers:
        raise MetadataEmptyBrokerList(
            "the metadata response lists no brokers, because the broker is still starting"
        )


def coordinator_request(key: str, key_type: int = GROUP_COORDINATOR) -> FindCoordinatorRequest:
    # Only groups need it.
    from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest

    return FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])


def coordinator_of(key: str, response: FindCoordinatorResponse) -> Node:
    # Before version 4, responses contain no key.
    answers = [answer for answer in response.coordinators if answer.key in (key, "")]
    if not answers:
        raise KafkaProtocolError(f"the broker's FindCoordinator response does not contain {key!r}")
    found = answers[0]
    if found.error_code != NoError.errno:
        error_class = for_code(found.error_code)
        reason = found.error_message or error_class.message
        raise error_class(f"the broker found no coordinator for {key!r}: {reason}")
    return Node(found.node_id, found.host, found.port)


def is_refused(error: KafkaError) -> bool:
    return isinstance(error.__cause__, ConnectionRefusedError)


def no_usable_broker(failures: Sequence[KafkaError]) -> KafkaConnectionError:
    is_tls = bool(failures) and all(isinstance(error, TLSError) for error in failures)
    reasons = "; ".join(reason(error) for error in failures) or "no broker is known"
    error_class = TLSError if is_tls else KafkaConnectionError
    error = error_class(f"no broker can be used: {reasons}")
    error.__cause__ = failures[-1] if failures else None
    return error


def reason(error: KafkaError) -> str:
    return str(error.args[0]) if error.args else str(error)
