"""Temporary certificates, and the CA that signs them, which exists in this process only."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka_lite.broker.security.listener import ClientAuth, ask_for_certificates
from aiokafka_lite.errors import KafkaConfigurationError

try:
    import trustme
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )
except ImportError as error:
    raise KafkaConfigurationError(
        "a TLS listener without an ssl_context needs trustme, which creates its certificate: "
        "pip install 'aiokafka-lite[testing]', or give the listener an ssl_context"
    ) from error

# The server's names and addresses for local clients, in addition to its listeners' hosts.
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
CLIENT_ADDRESS: Final = "client@localhost"
OWNER_ONLY: Final = 0o600


class CertificateFiles(NamedTuple):
    """PEM files: Java's `ssl.truststore.location` and `ssl.keystore.location` with type PEM,
    librdkafka's `ssl.ca.location`, `ssl.certificate.location` and `ssl.key.location`.
    """

    ca: Path
    client: Path


class Certificates:
    """A CA and its certificates, for the names and addresses of a server."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._ca = trustme.CA(organization_name="aiokafka_lite tests")
        names = dict.fromkeys((*LOCAL_NAMES, *hosts))
        self._server = self._ca.issue_cert(*(name for name in names if name))

    @property
    def ca_pem(self) -> str:
        return self._ca.cert_pem.bytes().decode()

    def server_context(self, client_auth: ClientAuth | str = ClientAuth.NONE) -> ssl.SSLContext:
        """Create the TLS context of a listener. See `server_ssl_context` for `client_auth`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._server.configure_cert(context)
        ask_for_certificates(context, client_auth, client_ca_pem=self.ca_pem)
        return context

    def client_context(self, client: str | None = None) -> ssl.SSLContext:
        """Create the TLS context of a client that trusts the CA.

        Args:
            client: The CN of the client's certificate. None shows no certificate.
        """
        context = ssl.create_default_context(cadata=self.ca_pem)
        if client is not None:
            self._issue(client).configure_cert(context)
        return context

    def write(self, folder: str | os.PathLike[str], client: str = "client") -> CertificateFiles:
        """Write PEM files for clients of other languages: the CA's, and the client's with its key.

        `client` is the client's CN.
        """
        files = CertificateFiles(Path(folder, "ca.pem"), Path(folder, "client.pem"))
        files.ca.write_text(self.ca_pem)
        files.client.touch(OWNER_ONLY)
        certificate = self._issue(client)
        chain = b"".join(each.bytes() for each in certificate.cert_chain_pems)
        files.client.write_bytes(_pkcs8(certificate.private_key_pem.bytes()) + chain)
        return files

    def _issue(self, client: str) -> trustme.LeafCert:
        # Without a further name, trustme writes an empty list, which Java cannot read.
        return self._ca.issue_cert(CLIENT_ADDRESS, common_name=client)


def _pkcs8(key_pem: bytes) -> bytes:
    """Return a key in PKCS #8, the format that Java reads."""
    key = load_pem_private_key(key_pem, password=None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
