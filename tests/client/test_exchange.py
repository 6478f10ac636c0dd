"""How whoever sent a request learns of the outcome."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest

from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.wire import Exchange
from aiokafka_lite.errors import (
    CorrelationIdError,
    KafkaConnectionError,
    KafkaProtocolError,
    RequestTimedOutError,
)
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from tests.client.conftest import TIMEOUT_S
from tests.support.scripted_broker import Answer, Asked, Do, ScriptedBroker, always

pytestmark = pytest.mark.every_loop

Beat = Exchange[HeartbeatResponse]


class Told:
    """An ``on_done`` that keeps the exchanges it was called with."""

    def __init__(self, then: Callable[[Beat], None] | None = None) -> None:
        self.exchanges: list[Beat] = []
        self.tasks: list[asyncio.Task[object] | None] = []
        self._then = then
        self._changed = asyncio.Event()

    def __call__(self, exchange: Beat) -> None:
        self.exchanges.append(exchange)
        self.tasks.append(asyncio.current_task())
        self._changed.set()
        if self._then is not None:
            self._then(exchange)

    async def times(self, count: int) -> None:
        while len(self.exchanges) < count:
            self._changed.clear()
            await self._changed.wait()


def beat(connection: Connection, told: Told, timeout_s: float = TIMEOUT_S) -> Beat:
    return connection.send(HeartbeatRequest(), timeout_s=timeout_s, on_done=told)


def answers_with_errors_of(broker: ScriptedBroker, *codes: int) -> None:
    """Answer once as many heartbeats have come as there are codes, all with one write."""
    held: list[Asked] = []

    def script(asked: Asked) -> Answer:
        held.append(asked)
        if len(held) < len(codes):
            return Do.NOTHING
        pairs = zip(held, codes, strict=True)
        return b"".join(one.encode(HeartbeatResponse(error_code=code)) for one, code in pairs)

    broker.scripts[HeartbeatRequest] = script


@pytest.fixture
def complaints() -> list[dict[str, object]]:
    """What the loop's exception handler is told during a test."""
    return []


@pytest.fixture(autouse=True)
async def exception_handler(complaints: list[dict[str, object]]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))


