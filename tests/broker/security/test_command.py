"""Listeners with TLS and SASL that the command line asks for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.errors import AuthenticationFailedError
from tests.support.broker_command import refused, running

USERS = "# who may\nalice:pass:word\n\nbob:zwölf\n"


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text(USERS, encoding="utf-8")
    return file


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[tuple[dict[str, str], list[str]]]:
    """Run the command; yields its addresses by listener, and the lines it says after that."""
    async with running(*arguments) as (process, line):
        assert line.startswith("TEST ONLY broker listening on "), line
        assert process.stderr is not None
        told = line.removeprefix("TEST ONLY broker listening on ").partition(", data in")[0]
        assert process.stdout is not None
        lines = [
            (await process.stdout.readline()).decode().strip()
            for _ in range(arguments.count("--write-credentials"))
        ]
        yield dict(each.rsplit(" ", 1) for each in told.split("; ")), lines
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0


async def topics_of(servers: str, settings: dict[str, str]) -> set[str]:
    """The topics that librdkafka is told of; empty when it is not let in."""
    told: dict[str, str | int | float | bool] = {"bootstrap.servers": servers, "log_level": 0}
    admin = AdminClient(told | {n.replace("_", "."): v for n, v in settings.items()})
    try:
        found = await asyncio.to_thread(admin.list_topics, timeout=3)
    except KafkaException:
        return set()
    return set(found.topics)


@pytest.mark.few_rows(1)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_users_of_a_file_log_in_over_tls(tmp_path: Path, users: Path, mechanism: str) -> None:
    async with serving(
        "--listen", "SASL_SSL://127.0.0.1:0", "--listen", "inside=PLAINTEXT://127.0.0.1:0",
        "--users-file", str(users), "--write-credentials", str(tmp_path / "out"), "--topic", "t",
    ) as (servers, said):  # fmt: skip
        out = tmp_path / "out"
        assert said == [
            f"certificates: {out}/ca.pem (the CA that clients must trust), "
            f"{out}/client.pem (a client certificate with its key)",
        ]
        settings = {
            "security_protocol": "SASL_SSL",
            "ssl_ca_location": str(out / "ca.pem"),
            "sasl_mechanism": mechanism,
        }
        for name, password in (("alice", "pass:word"), ("bob", "zwölf")):
            login = {"sasl_username": name, "sasl_password": password}
            assert await topics_of(servers["SASL_SSL"], settings | login) == {"t"}
        wrong = {"sasl_username": "alice", "sasl_password": "zwölf"}
        assert await topics_of(servers["SASL_SSL"], settings | wrong) == set()
        assert await topics_of(servers["inside (PLAINTEXT)"], {}) == {"t"}


async def test_tokens_are_left_for_clients(tmp_path: Path, users: Path) -> None:
    out = tmp_path / "out"
    async with serving(
        "--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--sasl-mechanism", "OAUTHBEARER",
        "--users-file", str(users), "--write-credentials", str(out), "--topic", "t",
    ) as (servers, said):  # fmt: skip
        assert said == [f"tokens, valid for one day: {out}/alice.jwt, {out}/bob.jwt"]
        assert (out / "alice.jwt").stat().st_mode & 0o077 == 0
        token = (out / "alice.jwt").read_text()
        settings: dict[str, Any] = {
            "bootstrap_servers": servers["SASL_PLAINTEXT"],
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
        }
        async with AIOKafkaConsumer(
            **settings, sasl_oauth_token_provider=Tokens(token)
        ) as consumer:
            assert await consumer.topics() == {"t"}
        signature_of_nobody = token.rpartition(".")[0] + "." + "A" * 43
        refused = AIOKafkaConsumer(
            **settings, sasl_oauth_token_provider=Tokens(signature_of_nobody)
        )
        with pytest.raises(AuthenticationFailedError):
            await refused.start()
        await refused.stop()


class Tokens(AbstractTokenProvider):
    """Gives out one token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


@pytest.mark.parametrize("trusted", [True, False])
async def test_given_certificates_ask_clients_for_theirs(tmp_path: Path, trusted: bool) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    server, client, ca = (tmp_path / name for name in ("server.pem", "client.pem", "ca.pem"))
    ca.write_bytes(ours.cert_pem.bytes())
    server.write_bytes(ours.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes())
    signed = (ours if trusted else theirs).issue_cert(common_name="alice")
    client.write_bytes(signed.private_key_and_cert_chain_pem.bytes())
    async with serving(
        "--listen", "SSL://127.0.0.1:0", "--tls-cert", str(server), "--tls-client-auth", "required",
        "--tls-client-ca", str(ca), "--topic", "t",
    ) as (servers, _):  # fmt: skip
        settings = {
            "security_protocol": "SSL",
            "ssl_ca_location": str(ca),
            "ssl_certificate_location": str(client),
            "ssl_key_location": str(client),
        }
        assert await topics_of(servers["SSL"], settings) == ({"t"} if trusted else set())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "SSL://127.0.0.1:0"], "--write-credentials"),
        (["--listen", "SASL_PLAINTEXT://127.0.0.1:0"], "--users-file"),
        (["--listen", "127.0.0.1:0", "--users-file", "USERS"], "--users-file needs a matching"),
        (["--listen", "127.0.0.1:0", "--tls-client-auth", "required"], "needs a matching listener"),
        (["--listen", "SSL://127.0.0.1:0", "--tls-key", "USERS"], "--tls-cert"),
        (["--listen", "SSL://127.0.0.1:0", "--tls-cert", "USERS"], "cannot use certificate"),
        (["--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--users-file", "nowhere"], "No such file"),
        (["--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--users-file", "BAD"], "line 2"),
        (["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"], "same name"),
        (["--listen", "127.0.0.1:65535", "--nodes", "2"], "port"),
        (["--listen", "127.0.0.1:0", "--set", "queued_max_requests=0"], "queued_max_requests"),
        (
            ["--listen", "127.0.0.1:0", "--write-credentials", "d"],
            "--write-credentials has no files to write",
        ),
        (["--oauth-allow-unsecured-tokens", "--listen", "SASL_SSL://127.0.0.1:0"], "OAUTHBEARER"),
    ],
)
def test_what_does_not_fit_together_is_one_line(
    tmp_path: Path, users: Path, arguments: list[str], said: str
) -> None:
    bad = tmp_path / "bad"
    bad.write_text("alice:secret\nsesame\n")
    files = {"USERS": str(users), "BAD": str(bad)}
    refusal = refused(*(files.get(each, each) for each in arguments))
    assert (refusal.code, refusal.stdout, refusal.stderr.count("\n")) == (1, "", 1)
    assert said in refusal.stderr
    assert "sesame" not in refusal.stderr  # maybe a password without its name


@pytest.mark.parametrize("wrong", ["SASL://127.0.0.1:0", "SSL:/127.0.0.1:0", "a=b=SSL://x:y"])
def test_wrong_listeners_are_refused(wrong: str) -> None:
    refusal = refused("--listen", wrong)
    assert refusal.code == 2
    assert "--listen" in refusal.stderr
