"""AlterUserScramCredentials (key 51), version 0: set and delete SCRAM credentials (KIP-554).

The client has hashed the password, so what it sets is good for its mechanism and not for PLAIN.
Each user may be in a request once, whatever the mechanism; deletions come first. The rules and
messages are those of org.apache.kafka.controller.ScramControlManager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.security.credentials import CredentialStore
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import (
    BrokerResponseError,
    DuplicateResourceError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from aiokafka_lite.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from aiokafka_lite.sasl import scram
from aiokafka_lite.sasl.scram import MIN_ITERATIONS, ScramMechanism

MAX_ITERATIONS: Final = 16_384  # for whom Kafka stores; clients accept more
_BY_CODE: Final = {mechanism.code: mechanism for mechanism in ScramMechanism}


@handler(AlterUserScramCredentialsRequest)
async def handle(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Set and delete what may be, and say why the rest may not."""
    credentials = ctx.cluster.security.credentials
    accepted: dict[str, Callable[[], None]] = {}
    refused: dict[str, BrokerResponseError] = {}
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [
        *request.deletions,
        *request.upsertions,
    ]
    async for wanted in in_slices(changes):
        if wanted.name in refused:
            continue
        try:
            if accepted.pop(wanted.name, None) is not None:
                raise DuplicateResourceError(
                    "A user credential cannot be altered twice in the same request"
                )
            accepted[wanted.name] = _change(credentials, wanted)
        except BrokerResponseError as error:
            refused[wanted.name] = error
    async for change in in_slices(accepted.values()):
        change()
    await ctx.cluster.disk.settled()
    done = [
        AlterUserScramCredentialsResult(user=name, error_message=None)
        async for name in in_slices(accepted)
    ]
    not_done = [
        AlterUserScramCredentialsResult(
            user=name, error_code=code_of(error), error_message=text_of(error)
        )
        async for name, error in in_slices(refused.items())
    ]
    return AlterUserScramCredentialsResponse(results=[*done, *not_done])


def _change(
    credentials: CredentialStore, wanted: ScramCredentialDeletion | ScramCredentialUpsertion
) -> Callable[[], None]:
    """Return what makes a change that is allowed."""
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