# --- Awaited -------------------------------------------------------------------------------
async def test_exchange_awaited_after_its_answer_has_it(
    broker: ScriptedBroker, connection: Connection
) -> None:
    answers_with_errors_of(broker, 27, 0)
    exchange = connection.send(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    assert not exchange.is_done
    with pytest.raises(RuntimeError, match=r"no response from .* has arrived yet"):
        exchange.result()
    await connection.request(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    assert exchange.is_done
    assert (await exchange).error_code == exchange.result().error_code == 27


async def test_exchange_may_be_awaited_by_several(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[HeartbeatRequest] = always(Do.CLOSE)
    exchange = connection.send(HeartbeatRequest(), timeout_s=TIMEOUT_S)

    async def wait() -> HeartbeatResponse:
        return await exchange

    errors = await asyncio.gather(wait(), wait(), return_exceptions=True)
    assert [type(error) for error in errors] == [KafkaConnectionError] * 2
    assert errors[0] is not errors[1]


async def test_error_nobody_waits_for_leaves_no_warning(
    broker: ScriptedBroker, connection: Connection, complaints: list[dict[str, object]]
) -> None:
    broker.scripts[HeartbeatRequest] = always(Do.CLOSE)
    connection.send(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    await connection.wait_closed()
    assert not complaints


async def test_fetched_record_set_is_a_slice_of_the_received_frame(
    broker: ScriptedBroker, connection: Connection
) -> None:
    partition = PartitionData(partition_index=0, records=b"r" * 1000)
    broker.scripts[FetchRequest] = lambda _: FetchResponse(
        responses=[FetchableTopicResponse(topic_id=b"0123456789abcdef", partitions=[partition])]
    )
    exchange = connection.send(FetchRequest(), timeout_s=TIMEOUT_S)
    records = (await exchange).responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert bytes(records) == b"r" * 1000
    assert exchange.frame is not None
    assert records.obj is exchange.frame


# --- Told by callback ----------------------------------------------------------------------
async def test_answer_is_told_out_of_the_read_callback(
    broker: ScriptedBroker, connection: Connection
) -> None:
    answers_with_errors_of(broker, 27)
    told = Told()
    exchange = beat(connection, told)
    await told.times(1)
    assert told.exchanges == [exchange]
    assert told.tasks == [None]
    assert exchange.result().error_code == 27
    assert connection.in_flight_count == 0


async def test_answers_are_told_in_the_order_in_which_they_came(
    broker: ScriptedBroker, connection: Connection
) -> None:
    answers_with_errors_of(broker, 0, 1, 2)
    told = Told(lambda _: in_flight.append(connection.in_flight_count))
    in_flight: list[int] = []
    exchanges = [beat(connection, told) for _ in range(3)]
    await told.times(3)
    assert told.exchanges == exchanges
    assert [exchange.result().error_code for exchange in exchanges] == [0, 1, 2]
    assert in_flight == [2, 1, 0]  # each before the next one is looked at


async def test_callback_may_send_the_next_request(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[HeartbeatRequest] = always(HeartbeatResponse())

    def send_another(_: Beat) -> None:
        if len(told.exchanges) < 20:
            beat(connection, told)

    told = Told(send_another)
    beat(connection, told)
    await told.times(20)
    assert broker.count(HeartbeatRequest) == 20


async def test_callback_may_close_the_connection(
    broker: ScriptedBroker, connection: Connection
) -> None:
    answers_with_errors_of(broker, 0, 0)
    first = Told(lambda _: connection.close())
    second = Told()
    beat(connection, first)
    beat(connection, second)
    await second.times(1)  # its answer was there already, but behind the end
    assert isinstance(second.exchanges[0].error, KafkaConnectionError)
    assert len(first.exchanges) == 1
    assert first.exchanges[0].error is None


async def test_broken_answer_fails_where_it_is_decoded(
    broker: ScriptedBroker, connection: Connection
) -> None:
    def with_a_byte_less(asked: Asked) -> Answer:
        body = asked.encode(HeartbeatResponse())[4:-1]
        return struct.pack(">i", len(body)) + body

    broker.scripts[HeartbeatRequest] = with_a_byte_less
    told = Told()
    beat(connection, told)
    await told.times(1)
    with pytest.raises(KafkaProtocolError, match="invalid response"):
        told.exchanges[0].result()
    assert not connection.is_closed


async def test_loss_is_told_once_to_everybody(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[HeartbeatRequest] = always(Do.RESET)
    told = Told()
    exchanges = [beat(connection, told) for _ in range(3)]
    await told.times(3)
    await connection.wait_closed()
    assert told.exchanges == exchanges
    for exchange in exchanges:
        for _ in range(2):
            with pytest.raises(KafkaConnectionError, match="lost the connection"):
                exchange.result()


async def test_poison_is_told(broker: ScriptedBroker, connection: Connection) -> None:
    broker.scripts[HeartbeatRequest] = always(struct.pack(">ii", 4, 12345))
    told = Told()
    exchange = beat(connection, told)
    await told.times(1)
    assert isinstance(exchange.error, CorrelationIdError)


async def test_error_is_never_told_from_within_a_call(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[HeartbeatRequest] = always(Do.NOTHING)
    told = Told()
    beat(connection, told)
    connection.close()
    assert not told.exchanges
    await told.times(1)
    with pytest.raises(KafkaConnectionError, match="closed by this client"):
        told.exchanges[0].result()


async def test_missed_deadline_is_told_once_and_the_late_answer_dropped(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[HeartbeatRequest] = always(Do.NOTHING)
    patient, hasty = Told(), Told()
    beat(connection, patient)
    beat(connection, hasty, timeout_s=0.05)
    await hasty.times(1)
    with pytest.raises(RequestTimedOutError):
        hasty.exchanges[0].result()
    for asked in reversed(broker.asked[-2:]):
        asked.peer.transport.write(asked.encode(HeartbeatResponse()))
    await patient.times(1)
    assert patient.exchanges[0].error is None
    assert len(hasty.exchanges) == 1
    assert hasty.exchanges[0].frame is None


async def test_abandoned_exchange_tells_nothing(
    broker: ScriptedBroker, connection: Connection
) -> None:
    answers_with_errors_of(broker, 0, 0)
    abandoned, told = Told(), Told()
    beat(connection, abandoned).abandon()
    beat(connection, told)
    await told.times(1)
    doomed = beat(connection, abandoned)
    connection.close()
    doomed.abandon()  # after the error, before it is told
    await connection.wait_closed()
    await asyncio.sleep(0)
    assert not abandoned.exchanges


async def test_callback_that_fails_gives_the_connection_up(
    broker: ScriptedBroker, connection: Connection, complaints: list[dict[str, object]]
) -> None:
    bug = KafkaProtocolError("not one of the connection's")

    def fail(_: Beat) -> None:
        raise bug

    answers_with_errors_of(broker, 0, 0)
    told = Told()
    beat(connection, Told(fail))
    behind = beat(connection, told)
    await told.times(1)
    with pytest.raises(KafkaConnectionError, match="a response callback raised") as caught:
        behind.result()
    assert caught.value.__cause__ is bug
    await connection.wait_closed()
    assert [complaint["exception"] for complaint in complaints] == [bug]


async def test_callback_that_fails_on_an_error_keeps_it_from_nobody(
    broker: ScriptedBroker, connection: Connection, complaints: list[dict[str, object]]
) -> None:
    bug = ValueError("a bug")

    def fail(_: Beat) -> None:
        raise bug

    broker.scripts[HeartbeatRequest] = always(Do.NOTHING)
    told = Told()
    beat(connection, Told(fail))
    beat(connection, told)
    connection.close()
    await told.times(1)
    assert [complaint["exception"] for complaint in complaints] == [bug]
