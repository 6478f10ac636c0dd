"""What is asked of a cluster, and what the answers mean."""

from __future__ import annotations

import pytest

from aiokafka_lite.client.cluster_requests import (
    coordinator_of,
    metadata_request,
    no_usable_broker,
    raise_for_metadata,
    raise_for_rebootstrap,
)
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import (
    ClusterAuthorizationFailedError,
    CoordinatorNotAvailableError,
    KafkaConnectionError,
    KafkaProtocolError,
    MetadataEmptyBrokerList,
    RebootstrapRequiredError,
    TLSError,
)
from aiokafka_lite.protocol.messages.metadata import (
    Coordinator,
    FindCoordinatorResponse,
    MetadataResponse,
    MetadataResponseBroker,
)


def test_metadata_are_asked_for_all_topics_or_some() -> None:
    assert metadata_request(None, may_create=False).topics is None
    some = metadata_request({"b", "a"}, may_create=True)
    assert [each.name for each in some.topics or ()] == ["a", "b"]
    assert some.allow_auto_topic_creation
    assert metadata_request((), may_create=False).topics == []


def test_metadata_that_make_no_view_are_an_error() -> None:
    node = MetadataResponseBroker(node_id=1, host="h", port=9092)
    raise_for_metadata(MetadataResponse(brokers=[node]))
    with pytest.raises(MetadataEmptyBrokerList):
        raise_for_metadata(MetadataResponse())
    raise_for_rebootstrap(MetadataResponse(error_code=31))
    with pytest.raises(RebootstrapRequiredError):
        raise_for_rebootstrap(MetadataResponse(error_code=129))
    with pytest.raises(ClusterAuthorizationFailedError):
        raise_for_metadata(MetadataResponse(brokers=[node], error_code=31))


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Coordinator(key="g", node_id=0, host="h", port=9092), Node(0, "h", 9092)),
        (Coordinator(key="", node_id=1, host="h", port=9092), Node(1, "h", 9092)),
        (Coordinator(key="other", node_id=1, host="h", port=9092), KafkaProtocolError),
        (Coordinator(key="g", error_code=15), CoordinatorNotAvailableError),
    ],
)
def test_a_coordinator_is_that_of_the_group(
    answer: Coordinator, found: Node | type[Exception]
) -> None:
    response = FindCoordinatorResponse(coordinators=[answer])
    if isinstance(found, type):
        with pytest.raises(found, match="'g'"):
            coordinator_of("g", response)
    else:
        assert coordinator_of("g", response) == found


def test_a_broker_says_why_there_is_no_coordinator() -> None:
    for message, reason in (("because", "because"), (None, CoordinatorNotAvailableError.message)):
        answer = Coordinator(key="g", error_code=15, error_message=message)
        with pytest.raises(CoordinatorNotAvailableError) as caught:
            coordinator_of("g", FindCoordinatorResponse(coordinators=[answer]))
        assert caught.value.args[0] == f"the broker found no coordinator for 'g': {reason}"


def test_the_error_of_all_is_of_tls_if_that_was_the_reason_everywhere() -> None:
    tls, lost = TLSError("untrusted"), KafkaConnectionError("lost")
    for failures, error_class in (
        ([], KafkaConnectionError),
        ([tls], TLSError),
        ([tls, tls], TLSError),
        ([lost, tls], KafkaConnectionError),
        ([tls, lost], KafkaConnectionError),
    ):
        error = no_usable_broker(failures)
        assert type(error) is error_class
        assert error.__cause__ is (failures[-1] if failures else None)
        reasons = "; ".join(each.args[0] for each in failures) or "no broker is known"
        assert str(error.args[0]) == f"no broker can be used: {reasons}"
