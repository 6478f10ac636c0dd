"""Requests to a coordinator are tried again, as long as that may help; without a network."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.sasl import TokenUnavailableError
from aiokafka_lite.errors import (
    BrokerResponseError,
    ClientClosedError,
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorrelationIdError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    NotCoordinatorError,
    OperationNotAttempted,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.producing.coordinators import FROM_MEMORY, TRANSACTION, CoordinatorClient
from aiokafka_lite.protocol.messages.transactions import EndTxnRequest, EndTxnResponse

pytestmark = pytest.mark.virtual_time
Answer = KafkaError | Sequence[type[BrokerResponseError]]
DEADLINE = 10.0
ANOTHER = -7  # the next node


class Asking:
    """A client of a coordinator, which is node 1, then 2 and so on."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.finds: list[tuple[str, int, float]] = []
        self.nodes: list[int] = []
        self.invalidations = 0
        self.pool = self
        self.unreachable: list[int] = []
        self.doubted: list[tuple[int, str, int]] = []
        self.successor: int | KafkaError | None = 1
        self.config = SimpleNamespace(request_timeout_s=4.0)
        self.client = CoordinatorClient(
            cast("Cluster", self), "tx", TRANSACTION, first_backoff_s=0.1, rng=random.Random(1)
        )
        self.codes: list[int] = []
        # The node that handles every request.
        self.good = -1

    async def find_coordinator(self, key: str, *, key_type: int, timeout_s: float) -> int:
        self.finds.append((key, key_type, timeout_s))
        return len(self.finds)

    async def find_coordinator_elsewhere(
        self, node_id: int, key: str, key_type: int, give_up_at: float
    ) -> int | None:
        assert give_up_at < math.inf
        self.doubted.append((node_id, key, key_type))
        if isinstance(self.successor, KafkaError):
            raise self.successor
        return node_id + 1 if self.successor == ANOTHER else self.successor

    async def connect(self, node_id: int) -> object:
        if node_id in self.unreachable:
            raise KafkaConnectionError
        return SimpleNamespace(wire=SimpleNamespace(api_versions={EndTxnRequest.api_key: (0, 5)}))

    async def request(self, node_id: int, request: object) -> EndTxnResponse:
        self.nodes.append(node_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if node_id == self.good:
            answer = []
        if isinstance(answer, KafkaError):
            raise answer
        self.codes = [error.errno for error in answer]
        return EndTxnResponse()

    def invalidate(self) -> None:
        self.invalidations += 1

    async def ask(
        self,
        *retriable: type[KafkaError],
        prepare: list[None] | None = None,
        deadline: float = DEADLINE,
    ) -> EndTxnResponse:
        async def check() -> None:
            if prepare is not None:
                prepare.append(None)

        return await self.client.ask(
            EndTxnRequest,
            lambda _: self.codes,
            deadline,
            retriable=retriable,
            prepare=None if prepare is None else check,
        )


@pytest.mark.parametrize(
    ("first", "nodes", "invalidations"),
    [
        ([NotCoordinatorError], [1, 2], 0),
        ([CoordinatorLoadInProgressError], [1, 1], 0),
        ([ConcurrentTransactions], [1, 1], 0),
        ([NoError, UnknownTopicOrPartitionError], [1, 1], 1),
        (KafkaConnectionError(), [1, 2], 0),
        # The connection ends, and perhaps the request was handled.
        (CorrelationIdError(), [1, 2], 0),
        (TokenUnavailableError("away"), [1, 2], 0),
        ([OperationNotAttempted], [1], 0),
        ([GroupAuthorizationFailedError], [1], 0),
        ([CoordinatorLoadInProgressError, GroupAuthorizationFailedError], [1], 0),
    ],
    ids=str,
)
async def test_an_error_decides_whether_and_whom_to_ask_again(
    first: Answer, nodes: list[int], invalidations: int
) -> None:
    asking = Asking(first, [])
    await asking.ask()
    assert (asking.nodes, asking.invalidations) == (nodes, invalidations)
    assert [(key, kind) for key, kind, _ in asking.finds] == [("tx", TRANSACTION)] * nodes[-1]


async def test_what_ends_a_producer_is_believed_of_the_coordinator_only() -> None:
    for successor, nodes in ((1, [1]), (7, [1, 7]), (None, [1, 2])):
        for error in FROM_MEMORY:
            asking = Asking([error], [])
            asking.successor = successor
            await asking.ask()
            assert (asking.nodes, asking.doubted) == (nodes, [(1, "tx", TRANSACTION)])
    asking = Asking([ProducerFencedError])
    asking.successor = GroupAuthorizationFailedError()
    with pytest.raises(GroupAuthorizationFailedError):
        await asking.ask()


async def test_a_rejection_that_no_node_confirms_counts_after_a_while() -> None:
    """The other nodes are outdated: they name nodes that reject it or are dead, or none."""
    loop = asyncio.get_running_loop()
    successors: list[tuple[int | None, list[Answer]]] = [
        (ANOTHER, []),
        (None, []),
        (ANOTHER, [KafkaConnectionError(), [ProducerFencedError]] * 9),
        (ANOTHER, [[CoordinatorNotAvailableError], [ProducerFencedError]] * 9),
    ]
    for number, (successor, more) in enumerate(successors):
        asking = Asking([ProducerFencedError], *more)
        asking.successor = successor
        began_at = loop.time()
        await asking.ask(deadline=(deadline := DEADLINE * (number + 1)))
        assert asking.codes == [ProducerFencedError.errno]
        assert 3.0 < loop.time() - began_at <= 4.0 < deadline - began_at
        assert len(asking.nodes) > 2
    began_at = loop.time()
    await asking.ask(deadline=began_at + 1.0)
    assert asking.codes == [ProducerFencedError.errno]
    assert loop.time() - began_at <= 1.0


async def test_a_rejection_is_refuted_by_the_node_that_handles_the_request() -> None:
    asking = Asking([ProducerFencedError], [ConcurrentTransactions])
    asking.successor = 7
    with pytest.raises(KafkaTimeoutError):
        await asking.ask()
    assert asyncio.get_running_loop().time() > DEADLINE - 1


@pytest.mark.parametrize("error", [ConcurrentTransactions, CoordinatorLoadInProgressError])
async def test_a_node_that_stays_busy_is_compared_with_what_others_name(
    error: type[BrokerResponseError],
) -> None:
    loop = asyncio.get_running_loop()
    asking = Asking([error])
    for asking.successor in (1, None):
        asking.doubted.clear()
        with pytest.raises(KafkaTimeoutError):
            await asking.ask(deadline=loop.time() + 5)
        assert set(asking.nodes) == {1}
        assert 2 <= len(asking.doubted) <= 5  # once a second
    asking, began_at = Asking(*([[error]] * 3), []), loop.time()
    await asking.ask(deadline=loop.time() + 5)
    assert loop.time() - began_at < 1
    assert asking.doubted == []
    asking, began_at = Asking([error]), loop.time()
    asking.successor = 7
    asking.good = 7
    await asking.ask(deadline=loop.time() + 5)
    assert (asking.nodes[-1], len(asking.doubted)) == (7, 1)
    assert 1 <= loop.time() - began_at < 3


async def test_an_error_that_the_caller_names_is_retried() -> None:
    asking, checks = Asking([OperationNotAttempted], [OperationNotAttempted], []), list[None]()
    await asking.ask(OperationNotAttempted, prepare=checks)
    assert (len(asking.nodes), len(checks)) == (3, 2)


async def test_a_client_that_is_closed_asks_no_more() -> None:
    asking = Asking(ClientClosedError())
    with pytest.raises(ClientClosedError):
        await asking.ask()
    assert asking.nodes == [1]


async def test_a_request_ends_in_time_with_the_last_error() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(4)
    asking = Asking([NotCoordinatorError])
    with pytest.raises(KafkaTimeoutError, match="coordinator of transactional_id 'tx'") as caught:
        await asking.ask()
    assert isinstance(caught.value.__cause__, NotCoordinatorError)
    assert DEADLINE - 2 < loop.time() <= DEADLINE
    left = [timeout_s for *_, timeout_s in asking.finds]
    assert left[0] == pytest.approx(DEADLINE - 4)
    assert left == sorted(left, reverse=True)


async def test_a_version_is_spoken_by_a_coordinator_that_can_be_reached() -> None:
    asking = Asking([])
    asking.unreachable = [1]
    assert not await asking.client.speaks(EndTxnRequest, 5, DEADLINE)
    assert await asking.client.speaks(EndTxnRequest, 5, DEADLINE)  # node 2
    assert not await asking.client.speaks(EndTxnRequest, 6, DEADLINE)
    assert len(asking.finds) == 2
