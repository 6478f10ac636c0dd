"""SASL conversations on connections without an event loop: all that is said ends in time."""

from __future__ import annotations

from typing import cast

import pytest

from aiokafka_lite.client.blocking import BlockingConnection
from aiokafka_lite.client.blocking_sasl import authenticate
from aiokafka_lite.client.sasl import mechanism_of
from aiokafka_lite.errors import KafkaConnectionError, KafkaError, RequestTimedOutError
from aiokafka_lite.protocol.messages.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from aiokafka_lite.protocol.schema import Response


class Peer:
    """Takes six seconds for each answer."""

    peer = "host:9092"

    def __init__(self, *answers: Response | KafkaError) -> None:
        self.now = 100.0
        self.timeouts_s: list[float] = []
        self._answers = list(answers)

    def request_now(self, request: object, *, timeout_s: float) -> Response:
        self.timeouts_s.append(timeout_s)
        self.now += 6.0
        answer = self._answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def authenticate(self) -> float:
        return authenticate(
            cast("BlockingConnection", self),
            mechanism_of("PLAIN", username="u", password="p"),
            timeout_s=10.0,
            clock=lambda: self.now,
        )


def test_each_answer_may_take_what_those_before_have_left() -> None:
    peer = Peer(SaslHandshakeResponse(), SaslAuthenticateResponse(session_lifetime_ms=60_000))
    assert peer.authenticate() == 60.0
    assert peer.timeouts_s == [10.0, 4.0]


def test_a_conversation_that_does_not_end_in_time_is_a_lost_connection() -> None:
    peer = Peer(SaslHandshakeResponse(), RequestTimedOutError("no answer"))
    with pytest.raises(KafkaConnectionError, match=r"host:9092 did not finish auth.* within 10 s"):
        peer.authenticate()
