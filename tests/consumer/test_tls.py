"""Certificates and TLS versions that a consumer refuses, before the first byte of Kafka."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import KafkaConnectionError, TLSError
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import TopicPartition
from tests.support import tuning
from tests.support.certificates import Authority, Issued, self_signed
from tests.support.tls_server import TlsServer

TP = TopicPartition("t", 0)
BOTH = ("localhost", "127.0.0.1")
GIVE_CA = r"create_ssl_context\(cafile="
CHECK_NAME = r"subjectAltName.*advertised\.listeners"
CHECK_DATES = "renew the certificate on the broker"

pytestmark = pytest.mark.every_loop


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Handshakes:
    """Counts the handshakes that begin with a server's context, and the names asked for."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.names: list[str | None] = []
        context.sni_callback = self._seen

    def _seen(self, _socket: object, name: str | None, _context: object) -> None:
        self.names.append(name)


def consumer_at(
    server: str, context: ssl.SSLContext, security_protocol: str = "SSL", **settings: object
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=server,
        security_protocol=security_protocol,
        ssl_context=context,
        auto_offset_reset="earliest",
        retry_backoff_ms=10,
        **settings,  # type: ignore[arg-type]
    )


def broker_with(context: ssl.SSLContext, **settings: object) -> Broker:
    return Broker(security_protocol="SSL", ssl_context=context, **settings)  # type: ignore[arg-type]


def at(host: str, broker: Broker) -> str:
    """The broker's port under another name of this machine."""
    return f"{host}:{broker.bootstrap_servers.rpartition(':')[2]}"


# The certificate, the host it is shown for, what is said of it, and what to do.
REFUSED = {
    "other host": (lambda ca: ca.issue("kafka.test"), "localhost", "ostname mismatch", CHECK_NAME),
    "other address": (
        lambda ca: ca.issue("localhost", "10.0.0.1"),
        "127.0.0.1",
        "IP address mismatch",
        CHECK_NAME,
    ),
    "no name at all": (
        lambda ca: ca.issue(common_name="broker"),
        "localhost",
        "ostname mismatch",
        CHECK_NAME,
    ),
    "an address in the common name": (
        lambda ca: ca.issue(common_name="127.0.0.1"),
        "127.0.0.1",
        "IP address mismatch",
        CHECK_NAME,
    ),
    "name of another in the common name's place": (
        lambda ca: ca.issue("kafka.test", common_name="localhost"),
        "localhost",
        "ostname mismatch",
        CHECK_NAME,
    ),
    "expired": (
        lambda ca: ca.issue(*BOTH, from_days=-3, to_days=-1),
        "localhost",
        "expired",
        CHECK_DATES,
    ),
    "not yet valid": (
        lambda ca: ca.issue(*BOTH, from_days=2, to_days=3),
        "localhost",
        "not yet valid",
        CHECK_DATES,
    ),
    "self-signed": (lambda ca: self_signed(*BOTH), "localhost", "self.signed", GIVE_CA),
    "of another CA": (
        lambda ca: Authority("stranger").issue(*BOTH),
        "localhost",
        "unable to get local issuer",
        GIVE_CA,
    ),
    "of a CA of the same name": (
        lambda ca: Authority().issue(*BOTH),
        "localhost",
        "signature failure|unable to get local issuer|unknown",
        GIVE_CA,
    ),
    "without the CA between": (
        lambda ca: Authority("between", ca).issue(*BOTH),
        "localhost",
        "unable to get local issuer",
        GIVE_CA,
    ),
}


@pytest.mark.parametrize(("issue", "host", "reason", "advice"), REFUSED.values(), ids=list(REFUSED))
async def test_certificate_is_refused_at_once_and_says_why(
    authority: Authority,
    tmp_path: Path,
    issue: Callable[[Authority], Issued],
    host: str,
    reason: str,
    advice: str,
) -> None:
    context = issue(authority).server_context(tmp_path)
    handshakes = Handshakes(context)
    async with broker_with(context) as broker:
        consumer = consumer_at(
            at(host, broker),
            create_ssl_context(cadata=authority.pem),
        )
        with pytest.raises(TLSError, match=f"{host}.*not trusted.*({reason}).*{advice}") as caught:
            await consumer.start()
        await consumer.stop()
        assert not caught.value.retriable
        assert len(handshakes.names) == 1
        assert not broker.requests  # nor was anything tried without TLS: that would be a request


async def test_revoked_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue(*BOTH)
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(authority.pem + authority.revocations(issued))
    context = create_ssl_context(cafile=trusted)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    async with broker_with(issued.server_context(tmp_path)) as broker:
        consumer = consumer_at(broker.bootstrap_servers, context)
        with pytest.raises(TLSError, match=r"not trusted \(certificate revoked\): the CA has rev"):
            await consumer.start()
        await consumer.stop()


ACCEPTED = {
    "name": (lambda ca: ca.issue(*BOTH), "localhost", "localhost"),
    "address": (lambda ca: ca.issue(*BOTH), "127.0.0.1", None),
    "fully qualified name": (lambda ca: ca.issue(*BOTH), "localhost.", "localhost"),
    "wildcard": (lambda ca: ca.issue("*.kafka.test", "127.0.0.1"), "a.kafka.test", "a.kafka.test"),
}


