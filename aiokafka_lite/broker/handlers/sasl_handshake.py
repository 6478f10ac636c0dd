"""SaslHandshake (key 17), versions 0 to 1: choose a SASL mechanism (KIP-43).

1 tokens come in SaslAuthenticate requests (KIP-152), not bare.

Who is authenticated already, or came by a listener without SASL, is told ILLEGAL_SASL_STATE; with a
session that ends, it begins a re-authentication (KIP-368).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import IllegalSaslStateError
from aiokafka_lite.protocol.messages.sasl import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


@handler(SaslHandshakeRequest)
def handle(ctx: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Begin an exchange, or say which mechanisms are on offer."""
    session = ctx.connection.sasl
    if session is None:
        return SaslHandshakeResponse(error_code=IllegalSaslStateError.errno)
    error, mechanisms = session.handshake(request.mechanism, ctx.api_version)
    return SaslHandshakeResponse(error_code=error.errno, mechanisms=mechanisms)
