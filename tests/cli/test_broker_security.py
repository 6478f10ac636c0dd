"""TLS and passwords on the command line of the broker."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

import pytest

from aiokafka_lite.cli.broker import read_users, user_option
from aiokafka_lite.cli.problems import CommandError
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.sasl import Secret
from tests.support.broker_command import address_in, refused, running
from tests.support.for_each import for_each
from tests.support.sasl_client import log_in, scram_log_in
from tests.support.wire import RawClient

LISTEN = ("--listen", "127.0.0.1:0")


async def test_command_asks_for_tls_and_a_password(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("# those who may\n\nbob:b:ob\n")
    arguments = (
        *(*LISTEN, "--security-protocol", "SASL_SSL", "--user", "alice:secret"),
        *("--users-file", str(tmp_path / "users"), "--write-credentials", str(tmp_path)),
    )
    async with running(*arguments) as (process, line):
        assert process.stdout is not None
        told = (await process.stdout.readline()).decode()
        assert str(tmp_path / "ca.pem") in told
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with RawClient(address_in(line), ssl_context=context) as client:
            assert (await log_in(client, "bob", "b:ob")).error_code == 0
            assert (await client.request(MetadataRequest(topics=[]))).brokers
        async with RawClient(address_in(line), ssl_context=context) as client:
            assert (await scram_log_in(client, "alice", "secret")).error_code == 0
        async with RawClient(address_in(line), ssl_context=context) as client:
            assert (await log_in(client, "alice", "wrong")).error_code != 0


@for_each(
    [
        (("--user", "alice:secret"), "SASL_SSL"),
        (("--tls-key", "key.pem"), "SSL"),
        (("--security-protocol", "SSL", "--tls-cert", "missing.pem"), "missing.pem"),
        (("--write-credentials", "."), "SSL"),
        (("--security-protocol", "SSL", "--user", "nobody"), "name:password"),
    ]
)
def test_options_that_do_not_fit_are_refused_with_what_to_do(
    arguments: tuple[str, ...], problem: str
) -> None:
    refusal = refused(*LISTEN, *arguments)
    assert refusal.code != 0
    assert problem in refusal.stderr
    assert "secret" not in refusal.stderr
    assert "Traceback" not in refusal.stderr


def test_user_is_a_name_and_a_password() -> None:
    assert user_option("alice:a:b") == ("alice", Secret("a:b"))
    for wrong in ("alice", "alice:", ":secret", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="name:password"):
            user_option(wrong)
    with pytest.raises(CommandError, match="missing"):
        read_users(Path("missing"))
