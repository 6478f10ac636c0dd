"""AlterUserScramCredentials (key 51): set and delete SCRAM credentials (KIP-554)."""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    blob,
    int8,
    int16,
    int32,
    string,
)


class AlterUserScramCredentialsResult(Struct):
    """The outcome for one user."""

    user: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class AlterUserScramCredentialsResponse(Response):
    """The outcomes."""

    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult, "0+")


class ScramCredentialDeletion(Struct):
    """A credential to delete."""

    name: str = string("0+")
    mechanism: int = int8("0+")


class ScramCredentialUpsertion(Struct):
    """A credential to set: the client has hashed the password."""

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
    """Set and delete credentials."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion, "0+")
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion, "0+")
