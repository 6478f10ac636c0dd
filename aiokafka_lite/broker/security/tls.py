"""The server's side of TLS: contexts from files, and the names in clients' certificates."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from aiokafka_lite._compat import StrEnum
from aiokafka_lite.errors import KafkaConfigurationError
from aiokafka_lite.sasl import Secret

ANONYMOUS: Final = "ANONYMOUS"
_SHORT_NAMES: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


class ClientAuth(StrEnum):
    """Whether clients show a certificate (Kafka's ssl.client.auth)."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def server_ssl_context(
    certfile: str | Path,
    keyfile: str | Path | None = None,
    *,
    key_password: Secret | str | None = None,
    client_auth: ClientAuth | str = ClientAuth.NONE,
    client_ca_file: str | Path | None = None,
) -> ssl.SSLContext:
    """Create a listener's TLS context from PEM files, for TLS 1.2 and newer.

    Args:
        certfile: The certificate and its intermediate certificates.
        keyfile: The private key, unless `certfile` has it.
        key_password: The password of the private key.
        client_auth: Whether clients show a certificate: `none`, `requested` or `required`.
        client_ca_file: The CA of the clients' certificates, unless `client_auth` is `none`.

    Raises:
        KafkaConfigurationError: A file cannot be read, or has another content.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    password = Secret(key_password) if isinstance(key_password, str) else key_password
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certfile, keyfile, password.reveal() if password else lambda: "")
    except (OSError, ValueError) as error:
        raise KafkaConfigurationError(
            f"cannot use certificate {certfile} with key {keyfile or certfile}: {_reason(error)}"
        ) from None
    ask_for_certificates(context, client_auth, client_ca_file)
    return context


def ask_for_certificates(
    context: ssl.SSLContext,
    client_auth: ClientAuth | str,
    client_ca_file: str | Path | None = None,
    client_ca_pem: str | None = None,
) -> None:
    mode = ClientAuth(client_auth)
    if mode is not ClientAuth.NONE:
        if client_ca_file is None and client_ca_pem is None:
            raise KafkaConfigurationError(
                f"client_auth={mode.value} needs client_ca_file, a file with the CA that signs "
                "client certificates"
            )
        try:
            context.load_verify_locations(client_ca_file, cadata=client_ca_pem)
        except OSError as error:
            raise KafkaConfigurationError(
                f"cannot use the CA file {client_ca_file}: {_reason(error)}"
            ) from None
    context.verify_mode = _VERIFY_MODES[mode]


def principal_of(certificate: Mapping[str, object] | None) -> str:
    """Return the name in a client's certificate, last part first, as Kafka does (RFC 2253)."""
    subject = (certificate or {}).get("subject")
    if not isinstance(subject, Sequence) or not subject:
        return ANONYMOUS
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in parts)
        for parts in reversed(subject)
    )


def _escaped(value: str) -> str:
    return "".join(f"\\{char}" if char in ',+"\\<>;=' else char for char in value)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "the file is not in PEM format"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
