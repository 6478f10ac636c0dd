"""DescribeUserScramCredentials (key 50), version 0: who has SCRAM credentials (KIP-554)."""

from __future__ import annotations

from collections import Counter

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import DuplicateResourceError, ResourceNotFoundError
from aiokafka_lite.protocol.messages.sasl import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


@handler(DescribeUserScramCredentialsRequest)
async def handle(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Name the mechanisms and iterations of the users asked for, or of all."""
    credentials = ctx.cluster.security.credentials
    asked: Counter[str] = Counter()
    async for user in in_slices(request.users or ()):
        asked[user.name] += 1
    results = []
    async for name in in_slices(asked or credentials.usernames):
        result = DescribeUserScramCredentialsResult(user=name)
        mechanisms = credentials.mechanisms_of(name)
        if asked[name] > 1:
            result.error_code = DuplicateResourceError.errno
            result.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{name}"
            )
        elif not mechanisms:
            result.error_code = ResourceNotFoundError.errno
            result.error_message = (
                f"Attempt to describe a user credential that does not exist: {name}"
            )
        else:
            result.credential_infos = [
                CredentialInfo(mechanism=mechanism.code, iterations=iterations)
                for mechanism, iterations in mechanisms.items()
            ]
        results.append(result)
    return DescribeUserScramCredentialsResponse(results=results)
