"""TLS as it is configured for Java's clients, shaking hands with servers of all kinds."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from aiokafka_lite.errors import OptionError
from aiokafka_lite.settings.tls import openssl_name
from aiokafka_lite.spark.options import parse_options
from tests.spark.options.cases import BROKER, TOPIC
from tests.support.certificates import Authority, Issued
from tests.support.for_each import for_each

HOST = "broker.example"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def client(authority: Authority) -> Issued:
    return authority.issue("client", common_name="the client")


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server that shows a certificate to `HOST`, and asks for the client's."""
    context = authority.issue(HOST).server_context(tmp_path_factory.mktemp("server"))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=authority.pem)
    return context


def context_of(options: dict[str, str]) -> ssl.SSLContext:
    kafka = {f"kafka.ssl.{name}": value for name, value in options.items()}
    given = {**BROKER, **TOPIC, "kafka.security.protocol": "SSL", **kafka}
    context = parse_options(given, is_streaming=False).client.ssl_context
    assert context is not None
    return context


def refusal_of(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        context_of(options)
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str = HOST
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Connect two contexts without a network; return both ends."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert waiting == []
    return ends


def name_of_client(server_end: ssl.SSLObject) -> str | None:
    shown = server_end.getpeercert()
    if not shown:
        return None
    subject = shown["subject"]
    assert isinstance(subject, tuple)
    return str(subject[0][0][1])


def key_of(issued: Issued, password: str | None = None) -> str:
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return issued.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


def test_truststore_may_be_pem_in_a_file_or_inline(
    authority: Authority, server: ssl.SSLContext, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(f"Alias: ä\n{authority.pem}")
    in_one_line = authority.pem.replace("\n", " ")
    for options in (
        {"truststore.type": "PEM", "truststore.location": str(path)},
        {"truststore.location": f" {path} "},
        {"ca.location": str(path)},
        {"truststore.type": "pem", "truststore.certificates": authority.pem},
        {"truststore.type": "PEM", "truststore.certificates": in_one_line},
    ):
        shake_hands(context_of(options), server)


def test_server_of_another_authority_is_not_trusted(server: ssl.SSLContext) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context_of({"truststore.certificates": Authority().pem}), server)
    with pytest.raises(ssl.SSLCertVerificationError):  # the system's authorities
        shake_hands(context_of({}), server)


def test_host_is_checked_unless_that_is_switched_off(
    authority: Authority, server: ssl.SSLContext
) -> None:
    trusted = {"truststore.certificates": authority.pem}
    for algorithm in ("https", " HTTPS "):
        context = context_of({**trusted, "endpoint.identification.algorithm": algorithm})
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(context, server, "other.example")
    context = context_of({**trusted, "endpoint.identification.algorithm": ""})
    shake_hands(context, server, "other.example")
    refusal = refusal_of({**trusted, "endpoint.identification.algorithm": "ldaps"})
    assert "must be https, or empty" in refusal


def test_client_shows_its_certificate(
    authority: Authority, client: Issued, server: ssl.SSLContext, tmp_path: Path
) -> None:
    trusted = {"truststore.certificates": authority.pem}
    both = str(client.write(tmp_path / "both.pem"))
    (tmp_path / "certificate.pem").write_text(client.certificate_pem)
    (tmp_path / "key.pem").write_text(key_of(client, "hunter2"))
    inline = {"keystore.type": "PEM", "keystore.certificate.chain": client.certificate_pem}
    for options in (
        {"keystore.type": "PEM", "keystore.location": both},
        {"certificate.location": both},
        {
            "certificate.location": str(tmp_path / "certificate.pem"),
            "key.location": str(tmp_path / "key.pem"),
            "key.password": "hunter2",
        },
        {**inline, "keystore.key": key_of(client)},
        {**inline, "keystore.key": key_of(client, "hunter2"), "key.password": "hunter2"},
        {**inline, "keystore.key": key_of(client).replace("\n", " ")},
    ):
        _, server_end = shake_hands(context_of({**trusted, **options}), server)
        assert name_of_client(server_end) == "the client"
    _, server_end = shake_hands(context_of(trusted), server)
    assert name_of_client(server_end) is None


def test_keys_come_from_a_temporary_file_where_memory_has_none(
    client: Issued, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr("os.memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    context_of(
        {"keystore.certificate.chain": client.certificate_pem, "keystore.key": key_of(client)}
    )
    assert list(tmp_path.iterdir()) == []


def test_pkcs12_stores_are_read(
    authority: Authority, client: Issued, server: ssl.SSLContext, tmp_path: Path
) -> None:
    encryption = BestAvailableEncryption(b"hunter2")
    keys, trust = tmp_path / "keys.p12", tmp_path / "trust.p12"
    keys.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"me", client.key, client.certificate, [authority.own.certificate], encryption
        )
    )
    trust.write_bytes(
        pkcs12.serialize_key_and_certificates(
            None, None, None, [authority.own.certificate], encryption
        )
    )
    options = {
        "truststore.type": "PKCS12",
        "truststore.location": str(trust),
        "truststore.password": "hunter2",
        "keystore.location": str(keys),
        "keystore.password": "hunter2",
    }
    _, server_end = shake_hands(context_of(options), server)
    assert name_of_client(server_end) == "the client"
    for name in ("truststore", "keystore"):
        refusal = refusal_of({**options, f"{name}.password": "wrong"})
        assert f"kafka.ssl.{name}.password" in refusal
    assert "contains no private key" in refusal_of({**options, "keystore.location": str(trust)})


