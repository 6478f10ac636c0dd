"""The errors that connections end with."""

from __future__ import annotations

from aiokafka_lite.client.causes import caused, explain, is_refusal
from aiokafka_lite.errors import CorrelationIdError, KafkaConnectionError, TLSError
from aiokafka_lite.protocol.framing import response_correlation_id


class UnansweredCredentialsError(KafkaConnectionError):
    """The connection was lost between credentials and what the broker says of them.

    It may be a refusal: tried again, but in no hurry, since accounts are locked after a few.
    """


def lost(
    peer: str, error: BaseException | None, *, is_unanswered: bool = False
) -> KafkaConnectionError:
    """Return what became of a connection that the network, or the peer, has ended.

    Args:
        peer: Who it was.
        error: What was raised; None where the peer has closed the connection.
        is_unanswered: Nothing was answered on it but which versions there are, which brokers tell
            those too of whom they expect SASL.
    """
    error_class = TLSError if is_refusal(error) else KafkaConnectionError
    hint = ": if the listener asks for SASL, see security_protocol" if is_unanswered else ""
    return caused(error_class(f"lost the connection to {peer}: {explain(error)}{hint}"), error)


def out_of_step(peer: str, frame: memoryview) -> CorrelationIdError:
    """Return what is wrong with an answer that no request in flight has asked for."""
    return CorrelationIdError(
        f"{peer} answers request {response_correlation_id(frame)}, which is not in flight: "
        "the connection is out of step"
    )
