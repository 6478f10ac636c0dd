"""SCRAM credentials set by admin tools (KIP-554): told as on Kafka, kept where there is a disk."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import confluent_kafka.admin
import pytest
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin._scram import ScramMechanism as ScramName

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.errors import (
    DuplicateResourceError,
    KafkaStorageError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from aiokafka_lite.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from aiokafka_lite.sasl import scram
from aiokafka_lite.sasl.scram import ScramMechanism
from tests.support.cluster import KafkaHandle, unique
from tests.support.sasl_client import log_in, scram_log_in
from tests.support.wire import RawClient

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def setting(
    name: str,
    password: str = "secret",  # noqa: S107 -- a test's
    mechanism: int = SHA_256.code,
    iterations: int = 4096,
) -> ScramCredentialUpsertion:
    kind = SHA_512 if mechanism == SHA_512.code else SHA_256
    salted = scram.salted_password(kind, password.encode(), b"some salt", max(iterations, 1))
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=b"some salt",
        salted_password=salted,
    )


def deletion(name: str, mechanism: int = SHA_256.code) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(
    client: RawClient, *changes: ScramCredentialUpsertion | ScramCredentialDeletion
) -> dict[str, tuple[int, str | None]]:
    """Return what is said of each user."""
    answer = await client.request(
        AlterUserScramCredentialsRequest(
            deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
            upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
        )
    )
    return {each.user: (each.error_code, each.error_message) for each in answer.results}


async def describe(client: RawClient, *names: str) -> dict[str, DescribeUserScramCredentialsResult]:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names])
    answer = await client.request(request)
    assert answer.error_code == 0
    return {each.user: each for each in answer.results}


OK = (0, None)
TWICE = (
    DuplicateResourceError.errno,
    "A user credential cannot be altered twice in the same request",
)
MISSING = (
    ResourceNotFoundError.errno,
    "Attempt to delete a user credential that does not exist",
)


async def test_credentials_are_set_described_and_deleted(kafka: KafkaHandle) -> None:
    one, two, nobody = unique("one"), unique("two"), unique("nobody")
    async with kafka.raw() as client:
        assert await alter(client, setting(one), setting(two, "x", SHA_512.code, 16384)) == {
            one: OK,
            two: OK,
        }
        assert await alter(client, setting(one, "y", SHA_512.code)) == {one: OK}
        for _ in range(100):  # a real broker learns of it a little later
            described = await describe(client, one, two, nobody)
            if len(described[one].credential_infos) == 2 and described[two].credential_infos:
                break
            await asyncio.sleep(0.05)
        told = {
            name: sorted((each.mechanism, each.iterations) for each in result.credential_infos)
            for name, result in described.items()
        }
        assert told == {one: [(1, 4096), (2, 4096)], two: [(2, 16384)], nobody: []}
        assert (described[nobody].error_code, described[nobody].error_message) == (
            ResourceNotFoundError.errno,
            f"Attempt to describe a user credential that does not exist: {nobody}",
        )
        assert {one, two} <= (await describe(client)).keys()
        twice = (await describe(client, one, one))[one]
        assert (twice.error_code, twice.error_message) == (
            DuplicateResourceError.errno,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {one}",
        )
        assert await alter(client, deletion(one), deletion(two)) == {one: OK, two: MISSING}
        assert await alter(client, deletion(one, 2), deletion(two, 2)) == {one: OK, two: OK}


async def test_change_that_may_not_be_is_told_why(kafka: KafkaHandle) -> None:
    one, two = unique("one"), unique("two")
    too_few = (UnacceptableCredentialError.errno, "Too few iterations")
    async with kafka.raw() as client:
        for wanted, error in (
            (setting(one, iterations=4095), too_few),
            (
                setting(one, iterations=16385),
                (UnacceptableCredentialError.errno, "Too many iterations"),
            ),
            (setting(""), (UnacceptableCredentialError.errno, "Username must not be empty")),
            (
                setting(one, mechanism=3),
                (UnsupportedSaslMechanismError.errno, "Unknown SCRAM mechanism"),
            ),
            (deletion(one), MISSING),
        ):
            assert await alter(client, wanted) == {wanted.name: error}
        assert await alter(client, setting(one), setting(one, mechanism=2), setting(two)) == {
            one: TWICE,
            two: OK,
        }
        assert await alter(client, deletion(one), setting(one)) == {one: MISSING}
        bad = setting(one, iterations=1)
        assert await alter(client, bad, setting(one, mechanism=2), setting(two)) == {
            one: too_few,
            two: OK,
        }
        assert await alter(client, deletion(two)) == {two: OK}
        assert not (await describe(client, one))[one].credential_infos


# --- What only the embedded broker can be asked for --------------------------------------------
async def test_credential_without_a_password_is_refused() -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        empty = setting("carol")
        empty.salted_password = b""
        error = UnacceptableCredentialError.errno, "Salted password must not be empty"
        assert await alter(client, empty) == {"carol": error}
        await alter(client, setting("dave"), setting("carol", mechanism=SHA_512.code))
        assert [*await describe(client)] == ["carol", "dave"]


def sasl_broker(data_dir: Path | None = None) -> Broker:
    return Broker(
        security_protocol="SASL_PLAINTEXT",
        users={"admin": "admin-secret"},
        data_dir=data_dir,
        connection_failed_authentication_delay_ms=0,
    )


async def may_connect(broker: Broker, name: str, password: str, by: ScramMechanism) -> bool:
    async with RawClient(broker.bootstrap_servers) as client:
        return not (await scram_log_in(client, name, password, by)).error_code


async def test_credential_is_good_for_its_mechanism_at_once_and_until_deleted() -> None:
    async with sasl_broker() as broker, RawClient(broker.bootstrap_servers) as client:
        await log_in(client, "admin", "admin-secret")
        await alter(client, setting("carol", "carols"))
        assert await may_connect(broker, "carol", "carols", SHA_256)
        assert not await may_connect(broker, "carol", "carols", SHA_512)
        async with RawClient(broker.bootstrap_servers) as other:
            assert (await log_in(other, "carol", "carols")).error_code  # nobody hashed it for PLAIN
        await alter(client, setting("carol", "another"))
        assert not await may_connect(broker, "carol", "carols", SHA_256)
        assert await may_connect(broker, "carol", "another", SHA_256)
        await alter(client, deletion("carol"))
        assert not await may_connect(broker, "carol", "another", SHA_256)


async def test_credentials_outlive_the_broker(tmp_path: Path) -> None:
    async with sasl_broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        await log_in(client, "admin", "admin-secret")
        await alter(client, setting("carol", "carols"), setting("dave", "daves", SHA_512.code))
        await alter(client, deletion("dave", SHA_512.code))
    path = tmp_path / "scram.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "admin" not in path.read_text()  # who is given in code is not kept
    async with sasl_broker(tmp_path) as broker:
        assert await may_connect(broker, "carol", "carols", SHA_256)
        assert await may_connect(broker, "admin", "admin-secret", SHA_512)
        assert not await may_connect(broker, "dave", "daves", SHA_512)


BAD_FILES = {
    "{": r"cannot read the SCRAM credentials in .*/scram\.json: JSONDecodeError$",
    '{"format": 2}': r"scram\.json has format 2, but .* reads only format 1: choose",
    '{"format": 1}': r"scram\.json, because its content is invalid: KeyError$",
    '{"format": 1, "users": {"a": {"b": {}}}}': r"the SCRAM credentials from .*: KeyError$",
}


@pytest.mark.parametrize("content", BAD_FILES)
async def test_file_that_cannot_be_understood_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "scram.json").write_text(content)
    with pytest.raises(KafkaStorageError, match=BAD_FILES[content]):
        async with sasl_broker(tmp_path):
            pass


def test_confluent_kafka_administers_users() -> None:
    with BrokerThread() as broker:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        mechanism = ScramName.SCRAM_SHA_256
        wanted = ScramCredentialInfo(mechanism, 8192)
        upsertion = UserScramCredentialUpsertion("carol", wanted, b"carols")
        admin.alter_user_scram_credentials([upsertion])["carol"].result(10)
        futures = admin.describe_user_scram_credentials(["carol"])
        assert isinstance(futures, dict)
        told = futures["carol"].result(10)
        assert [(each.mechanism, each.iterations) for each in told.scram_credential_infos] == [
            (mechanism, 8192)
        ]
        broker.raise_if_failed()
