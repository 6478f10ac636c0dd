"""Requests by API key, and the choice of versions."""

from __future__ import annotations

import pytest

from aiokafka_lite.client.versions import ApiVersions
from aiokafka_lite.errors import IncompatibleBrokerVersion
from aiokafka_lite.protocol import registry
from aiokafka_lite.protocol.messages.fetch import FetchRequest, FetchTopic, ForgottenTopic
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest, TopicProduceData
from aiokafka_lite.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.for_each import for_each
from tests.support.samples import REQUEST_CLASSES

TOPIC_ID = bytes(range(16))


@for_each(REQUEST_CLASSES)
def test_requests_are_found_by_key_and_by_name(cls: type[Request[Response]]) -> None:
    assert registry.REQUESTS[cls.api_key] is cls
    name = registry.API_NAMES[cls.api_key]
    assert cls.__name__ == f"{name}Request"
    assert cls.response.__name__ == f"{name}Response"
    assert registry.API_KEYS[name] == cls.api_key


def test_an_unknown_key_is_refused() -> None:
    assert 4 not in registry.REQUESTS
    assert len(registry.REQUESTS) == len(list(registry.REQUESTS)) == len(registry.API_NAMES)
    with pytest.raises(KeyError):
        registry.REQUESTS[4]


def chosen(cls: type[Request[Response]], low: int, high: int, newest: int | None = None) -> int:
    """The version that is used with a broker that speaks `low` to `high`."""
    return ApiVersions({cls.api_key: (low, high)}).choose(cls, newest)


def chosen_for(request: Request[Response], low: int, high: int) -> int:
    return chosen(type(request), low, high, request.usable_max_version)


@for_each([(4, 18, 18), (0, 100, 18), (4, 11, 11), (18, 30, 18), (0, 4, 4)])
def test_the_newest_version_of_both_is_chosen(
    broker_min: int, broker_max: int, version: int
) -> None:
    assert chosen(FetchRequest, broker_min, broker_max) == version


@pytest.mark.parametrize(("broker_min", "broker_max"), [(0, 3), (19, 25)])
def test_brokers_without_a_common_version_are_refused(broker_min: int, broker_max: int) -> None:
    with pytest.raises(
        IncompatibleBrokerVersion, match=f"supports versions {broker_min} to {broker_max} of Fetch"
    ):
        chosen(FetchRequest, broker_min, broker_max)


def test_unstable_versions_are_encoded_but_not_negotiated() -> None:
    assert chosen(InitProducerIdRequest, 0, 6) == 5
    assert InitProducerIdRequest.versions.last == 6


@for_each(
    [
        (
            FetchRequest(topics=[FetchTopic(topic_id=TOPIC_ID)]),
            FetchRequest(topics=[FetchTopic(topic_id=TOPIC_ID), FetchTopic(topic="t")]),
            12,
        ),
        (
            FetchRequest(forgotten_topics_data=[ForgottenTopic(topic_id=TOPIC_ID)]),
            FetchRequest(forgotten_topics_data=[ForgottenTopic(topic="t")]),
            12,
        ),
        (
            ProduceRequest(topic_data=[TopicProduceData(topic_id=TOPIC_ID)]),
            ProduceRequest(topic_data=[TopicProduceData(name="t")]),
            12,
        ),
        (
            OffsetCommitRequest(topics=[OffsetCommitRequestTopic(topic_id=TOPIC_ID)]),
            OffsetCommitRequest(topics=[OffsetCommitRequestTopic(name="t")]),
            9,
        ),
        (
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(topics=None)]),
            OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(topics=[OffsetFetchRequestTopics(name="t")])]
            ),
            9,
        ),
    ],
    ["Fetch", "Fetch-forget", "Produce", "OffsetCommit", "OffsetFetch"],
)
def test_topics_without_ids_stay_below_the_versions_that_need_them(
    with_ids: Request[Response], without_ids: Request[Response], newest_by_name: int
) -> None:
    assert chosen_for(with_ids, 0, 100) == with_ids.max_version
    assert chosen_for(without_ids, 0, 100) == newest_by_name
    assert chosen_for(without_ids, 0, newest_by_name - 1) == newest_by_name - 1


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (ProduceRequest(transactional_id="t"), 11),
        (AddPartitionsToTxnRequest(), 3),
        (TxnOffsetCommitRequest(), 4),
        (EndTxnRequest(), 4),
    ],
)
def test_transactions_stay_below_the_versions_of_kip_890(
    request_: Request[Response], version: int
) -> None:
    assert chosen_for(request_, 0, 100) == version


def test_only_produce_without_acks_expects_no_response() -> None:
    assert not ProduceRequest(acks=0).expects_response
    assert ProduceRequest(acks=-1).expects_response
    assert FetchRequest().expects_response
