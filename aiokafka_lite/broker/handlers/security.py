"""Handlers of SASL authentication, and of SCRAM credentials (KIP-554).

The rules and messages are those of org.apache.kafka.controller.ScramControlManager. Clients send
hashed passwords, so a credential that they set does not work with PLAIN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiokafka_lite.broker.handlers.base import RequestContext, handler, refusing
from aiokafka_lite.broker.security.mechanisms import CredentialStore
from aiokafka_lite.broker.security.session import no_exchange
from aiokafka_lite.broker.slices import counted_in_slices, in_slices
from aiokafka_lite.errors import (
    DuplicateResourceError,
    IllegalSaslStateError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from aiokafka_lite.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from aiokafka_lite.sasl import scram
from aiokafka_lite.sasl.scram import MIN_ITERATIONS, ScramMechanism


@handler(SaslHandshakeRequest)
def sasl_handshake(ctx: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Begin an authentication (KIP-43), or a re-authentication (KIP-368)."""
    session = ctx.connection.sasl
    if session is None:
        return SaslHandshakeResponse(error_code=IllegalSaslStateError.errno)
    error, mechanisms = session.handshake(request.mechanism, ctx.api_version)
    return SaslHandshakeResponse(error_code=error.errno, mechanisms=mechanisms)


@handler(SaslAuthenticateRequest)
async def sasl_authenticate(
    ctx: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    session = ctx.connection.sasl
    return no_exchange() if session is None else await session.authenticate(request.auth_bytes)


@handler(DescribeUserScramCredentialsRequest)
async def describe_user_scram_credentials(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    credentials = ctx.cluster.security.credentials
    asked = await counted_in_slices(user.name for user in request.users or ())
    results = []
    async for name in in_slices(asked or credentials.usernames):
        result = DescribeUserScramCredentialsResult(user=name)
        results.append(result)
        with refusing(result):
            if asked[name] > 1:
                raise DuplicateResourceError(
                    f"Cannot describe SCRAM credentials for the same user twice in a single "
                    f"request: {name}"
                )
            mechanisms = credentials.mechanisms_of(name)
            if not mechanisms:
                raise ResourceNotFoundError(
                    f"Attempt to describe a user credential that does not exist: {name}"
                )
            result.credential_infos = [
                CredentialInfo(mechanism=mechanism.code, iterations=iterations)
                for mechanism, iterations in mechanisms.items()
            ]
    return DescribeUserScramCredentialsResponse(results=results)


MAX_ITERATIONS: Final = 16_384  # Kafka's limit for stored credentials
_BY_CODE: Final = {mechanism.code: mechanism for mechanism in ScramMechanism}


@handler(AlterUserScramCredentialsRequest)
async def alter_user_scram_credentials(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Delete and set credentials, deletions first. A user may be in a request only once."""
    credentials = ctx.cluster.security.credentials
    accepted: dict[str, Callable[[], None]] = {}
    refused: dict[str, AlterUserScramCredentialsResult] = {}
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [
        *request.deletions,
        *request.upsertions,
    ]
    async for wanted in in_slices(changes):
        if wanted.name in refused:
            continue
        result = AlterUserScramCredentialsResult(user=wanted.name, error_message=None)
        with refusing(result):
            if accepted.pop(wanted.name, None) is not None:
                raise DuplicateResourceError(
                    "A user credential cannot be altered twice in the same request"
                )
            accepted[wanted.name] = _change(credentials, wanted)
        if result.error_code:
            refused[wanted.name] = result
    async for change in in_slices(accepted.values()):
        change()
    await ctx.cluster.disk.settled()
    done = [
        AlterUserScramCredentialsResult(user=name, error_message=None)
        async for name in in_slices(accepted)
    ]
    return AlterUserScramCredentialsResponse(results=[*done, *refused.values()])


def _change(
    credentials: CredentialStore, wanted: ScramCredentialDeletion | ScramCredentialUpsertion
) -> Callable[[], None]:
    """Check a change, and return the function that applies it."""
    name, mechanism = wanted.name, _BY_CODE.get(wanted.mechanism)
    if not name:
        raise UnacceptableCredentialError("Username must not be empty")
    if mechanism is None:
        raise UnsupportedSaslMechanismError("Unknown SCRAM mechanism")
    if isinstance(wanted, ScramCredentialDeletion):
        if mechanism not in credentials.mechanisms_of(name):
            raise ResourceNotFoundError("Attempt to delete a user credential that does not exist")
        return lambda: credentials.delete(name, mechanism)
    if wanted.iterations < MIN_ITERATIONS:
        raise UnacceptableCredentialError("Too few iterations")
    if wanted.iterations > MAX_ITERATIONS:
        raise UnacceptableCredentialError("Too many iterations")
    if not wanted.salted_password:
        raise UnacceptableCredentialError("Salted password must not be empty")
    credential = scram.credential(
        mechanism, bytes(wanted.salted_password), bytes(wanted.salt), wanted.iterations
    )
    return lambda: credentials.put(name, mechanism, credential)
