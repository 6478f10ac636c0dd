"""Listeners with TLS: what crosses them, who is let in, and what does not linger."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from aiokafka_lite import records
from aiokafka_lite.broker import Broker, server_ssl_context
from aiokafka_lite.broker.security.listener import principal_of
from aiokafka_lite.errors import KafkaConfigurationError
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from tests.broker.wire import eventually, fetch, fetch_partition, produce, until_closed
from tests.support.for_each import for_each
from tests.support.frames import correlation_id_of
from tests.support.wire import RawClient

pytestmark = pytest.mark.every_loop

METADATA = MetadataRequest(topics=[])


def client_of(broker: Broker, certified: str | None = None) -> RawClient:
    context = broker.certificates.client_context(certified)
    return RawClient(broker.bootstrap_servers, ssl_context=context)


def pending_handshakes(broker: Broker) -> int:
    return sum(endpoint.handshake_count for endpoint in broker.node.endpoints.values())


async def test_large_batches_cross_tls_unharmed() -> None:
    async with Broker(security_protocol="SSL") as broker, client_of(broker) as client:
        broker.create_topic("t", configs={"max.message.bytes": "8000000"})
        for offset, size in enumerate((10, 100_000, 5_000_000)):
            batch = records.build_batch([(1, None, bytes([size % 251]) * size, ())])
            assert (await produce(client, "t", batch)).base_offset == offset
            part = fetch_partition(offset=offset, max_bytes=8 << 20)
            fetched = (await fetch(client, "t", part)).records
            assert fetched is not None
            assert bytes(fetched)[61:] == batch[61:]  # behind the offset and the epoch
    assert broker.failure is None


async def test_many_requests_sent_at_once_are_answered_in_order() -> None:
    frames = [framing.encode_request(METADATA, 5, number, "x" * 500) for number in range(300)]
    async with Broker(security_protocol="SSL") as broker, client_of(broker) as client:
        answers = await client.pipeline(frames)
    assert [correlation_id_of(answer) for answer in answers] == list(range(300))


async def test_client_without_the_ca_does_not_connect() -> None:
    async with Broker(security_protocol="SSL") as broker:
        context = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            await RawClient(broker.bootstrap_servers, ssl_context=context).__aenter__()
        await eventually(lambda: pending_handshakes(broker) == 0)
        assert broker.connection_count == 0


async def test_client_without_tls_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with Broker(security_protocol="SSL") as broker:
        async with RawClient(broker.bootstrap_servers) as client:
            host, port = client.local_address
            await client.send(b"\0\0\0\x20" + bytes(32))
            await until_closed(client)
        await eventually(lambda: pending_handshakes(broker) == 0)
    assert f"connection from {host}:{port} is closed: the TLS handshake failed" in caplog.text


async def test_required_certificate_names_the_client() -> None:
    async with Broker(security_protocol="SSL", ssl_client_auth="required") as broker:
        async with client_of(broker, "alice, of Wonderland") as client:
            await client.request(METADATA)
            (connection,) = broker.node.connections
            assert connection.principal.startswith("User:CN=alice\\, of Wonderland,OU=")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            # With TLS 1.3 the client learns of it after its own side is done.
            async with client_of(broker) as client:
                await client.request(METADATA)


async def test_requested_certificate_may_be_missing() -> None:
    async with Broker(security_protocol="SSL", ssl_client_auth="requested") as broker:
        async with client_of(broker) as client:
            await client.request(METADATA)
            (connection,) = broker.node.connections
            assert connection.principal == "User:ANONYMOUS"
        await eventually(lambda: broker.connection_count == 0)
        async with client_of(broker, "bob") as client:
            await client.request(METADATA)
            (connection,) = broker.node.connections
            assert connection.principal.startswith("User:CN=bob,")


async def test_certificate_of_another_ca_is_refused() -> None:
    async with Broker(security_protocol="SSL", ssl_client_auth="required") as broker:
        context = broker.certificates.client_context()
        trustme.CA().issue_cert("mallory@localhost", common_name="mallory").configure_cert(context)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with RawClient(broker.bootstrap_servers, ssl_context=context) as client:
                await client.request(METADATA)


async def test_tls_before_1_2_is_not_spoken() -> None:
    async with Broker(security_protocol="SSL") as broker:
        assert broker.certificates.server_context().minimum_version is ssl.TLSVersion.TLSv1_2
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = broker.certificates.client_context()
            context.minimum_version = context.maximum_version = version
            async with RawClient(broker.bootstrap_servers, ssl_context=context) as client:
                await client.request(METADATA)


async def open_silently(broker: Broker) -> asyncio.StreamWriter:
    address = broker.node.address
    _, writer = await asyncio.open_connection(address.host, address.port)
    await eventually(lambda: pending_handshakes(broker) > 0)
    return writer


async def test_stopping_closes_those_who_never_finish_the_handshake() -> None:
    async with Broker(security_protocol="SSL") as broker:
        address = broker.node.address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        await eventually(lambda: pending_handshakes(broker) == 1)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_handshake_that_takes_too_long_is_ended() -> None:
    async with Broker(security_protocol="SSL", sasl_authentication_timeout_s=0.2) as broker:
        writer = await open_silently(broker)
        await eventually(lambda: pending_handshakes(broker) == 0)
        writer.close()


async def test_handshakes_count_as_connections() -> None:
    async with Broker(security_protocol="SSL", max_connections=1) as broker:
        writer = await open_silently(broker)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await client_of(broker).__aenter__()
        writer.close()
        await eventually(lambda: pending_handshakes(broker) == 0)
        async with client_of(broker) as client:
            await client.request(METADATA)


async def test_node_that_was_killed_speaks_tls_again_at_its_address() -> None:
    async with Broker(security_protocol="SSL") as broker:
        async with client_of(broker) as client:
            await client.request(METADATA)
            await broker.stop_node(1, clean=False)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.request(METADATA)
        await broker.start_node(1)
        async with client_of(broker) as client:
            await client.request(METADATA)


@for_each(
    [
        (None, "ANONYMOUS"),
        ({}, "ANONYMOUS"),
        ({"subject": ()}, "ANONYMOUS"),
        ({"subject": ((("commonName", "al+ice"),),)}, r"CN=al\+ice"),
        (
            {"subject": ((("localityName", "here"),), (("userId", "7"), ("other", "a, b")))},
            r"UID=7+other=a\, b,L=here",
        ),
    ]
)
def test_principal_is_the_subject_as_kafka_writes_it(
    certificate: dict[str, object] | None, principal: str
) -> None:
    assert principal_of(certificate) == principal


# --- Contexts of files -------------------------------------------------------------------------
async def test_context_is_made_of_files(tmp_path: Path) -> None:
    ca = trustme.CA()
    server = ca.issue_cert("127.0.0.1")
    chain, key, ca_file = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    chain.write_bytes(b"".join(each.bytes() for each in server.cert_chain_pems))
    server.private_key_pem.write_to_path(key)
    ca.cert_pem.write_to_path(ca_file)
    context = server_ssl_context(chain, key, client_auth="required", client_ca_file=ca_file)
    async with Broker(security_protocol="SSL", ssl_context=context) as broker:
        with pytest.raises(KafkaConfigurationError, match="this broker created no certificates"):
            _ = broker.certificates
        client_context = ssl.create_default_context(cafile=str(ca_file))
        ca.issue_cert("client@localhost", common_name="dora").configure_cert(client_context)
        async with RawClient(broker.bootstrap_servers, ssl_context=client_context) as client:
            await client.request(METADATA)
            (connection,) = broker.node.connections
            assert connection.principal.startswith("User:CN=dora,")


def test_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("hello")
    for path in (missing, text):
        with pytest.raises(KafkaConfigurationError, match=path.stem):
            server_ssl_context(path)
    good = trustme.CA().issue_cert("localhost")
    both = tmp_path / "both.pem"
    good.private_key_and_cert_chain_pem.write_to_path(both)
    assert server_ssl_context(both).minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(KafkaConfigurationError, match="client_ca_file"):
        server_ssl_context(both, client_auth="required")
    with pytest.raises(KafkaConfigurationError, match="missing"):
        server_ssl_context(both, client_auth="required", client_ca_file=missing)
