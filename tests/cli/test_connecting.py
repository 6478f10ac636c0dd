"""Which cluster a command speaks to, and as whom."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.cli.connecting import Connecting, add_options, connecting, parse_properties
from aiokafka_lite.cli.problems import CommandError, UsageError
from tests.cli.running import Running
from tests.support.for_each import for_each
from tests.support.token_server import CREDENTIALS, LOGIN, TokenServer, token_server

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "canary-of-alice"


@pytest.fixture
def server() -> Iterator[TokenServer]:
    yield from token_server()


def connected(*arguments: object, **environment: str) -> Connecting:
    parser = argparse.ArgumentParser()
    add_options(parser)
    variables = {f"AIOKAFKA_LITE_{name.upper()}": value for name, value in environment.items()}
    return connecting(parser.parse_args([str(each) for each in arguments]), variables)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.properties"


@for_each(
    [
        ("a=1\nb = 2 \nc:3\nd 4\ne", {"a": "1", "b": "2 ", "c": "3", "d": "4", "e": ""}),
        ("# a=1\n ! b=1\n\n  c=1\r\nd=1\rc=2", {"c": "2", "d": "1"}),
        ("a=one, \\\n   two\\\n# three\nb=\\\n", {"a": "one, two# three", "b": ""}),
        (r"a\=b\:c\ d = x\ty\\\u00e4\z", {"a=b:c d": "x\ty\\äz"}),
        ("a=b=c:d e", {"a": "b=c:d e"}),
    ]
)
def test_files_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_nearer_to_the_command_line_wins(file: Path) -> None:
    file.write_text("bootstrap.servers=file:1\nclient.id=file\nrequest.timeout.ms=1000\n")
    assert connected("--config", file).config.bootstrap_servers == "file:1"
    assert connected(config=str(file)).config.bootstrap_servers == "file:1"
    assert connected("--config", file, bootstrap="env:2").config.bootstrap_servers == "env:2"
    given = ["--config", file, "-X", "bootstrap.servers=x:3"]
    assert connected(*given, bootstrap="env:2").config.bootstrap_servers == "x:3"
    config = connected(*given, "-b", "option:4", "--timeout", 2, bootstrap="env:2").config
    assert config.bootstrap_servers == "option:4"
    assert (config.client_id, config.request_timeout_s) == ("file", 2.0)
    assert connected().config.bootstrap_servers == "localhost:9092"


@for_each([
        ([], "PLAINTEXT"),
        (["--tls"], "SSL"),
        (["--username", "a", "--password", "b"], "SASL_SSL"),
        (["-X", "sasl.username=a", "-X", "sasl.password=b"], "SASL_SSL"),
        (["--security-protocol", "sasl_plaintext", "--username", "a", "--password", "b"],
         "SASL_PLAINTEXT"),
    ])  # fmt: skip
def test_protocol_follows_from_what_else_is_said(arguments: list[str], protocol: str) -> None:
    assert connected(*arguments).config.security_protocol == protocol


def test_credentials_of_an_option_replace_those_of_the_file(file: Path) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required \\\n  username="file" password="f";\n'
    )
    of_file, of_option = (
        connected("--config", file, *more).login
        for more in ([], ["--username", "alice", "--password", PASSWORD])
    )
    assert of_file is not None
    assert of_option is not None
    assert (of_file.username, of_option.username) == ("file", "alice")
    assert PASSWORD not in repr(of_option)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-b", "a:b"], "setting bootstrap.servers: bootstrap_servers contains 'a:b'"),
        (["-X", "sasl.mechanisn=PLAIN"], "there is no such setting; did you mean sasl.mechanism"),
        (["-X", "acks=1"], "-X acks: no command uses this setting"),
        (["--security-protocol", "TLS"], "security.protocol is 'TLS': the value must be one of"),
        (["--tls", "--security-protocol", "PLAINTEXT"], "leave one out"),
        (["--mechanism", "PLAIN"], "set the settings sasl.username and sasl.password"),
        (["--mechanism", "GSSAPI", "--username", "a", "--password", "b"], "Kerberos"),
        (["--username", "a"], "set AIOKAFKA_LITE_PASSWORD"),
        (["--password", PASSWORD], "add --username, or unset AIOKAFKA_LITE_PASSWORD"),
        (["--cert-file", "/nowhere"], "setting ssl.certificate.location is '/nowhere': the file"),
        (["--ca-file", "/nowhere"], "setting ssl.truststore.location is '/nowhere': the file"),
        (["--key-file", "/nowhere"], "set the setting ssl.certificate.location"),
        (["--security-protocol", "SASL_PLAINTEXT", "-b", "a:1", "--username", "u",
          "--password", PASSWORD], "or give --allow-plaintext-credentials"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_in_the_words_of_the_command_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError) as caught:
        connected(*arguments)
    assert said in str(caught.value)
    for foreign in ("kafka.", "executor", "option ", PASSWORD):
        assert foreign not in str(caught.value)


def test_file_for_other_clients_may_be_used_and_mistakes_in_it_are_told(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("acks=all\ngroup.id=g\nkey.deserializer=x\nbootstrap.server=a:1\n")
    assert connected("--config", file).config.bootstrap_servers == "localhost:9092"
    assert capsys.readouterr().err == (
        f"warning: {file}: unknown setting bootstrap.server is ignored; "
        "did you mean bootstrap.servers?\n"
    )
    with pytest.raises(CommandError, match="No such file"):
        connected("--config", "/nowhere")


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_records_are_read_with_tls_and_credentials(
    mechanism: str, cli: Running, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def typed(prompt: str) -> str:
        asked.append(prompt)
        return PASSWORD

    async with Broker(
        security_protocol="SASL_SSL", sasl_mechanisms=MECHANISMS, users={"alice": PASSWORD}
    ) as broker:
        broker.create_topic("t")
        broker.produce("t", "hello")
        ca_file = tmp_path / "ca.pem"
        ca_file.write_text(broker.certificates.ca_pem)
        kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        file.write_text(  # noqa: ASYNC240 -- a few bytes
            f"bootstrap.servers={broker.bootstrap_servers}\nsecurity.protocol=SASL_SSL\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={ca_file}\n"
            f"sasl.mechanism={mechanism}\nsasl.jaas.config=org.apache.kafka.common.security.{kind}"
            f'LoginModule required username="alice" password="{PASSWORD}";\n'
        )
        assert (await cli("cat", "t", "--config", file)).lines == ["hello"]
        run = ("run", "builtins:repr", "t", "--until", "end", "--log-level", "warning", "-g")
        monkeypatch.setattr(sys, "path", list(sys.path))
        assert "1 of 1 records" in (await cli(*run, "of-file", "--config", file)).lines[-1]
        options = ["-b", broker.bootstrap_servers, "--ca-file", ca_file, "--username", "alice"]
        options += ["--mechanism", mechanism]
        assert (await cli("cat", "t", *options, "--password", PASSWORD)).lines == ["hello"]
        ended = await cli("cat", "t", *options, "--password", f"{PASSWORD}-wrong")
        assert ended.code == 1
        assert f"refuses {mechanism} authentication" in ended.errors
        assert PASSWORD not in ended.errors
        assert "Traceback" not in ended.errors
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr("getpass.getpass", typed)
        assert "1 of 1 records" in (await cli(*run, "asked", *options)).lines[-1]
        assert (await cli("topics", "delete", "t", "--yes", *options)).lines == ["deleted t"]
        assert asked == ["Password of alice: "] * 2


async def test_client_shows_its_certificate(cli: Running, tmp_path: Path) -> None:
    async with Broker(security_protocol="SSL", ssl_client_auth="required") as broker:
        broker.create_topic("t")
        broker.produce("t", "hello")
        files = broker.certificates.write(tmp_path)
        where = ["-b", broker.bootstrap_servers, "--ca-file", files.ca]
        assert (await cli("cat", "t", *where, "--cert-file", files.client)).lines == ["hello"]
        ended = await cli("cat", "t", *where)
        assert ended.code == 1
        assert ended.errors.startswith("error: no broker can be used: ")
        assert "--cert-file" in ended.errors or "--security-protocol" in ended.errors
        assert "create_ssl_context" not in ended.errors
        assert "Traceback" not in ended.errors
        for command in ("cat", "produce"):
            ended = await cli(command, "t", "-b", broker.bootstrap_servers, "--tls")
            assert "set --ca-file to the CA that signed the broker's certificate" in ended.errors
            assert "create_ssl_context" not in ended.errors


async def test_tokens_are_got_as_the_file_of_a_java_client_says(
    cli: Running, file: Path, server: TokenServer
) -> None:
    async with Broker(
        security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("OAUTHBEARER",)
    ) as broker:
        broker.create_topic("t")
        broker.produce("t", "hello")
        server.give(broker.oauth_token("reader"), expires_in=3600)
        file.write_text(  # noqa: ASYNC240 -- a few bytes
            f"bootstrap.servers={broker.bootstrap_servers}\nsecurity.protocol=SASL_PLAINTEXT\n"
            f"sasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.endpoint.url={server.url}\n"
            f"sasl.jaas.config={LOGIN}.OAuthBearerLoginModule required {CREDENTIALS};\n"
        )
        assert (await cli("cat", "t", "--config", file)).lines == ["hello"]
        assert {each.login for each in server.asked} == {"reader:hunter2/="}


def test_ctrl_d_at_the_prompt_is_no_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("getpass.getpass", end)
    with pytest.raises(UsageError, match="no password for user a: set AIOKAFKA_LITE_PASSWORD"):
        connected("--username", "a")
    assert capsys.readouterr().err == "\n"
