"""TLS listeners and certificates, on both loops; certificates are made with openssl."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from aiokafka_lite.client.connection import Connection
from aiokafka_lite.errors import KafkaConnectionError, TLSError
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tests.client.conftest import TIMEOUT_S
from tests.support.connecting import connect_to
from tests.support.scripted_broker import ScriptedBroker, always

pytestmark = pytest.mark.every_loop


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key, in one file."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not installed: it makes the certificate for this test")
    folder = tmp_path_factory.mktemp("tls")
    key, crt, both = folder / "key.pem", folder / "crt.pem", folder / "both.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=kafka", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(crt)),
        ],
        check=True,
        capture_output=True,
    )
    both.write_bytes(key.read_bytes() + crt.read_bytes())
    return both


def tls_broker(certificate: Path) -> ScriptedBroker:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return ScriptedBroker(ssl_context=context)


async def open_tls(broker: ScriptedBroker, context: ssl.SSLContext) -> Connection:
    return await connect_to(broker.host, broker.port, ssl_context=context)


async def test_large_and_small_answers_cross_tls_unharmed(certificate: Path) -> None:
    async with tls_broker(certificate) as broker:
        connection = await open_tls(broker, create_ssl_context(cafile=str(certificate)))
        for size in (10, 100_000, 3_000_000):
            partition = PartitionData(partition_index=0, records=bytes([size % 251]) * size)
            topic = FetchableTopicResponse(topic_id=b"0123456789abcdef", partitions=[partition])
            broker.scripts[FetchRequest] = always(FetchResponse(responses=[topic]))
            response = await connection.request(FetchRequest(), timeout_s=TIMEOUT_S)
            records = response.responses[0].partitions[0].records
            assert records is not None
            assert bytes(records) == bytes([size % 251]) * size
        connection.close()
        await connection.wait_closed()


async def test_untrusted_certificate_says_how_to_trust_it(certificate: Path) -> None:
    async with tls_broker(certificate) as broker:
        with pytest.raises(TLSError, match=r"not trusted \(self.signed.*cafile") as caught:
            await open_tls(broker, create_ssl_context())
        assert not caught.value.retriable


async def test_certificate_of_another_host_is_refused(certificate: Path) -> None:
    async with tls_broker(certificate) as broker:
        context = create_ssl_context(cafile=str(certificate))
        with pytest.raises(TLSError, match="not trusted"):
            await connect_to("localhost", broker.port, ssl_context=context)


async def test_listener_that_speaks_no_tls_is_named(broker: ScriptedBroker) -> None:
    broker.greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(TLSError, match=f"{broker.address}.*does not speak TLS"):
        await open_tls(broker, create_ssl_context())


async def test_plain_connection_to_a_tls_listener_says_what_to_use(certificate: Path) -> None:
    async with tls_broker(certificate) as broker:
        with pytest.raises(KafkaConnectionError, match="security_protocol"):
            await connect_to(broker.host, broker.port)


async def test_reset_during_the_handshake_may_be_tried_again(broker: ScriptedBroker) -> None:
    broker.is_hanging_up = True
    with pytest.raises(KafkaConnectionError) as caught:
        await open_tls(broker, create_ssl_context())
    assert caught.value.retriable
