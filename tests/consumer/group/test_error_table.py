"""Every request to the coordinator × every error it may get: what the application notices.

The outcomes are those of Java's consumer (AbstractCoordinator, ConsumerCoordinator and their
response handlers in 4.3.1); where ours differs, the row says how. Whatever the error, the member
has its partitions again afterwards, and hands out what is produced then: never assigned and silent.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pytest

from aiokafka_lite import errors
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import BrokerResponseError, CommitFailedError, FencedInstanceIdError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.waiting import PATIENCE_S

TP = TopicPartition("t", 0)
# A code that this version of the protocol does not have.
UNHEARD_OF: Final = 999

Error = type[BrokerResponseError] | int


class Outcome(enum.Enum):
    """What comes of one such answer."""

    GOES_ON = enum.auto()  # tried again: nobody notices
    REJOINS = enum.auto()  # a new generation: nobody notices but the listener
    RAISED = enum.auto()  # by one get or by the commit; then it goes on
    COMMIT_FAILS = enum.auto()  # CommitFailedError, and a new generation
    FATAL = enum.auto()  # FencedInstanceIdError by every get from then on


def rows(outcome: Outcome, *kinds: Error) -> dict[Error, Outcome]:
    return dict.fromkeys(kinds, outcome)


COORDINATOR_MOVES: Final = (errors.CoordinatorNotAvailableError, errors.NotCoordinatorError)
UNEXPECTED: Final = (errors.UnknownError, errors.InvalidRequestError, UNHEARD_OF)

TABLE: Final[Mapping[str, Mapping[Error, Outcome]]] = MappingProxyType(
    {
        "FindCoordinator": {
            **rows(
                Outcome.GOES_ON,
                errors.CoordinatorNotAvailableError,
                errors.CoordinatorLoadInProgressError,
                errors.RequestTimedOutError,
            ),
            **rows(
                Outcome.RAISED,
                errors.GroupAuthorizationFailedError,
                errors.InvalidGroupIdError,
                *UNEXPECTED,
            ),
        },
        "JoinGroup": {
            **rows(
                Outcome.REJOINS,
                *COORDINATOR_MOVES,
                errors.CoordinatorLoadInProgressError,
                errors.UnknownMemberIdError,
                errors.RebalanceInProgressError,
            ),
            **rows(
                Outcome.RAISED,
                errors.GroupAuthorizationFailedError,
                errors.InconsistentGroupProtocolError,
                errors.InvalidGroupIdError,
                errors.InvalidSessionTimeoutError,
                errors.GroupMaxSizeReachedError,
                errors.UnsupportedVersionError,
                *UNEXPECTED,
            ),
            FencedInstanceIdError: Outcome.FATAL,
        },
        "SyncGroup": {
            **rows(
                Outcome.REJOINS,
                *COORDINATOR_MOVES,
                # Brokers say REBALANCE_IN_PROGRESS in its place; Java would raise it.
                errors.CoordinatorLoadInProgressError,
                errors.IllegalGenerationError,
                errors.UnknownMemberIdError,
                errors.RebalanceInProgressError,
            ),
            **rows(
                Outcome.RAISED,
                errors.GroupAuthorizationFailedError,
                errors.InconsistentGroupProtocolError,
                *UNEXPECTED,
            ),
            FencedInstanceIdError: Outcome.FATAL,
        },
        "Heartbeat": {
            # Brokers that load say that all is well; Java would raise it.
            **rows(Outcome.GOES_ON, *COORDINATOR_MOVES, errors.CoordinatorLoadInProgressError),
            **rows(
                Outcome.REJOINS,
                errors.RebalanceInProgressError,
                errors.IllegalGenerationError,
                errors.UnknownMemberIdError,
            ),
            **rows(Outcome.RAISED, errors.GroupAuthorizationFailedError, *UNEXPECTED),
            FencedInstanceIdError: Outcome.FATAL,
        },
        "OffsetCommit": {
            **rows(
                Outcome.GOES_ON,
                *COORDINATOR_MOVES,
                errors.CoordinatorLoadInProgressError,
                errors.RequestTimedOutError,
                errors.UnknownTopicOrPartitionError,
                errors.UnknownTopicIdError,
            ),
            # Java's commitSync raises it, for the application to poll and try again.
            errors.RebalanceInProgressError: Outcome.REJOINS,
            **rows(
                Outcome.COMMIT_FAILS, errors.IllegalGenerationError, errors.UnknownMemberIdError
            ),
            **rows(
                Outcome.RAISED,
                errors.GroupAuthorizationFailedError,
                errors.TopicAuthorizationFailedError,
                errors.OffsetMetadataTooLargeError,
                errors.InvalidCommitOffsetSizeError,
                *UNEXPECTED,
            ),
            FencedInstanceIdError: Outcome.FATAL,
        },
        "OffsetFetch": {
            **rows(
                Outcome.GOES_ON,
                *COORDINATOR_MOVES,
                errors.CoordinatorLoadInProgressError,
                errors.UnstableOffsetCommitError,
                # Java raises it: "topic or partition does not exist".
                errors.UnknownTopicOrPartitionError,
            ),
            **rows(
                Outcome.RAISED,
                errors.GroupAuthorizationFailedError,
                errors.TopicAuthorizationFailedError,
                *UNEXPECTED,
            ),
        },
        # Stopping ends well, whatever is said.
        "LeaveGroup": rows(
            Outcome.GOES_ON,
            *COORDINATOR_MOVES,
            errors.CoordinatorLoadInProgressError,
            errors.UnknownMemberIdError,
            errors.IllegalGenerationError,
            FencedInstanceIdError,
            errors.GroupAuthorizationFailedError,
            *UNEXPECTED,
        ),
    }
)

# The short form has one row of each kind; the rest makes no difference to the code by now.
SHORT: Final = frozenset(
    {
        ("FindCoordinator", errors.CoordinatorNotAvailableError),
        ("FindCoordinator", errors.GroupAuthorizationFailedError),
        ("JoinGroup", errors.NotCoordinatorError),
        ("JoinGroup", errors.GroupMaxSizeReachedError),
        ("SyncGroup", errors.IllegalGenerationError),
        ("SyncGroup", FencedInstanceIdError),
        ("Heartbeat", errors.CoordinatorNotAvailableError),
        ("Heartbeat", errors.GroupAuthorizationFailedError),
        ("Heartbeat", errors.IllegalGenerationError),
        ("OffsetCommit", errors.UnknownTopicIdError),
        ("OffsetCommit", errors.RebalanceInProgressError),
        ("OffsetCommit", errors.IllegalGenerationError),
        ("OffsetCommit", errors.TopicAuthorizationFailedError),
        ("OffsetFetch", errors.UnstableOffsetCommitError),
        ("OffsetFetch", UNHEARD_OF),
        ("LeaveGroup", errors.NotCoordinatorError),
    }
)


def name_of(error: Error) -> str:
    return str(error) if isinstance(error, int) else error.__name__


def cases(*apis: str) -> Sequence[object]:
    return [
        pytest.param(
            api,
            error,
            outcome,
            id=f"{api}-{name_of(error)}",
            marks=() if (api, error) in SHORT else pytest.mark.slow,
        )
        for api in apis
        for error, outcome in TABLE[api].items()
    ]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(group_min_session_timeout_ms=100) as broker:
        broker.create_topic("t")
        broker.produce("t", b"before")
        yield broker


def member_of(broker: Broker) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        group_protocol="classic",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=30,
        session_timeout_ms=2_000,
        rebalance_timeout_ms=200,
        retry_backoff_ms=10,
        fetch_max_wait_ms=50,
    )


async def provoke(api: str, broker: Broker, consumer: AIOKafkaConsumer) -> BaseException | None:
    """Have the consumer send the request; return what its call raises, if it takes one."""
    if api == "OffsetCommit":
        try:
            await consumer.commit({TP: 1})
        except errors.KafkaError as error:
            return error
    elif api == "FindCoordinator":
        broker.on("Heartbeat").fail(errors.NotCoordinatorError)
    elif api != "Heartbeat":
        consumer.subscribe(["t"])
    return None


@pytest.mark.parametrize(
    ("api", "error", "outcome"),
    cases("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch"),
)
async def test_an_error_of_the_coordinator_has_its_outcome_and_no_other(
    broker: Broker, api: str, error: Error, outcome: Outcome
) -> None:
    async with member_of(broker) as consumer:
        assert (await consumer.getone()).value == b"before"
        await consumer.commit()
        generation = inside.generation(consumer)

        rule = broker.on(api).fail(error)
        raised = await provoke(api, broker, consumer)
        await rule.reached()
        broker.produce("t", b"after")
        told = [] if raised is None else [raised]
        while True:
            try:
                record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            except errors.KafkaError as met:
                told.append(met)
                if len(told) == 3:
                    break
            else:
                if record.value == b"after":
                    break

        kinds = [type(met) for met in told]
        if outcome is Outcome.FATAL:
            assert kinds == [FencedInstanceIdError] * 3
            assert consumer.assignment() == set()
            return
        expected = errors.for_code(error) if isinstance(error, int) else error
        if outcome is Outcome.RAISED:
            assert kinds == [expected]
        elif outcome is Outcome.COMMIT_FAILS:
            assert kinds == [CommitFailedError]
        else:
            assert kinds == []
        # The subscription was renewed to have these sent: that alone is a new generation.
        is_new = outcome in (Outcome.REJOINS, Outcome.COMMIT_FAILS) or api in (
            "JoinGroup",
            "SyncGroup",
            "OffsetFetch",
        )
        if is_new:  # what was fetched before may have been handed out before
            await broker.wait_until(lambda: inside.generation(consumer) > generation)
            await inside.until_assigned(consumer)
        assert (inside.generation(consumer) > generation) == is_new
        await consumer.commit({TP: 2})
    assert broker.committed("g") == {TP: 2}


@pytest.mark.parametrize(("api", "error", "outcome"), cases("LeaveGroup"))
async def test_a_stop_ends_well_whatever_leaving_is_told(
    broker: Broker, api: str, error: Error, outcome: Outcome
) -> None:
    consumer = member_of(broker)
    await consumer.start()
    rule = broker.on(api).fail(error)
    assert await asyncio.wait_for(consumer.stop(), PATIENCE_S) == {}
    assert rule.is_over


@pytest.mark.parametrize(
    ("api", "error", "outcome"),
    [
        pytest.param(*case, id=f"{case[0]}-{name_of(case[1])}")
        for case in (
            ("FindCoordinator", errors.GroupAuthorizationFailedError, Outcome.RAISED),
            ("FindCoordinator", errors.CoordinatorNotAvailableError, Outcome.GOES_ON),
            ("JoinGroup", errors.GroupMaxSizeReachedError, Outcome.RAISED),
            ("JoinGroup", FencedInstanceIdError, Outcome.FATAL),
            ("SyncGroup", UNHEARD_OF, Outcome.RAISED),
            ("SyncGroup", errors.NotCoordinatorError, Outcome.REJOINS),
        )
    ],
)
async def test_the_start_raises_what_does_not_pass(
    broker: Broker, api: str, error: Error, outcome: Outcome
) -> None:
    consumer = member_of(broker)
    with broker.on(api).fail(error):
        if outcome in (Outcome.RAISED, Outcome.FATAL):
            expected = errors.for_code(error) if isinstance(error, int) else error
            with pytest.raises(expected):
                await asyncio.wait_for(consumer.start(), PATIENCE_S)
        else:
            await asyncio.wait_for(consumer.start(), PATIENCE_S)
            assert (await consumer.getone()).value == b"before"
    await consumer.stop()


async def test_an_error_that_stays_is_raised_once_for_all_the_time_that_nobody_asked(
    broker: Broker,
) -> None:
    async with member_of(broker) as consumer:
        await consumer.getone()
        kind = errors.GroupAuthorizationFailedError
        with broker.on("Heartbeat").fail(kind, times=None) as rule:
            await rule.reached(5)
        beats = len(broker.requests.of("Heartbeat"))
        await broker.requests.wait_for("Heartbeat", count=beats + 2)  # the first was accepted
        broker.produce("t", b"after")
        with pytest.raises(kind):
            await consumer.getone()
        assert (await consumer.getone()).value == b"after"
