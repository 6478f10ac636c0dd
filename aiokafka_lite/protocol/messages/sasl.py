"""SASL authentication, and the SCRAM credentials of users."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, blob, int8, int16, int32, int64, string
from aiokafka_lite.protocol.schema import Request, Response, Struct


# --- SaslHandshake (key 17) -------------------------------------------------------------------
class SaslHandshakeResponse(Response):
    error_code: int = int16("0+")
    mechanisms: list[str] = array(string, "0+")


class SaslHandshakeRequest(Request[SaslHandshakeResponse], key=17, versions="0-1"):
    """Choose a SASL mechanism (KIP-43). SaslAuthenticate follows v1, bare tokens follow v0."""

    mechanism: str = string("0+")


# --- SaslAuthenticate (key 36) ----------------------------------------------------------------
class SaslAuthenticateResponse(Response):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = blob("0+")
    session_lifetime_ms: int = int64("1+", ignorable=True)  # KIP-368


class SaslAuthenticateRequest(
    Request[SaslAuthenticateResponse], key=36, versions="0-2", flexible="2+"
):
    """Exchange tokens of a SASL mechanism (KIP-152)."""

    auth_bytes: bytes = blob("0+")


# --- DescribeUserScramCredentials (key 50) ----------------------------------------------------
class CredentialInfo(Struct):
    """Mechanism 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""

    mechanism: int = int8("0+")
    iterations: int = int32("0+")


class DescribeUserScramCredentialsResult(Struct):
    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    credential_infos: list[CredentialInfo] = array(CredentialInfo, "0+")


class DescribeUserScramCredentialsResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, "0+"
    )


class UserName(Struct):
    name: str = string("0+")


class DescribeUserScramCredentialsRequest(
    Request[DescribeUserScramCredentialsResponse],
    key=50,
    versions="0",
    flexible="0+",
):
    """List users that have SCRAM credentials (KIP-554). Null or an empty list means all."""

    users: list[UserName] | None = array(UserName, "0+", nullable="0+")


# --- AlterUserScramCredentials (key 51) -------------------------------------------------------
class AlterUserScramCredentialsResult(Struct):
    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class AlterUserScramCredentialsResponse(Response):
    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult, "0+")


class ScramCredentialDeletion(Struct):
    name: str = string("0+")
    mechanism: int = int8("0+")


class ScramCredentialUpsertion(Struct):
    name: str = string("0+")
    mechanism: int = int8("0+")
    iterations: int = int32("0+")
    salt: bytes = blob("0+")
    salted_password: bytes = blob("0+")


class AlterUserScramCredentialsRequest(
    Request[AlterUserScramCredentialsResponse],
    key=51,
    versions="0",
    flexible="0+",
):
    """Set and delete SCRAM credentials (KIP-554). The client hashes the passwords."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion, "0+")
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion, "0+")
