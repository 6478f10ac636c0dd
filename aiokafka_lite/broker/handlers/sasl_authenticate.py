"""SaslAuthenticate (key 36), versions 0 to 2: the tokens of a SASL mechanism (KIP-152).

1 the lifetime of the session (KIP-368); 2 flexible.

Who is authenticated already, or came by a listener without SASL, is told ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.security.session import NO_EXCHANGE
from aiokafka_lite.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


@handler(SaslAuthenticateRequest)
async def handle(ctx: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Take the exchange one token further."""
    session = ctx.connection.sasl
    answer = NO_EXCHANGE if session is None else await session.authenticate(request.auth_bytes)
    return SaslAuthenticateResponse(
        error_code=answer.error.errno,
        error_message=answer.text,
        auth_bytes=answer.token,
        session_lifetime_ms=answer.lifetime_ms,
    )
