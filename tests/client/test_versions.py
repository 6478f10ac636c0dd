"""Which versions are used of what a broker offers, and in which it is asked for them."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite.client.versions import (
    FIRST_VERSION,
    ApiVersions,
    MeantBroker,
    MisroutedError,
    ask_api_versions,
)
from aiokafka_lite.errors import IncompatibleBrokerVersion, KafkaProtocolError
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from aiokafka_lite.protocol.messages.offsets import OffsetForLeaderEpochRequest
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.for_each import for_each
from tests.support.scripted_broker import offered

NEWEST = MetadataRequest.max_version
NOBODY = MeantBroker(None, None)
EPOCHS = OffsetForLeaderEpochRequest


@for_each(
    [
        ((0, 9), None, 9),
        ((0, 99), None, NEWEST),
        ((0, 9), 4, 4),
        ((0, 9), 99, 9),
        ((9, 9), None, 9),
        ((NEWEST, NEWEST + 1), None, NEWEST),
        ((NEWEST + 1, NEWEST + 1), None, IncompatibleBrokerVersion),
        ((5, 9), 4, IncompatibleBrokerVersion),
        ((5, 4), None, KafkaProtocolError),
    ]
)
def test_the_newest_version_is_used_that_all_know(
    offers: tuple[int, int], max_version: int | None, chosen: int | type[Exception]
) -> None:
    versions = ApiVersions({MetadataRequest.api_key: offers})
    if isinstance(chosen, type):
        with pytest.raises(chosen):
            versions.choose(MetadataRequest, max_version)
    else:
        assert versions.choose(MetadataRequest, max_version) == chosen


def test_versions_before_those_that_are_used_are_not_chosen() -> None:
    oldest = EPOCHS.used_from
    assert oldest > EPOCHS.min_version
    assert ApiVersions({EPOCHS.api_key: (0, oldest)}).choose(EPOCHS) == oldest
    for request_class, newest in ((EPOCHS, oldest - 1), (MetadataRequest, 9)):
        with pytest.raises(IncompatibleBrokerVersion):
            ApiVersions({EPOCHS.api_key: (0, newest)}).choose(request_class)


def test_a_choice_is_made_once() -> None:
    versions = ApiVersions({MetadataRequest.api_key: (0, 9)})
    choice = versions.choice(MetadataRequest, 7, peer="host:9092")
    assert choice[0] == 7
    assert versions.choice(MetadataRequest, 7, peer="host:9092") is choice
    assert versions.choice(MetadataRequest, 6, peer="host:9092")[0] == 6


def asked_in(
    *answers: ApiVersionsResponse, meant: MeantBroker = NOBODY
) -> tuple[ApiVersions | Exception, list[int], Request[Response]]:
    """Ask a broker that gives these answers; return the outcome, the versions, and the request."""
    versions: list[int] = []
    requests: list[Request[Response]] = []

    async def ask(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        requests.append(request)
        versions.append(version)
        return answers[min(len(versions), len(answers)) - 1]

    try:
        outcome: ApiVersions | Exception = asyncio.run(
            ask_api_versions(ask, "peer", FIRST_VERSION, meant)
        )
    except Exception as error:  # noqa: BLE001 -- whatever it is
        outcome = error
    return outcome, versions, requests[0]


def refused(*ranges: tuple[int, int]) -> ApiVersionsResponse:
    """Refuse a version, and name these ranges."""
    return offered(dict.fromkeys([ApiVersionsRequest.api_key], ranges[0]) if ranges else {}, 35)


def test_a_broker_that_refuses_is_asked_in_older_versions_until_the_oldest() -> None:
    fine = offered({18: (0, 4), 3: (0, 9)})
    for answers, expected in (
        ([fine], [3]),
        ([refused((0, 2)), fine], [3, 2]),
        ([refused((0, 1)), fine], [3, 1]),
        ([refused((0, 9)), fine], [3, 2]),
        ([refused(), fine], [3, 0]),
        ([refused((0, -1)), fine], [3, 0]),
    ):
        outcome, versions, _ = asked_in(*answers)
        assert isinstance(outcome, ApiVersions)
        assert dict(outcome) == {18: (0, 4), 3: (0, 9)}
        assert versions == expected
    for answer, expected in ((refused((0, 9)), [3, 2, 1]), (refused(), [3, 0])):
        outcome, versions, _ = asked_in(answer)
        assert isinstance(outcome, KafkaProtocolError)
        assert versions == expected


def test_the_broker_that_is_meant_is_named() -> None:
    _, _, request = asked_in(offered({}))
    assert isinstance(request, ApiVersionsRequest)
    assert (request.cluster_id, request.node_id) == (None, -1)
    outcome, _, request = asked_in(ApiVersionsResponse(error_code=129), meant=MeantBroker("c", 0))
    assert isinstance(request, ApiVersionsRequest)
    assert (request.cluster_id, request.node_id) == ("c", 0)
    assert isinstance(outcome, MisroutedError)
    known = [MeantBroker(*each).is_known for each in (("c", 0), ("c", None), (None, 1))]
    assert known == [True, False, False]
