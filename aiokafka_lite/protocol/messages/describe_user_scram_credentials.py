"""DescribeUserScramCredentials (key 50): who has SCRAM credentials, not which (KIP-554)."""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class CredentialInfo(Struct):
    """One credential: its mechanism (1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512)."""

    mechanism: int = int8("0+")
    iterations: int = int32("0+")


class DescribeUserScramCredentialsResult(Struct):
    """One user."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo, "0+")


class DescribeUserScramCredentialsResponse(Response):
    """The users."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, "0+"
    )


class UserName(Struct):
    """A user to describe."""

    name: str = string("0+")


class DescribeUserScramCredentialsRequest(
    Request[DescribeUserScramCredentialsResponse],
    key=50,
    versions="0",
    flexible="0+",
):
    """Ask about users; null or none asks about all."""

    users: list[UserName] | None = array(UserName, "0+", nullable="0+")