@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs Java's keytool")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
@pytest.mark.java
def test_jks_store_is_refused_with_the_command_that_converts_it(
    authority: Authority, server: ssl.SSLContext, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text(authority.pem)
    store = tmp_path / "trust.jks"
    keytool = ["keytool", "-keystore", str(store), "-storetype", "JKS", "-storepass", "hunter2"]
    imported = [*keytool, "-importcert", "-noprompt", "-alias", "ca"]
    imported += ["-file", str(tmp_path / "ca.pem")]
    subprocess.run(imported, check=True, capture_output=True)
    refusal = refusal_of({"truststore.location": str(store), "truststore.password": "hunter2"})
    assert "JKS" in refusal
    command = refusal.partition("convert it with ")[2]
    subprocess.run(command, shell=True, check=True, capture_output=True, input=b"hunter2\n")  # noqa: S602 -- what users are told to run
    shake_hands(context_of({"truststore.location": f"{store}.pem"}), server)

    keystore = tmp_path / "keys.jks"
    keytool[2], rest = str(keystore), ["-genkeypair", "-alias", "me", "-keyalg", "EC"]
    made = [*keytool, *rest, "-dname", "CN=the client", "-keypass", "hunter2"]
    subprocess.run(made, check=True, capture_output=True)
    refusal = refusal_of({"keystore.location": str(keystore)})
    assert f"-srckeystore '{keystore}'" in refusal
    assert f"-out '{keystore}.pem'" in refusal


@for_each(
    [
        ({"truststore.location": "/no/such"}, "No such file.*on the driver and on every executor"),
        ({"keystore.location": "/no/such"}, "No such file.*on every executor"),
        ({"truststore.certificates": "hunter2"}, "neither PEM nor a PKCS12 store"),
        (
            {"truststore.certificates": "-----BEGIN CERTIFICATE-----hunter2"},
            "cannot read the trusted certificates",
        ),
        ({"truststore.type": "BKS", "ca.location": "/x"}, "must be PEM or PKCS12"),
        ({"truststore.location": "/a", "ca.location": "/b"}, "exclude each other"),
        (
            {"keystore.key": "hunter2"},
            "certificate is missing: set the option kafka.ssl.keystore.cert",
        ),
        ({"keystore.certificate.chain": "x"}, "kafka.ssl.keystore.key is missing"),
        (
            {"enabled.protocols": "TLSv1.4"},
            "'TLSv1.4' is not a TLS version: choose among TLSv1.2, TLSv1.3",
        ),
        ({"enabled.protocols": "TLSv1.1,TLSv1"}, "versions older than TLSv1.2 are not supported"),
        (
            {"cipher.suites": "TLS_RSA_WITH_NOTHING"},
            "not a cipher suite that this machine's OpenSSL supports",
        ),
        ({"engine.factory.class": "x.Y"}, "kafka.ssl.engine.factory.class cannot be used"),
    ]
)
def test_what_cannot_be_used_is_refused_by_name(options: dict[str, str], message: str) -> None:
    kafka = {f"kafka.ssl.{name}": value for name, value in options.items()}
    given = {**BROKER, **TOPIC, "kafka.security.protocol": "SSL", **kafka}
    with pytest.raises(OptionError, match=message) as caught:
        parse_options(given, is_streaming=False)
    assert "hunter2" not in str(caught.value)


def test_encrypted_key_without_or_with_the_wrong_password_is_refused(client: Issued) -> None:
    options = {
        "keystore.certificate.chain": client.certificate_pem,
        "keystore.key": key_of(client, "hunter2"),
    }
    assert "set the option kafka.ssl.key.password" in refusal_of(options)
    assert "kafka.ssl.key.password is wrong" in refusal_of({**options, "key.password": "wrong"})


def test_key_of_another_certificate_is_refused(authority: Authority, client: Issued) -> None:
    other = key_of(authority.issue("other"))
    options = {"keystore.certificate.chain": client.certificate_pem, "keystore.key": other}
    assert "do not match" in refusal_of(options)


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ({}, "TLSv1.3"),
        ({"enabled.protocols": "TLSv1.2"}, "TLSv1.2"),
        ({"enabled.protocols": "TLSv1.1, TLSv1.2"}, "TLSv1.2"),
        ({"enabled.protocols": "TLSv1.2,TLSv1.3"}, "TLSv1.3"),
        ({"cipher.suites": "TLS_AES_128_GCM_SHA256"}, "TLSv1.3"),
        ({"cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, "TLSv1.2"),
    ],
)
def test_versions_are_those_asked_for(
    authority: Authority, server: ssl.SSLContext, options: dict[str, str], version: str
) -> None:
    context = context_of({"truststore.certificates": authority.pem, **options})
    client_end, _ = shake_hands(context, server)
    assert client_end.version() == version


def test_cipher_is_the_one_asked_for(authority: Authority, server: ssl.SSLContext) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    context = context_of({"truststore.certificates": authority.pem, "cipher.suites": suite})
    client_end, _ = shake_hands(context, server)
    cipher = client_end.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-CHACHA20-POLY1305"


def test_versions_and_ciphers_that_exclude_each_other_are_refused() -> None:
    for version, suite in (
        ("TLSv1.3", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
        ("TLSv1.2", "TLS_AES_128_GCM_SHA256"),
    ):
        refusal = refusal_of({"enabled.protocols": version, "cipher.suites": suite})
        assert "kafka.ssl.enabled.protocols requires" in refusal


@for_each(
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ]
)
def test_cipher_suites_have_openssls_names(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(openssl)


def test_what_only_java_chooses_is_warned_of() -> None:
    given = {**BROKER, **TOPIC, "kafka.security.protocol": "SSL"}
    given |= {"kafka.ssl.provider": "BCFIPS", "kafka.ssl.protocol": "TLS"}
    (warning,) = parse_options(given, is_streaming=False).warnings
    assert "kafka.ssl.provider has no effect" in warning