@pytest.mark.parametrize(("issue", "host", "server_name"), ACCEPTED.values(), ids=list(ACCEPTED))
async def test_certificate_with_the_name_is_accepted(
    authority: Authority,
    tmp_path: Path,
    issue: Callable[[Authority], Issued],
    host: str,
    server_name: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning.resolve_by(monkeypatch, _this_machine)
    context = issue(authority).server_context(tmp_path)
    handshakes = Handshakes(context)
    async with broker_with(context) as broker:
        broker.create_topic("t")
        broker.partition(*TP).append(build_batch([(1_000, None, b"a", ())]))
        client_context = create_ssl_context(cadata=authority.pem)
        async with consumer_at(at(host, broker), client_context) as consumer:
            assert (await consumer.getone()).value == b"a"
        assert handshakes.names[0] == server_name


async def _this_machine(*_: object) -> list[str]:
    return ["127.0.0.1"]


async def test_one_server_with_a_good_certificate_is_enough(
    authority: Authority, tmp_path: Path
) -> None:
    bad = self_signed(*BOTH).server_context(tmp_path)
    good = authority.issue(*BOTH).server_context(tmp_path)
    async with broker_with(bad) as one, broker_with(good) as other:
        other.create_topic("t")
        servers = f"{one.bootstrap_servers},{other.bootstrap_servers}"
        async with consumer_at(servers, create_ssl_context(cadata=authority.pem)) as consumer:
            assert consumer.partitions_for_topic("t") == {0}
        assert not one.requests


async def test_advertised_name_is_checked_and_gets_no_credentials(
    authority: Authority, tmp_path: Path
) -> None:
    context = authority.issue("localhost").server_context(tmp_path)  # not for 127.0.0.1
    broker = Broker(
        security_protocol="SASL_SSL",
        ssl_context=context,
        users={"alice": "wonderland"},
        sasl_mechanisms=["PLAIN"],
    )
    async with broker:
        broker.create_topic("t")
        consumer = consumer_at(
            at("localhost", broker),
            create_ssl_context(cadata=authority.pem),
            security_protocol="SASL_SSL",
            sasl_plain_username="alice",
            sasl_plain_password="wonderland",
        )
        with pytest.raises(TLSError, match=rf"127\.0\.0\.1.*IP address mismatch.*{CHECK_NAME}"):
            async with consumer:
                await consumer.getone()
        assert len({seen.peer for seen in broker.requests}) == 1  # that of the bootstrap server


async def test_certificate_that_goes_bad_later_is_told_to_the_gets(
    authority: Authority, tmp_path: Path
) -> None:
    context = authority.issue(*BOTH).server_context(tmp_path)
    expired = authority.issue(*BOTH, from_days=-3, to_days=-1).server_context(tmp_path)
    async with broker_with(context) as broker:
        broker.create_topic("t")
        broker.partition(*TP).append(build_batch([(1_000, None, b"a", ())]))
        client_context = create_ssl_context(cadata=authority.pem)
        async with consumer_at(broker.bootstrap_servers, client_context) as consumer:
            assert (await consumer.getone()).value == b"a"

            def swap(each: ssl.SSLSocket | ssl.SSLObject, *_: object) -> None:
                each.context = expired

            context.sni_callback = swap
            broker.on("Fetch").disconnect()
            with pytest.raises(TLSError, match=r"expired.*renew"):
                await consumer.getone()


# --- Listeners that are something else ---------------------------------------------------------
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_server_of_an_old_tls_is_refused(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = authority.issue(*BOTH).server_context(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with TlsServer(context) as server:
        consumer = consumer_at(server.address, create_ssl_context(cadata=authority.pem))
        with pytest.raises(TLSError, match=r"TLS 1\.2 or newer.*ssl\.enabled\.protocols") as caught:
            await consumer.start()
        await consumer.stop()
    assert not caught.value.retriable
    assert (server.accepted, server.received) == (1, b"")


async def test_listener_without_tls_is_named_and_not_used(authority: Authority) -> None:
    async with Broker() as broker:
        consumer = consumer_at(broker.bootstrap_servers, create_ssl_context(cadata=authority.pem))
        with pytest.raises(
            KafkaConnectionError, match=r"does not speak TLS \(see security_protocol"
        ):
            await consumer.start()
        await consumer.stop()
        assert not broker.requests


async def test_consumer_without_tls_is_told_that_the_listener_has_it(
    authority: Authority, tmp_path: Path
) -> None:
    async with broker_with(authority.issue(*BOTH).server_context(tmp_path)) as broker:
        consumer = AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap_servers)
        with pytest.raises(KafkaConnectionError, match=r"security_protocol matches the listener"):
            await consumer.start()
        await consumer.stop()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_missing_client_certificate_is_asked_for_by_name(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = authority.issue(*BOTH).server_context(tmp_path)
    context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority.pem)
    with TlsServer(context) as server:
        consumer = consumer_at(server.address, create_ssl_context(cadata=authority.pem))
        with pytest.raises(TLSError, match=r"certfile=.*create_ssl_context\(\)") as caught:
            await consumer.start()
        await consumer.stop()
    assert not caught.value.retriable
    assert (server.accepted, server.received) == (1, b"")
