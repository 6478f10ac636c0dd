"""A CA for tests that signs what a real one would not: expired, nameless, revoked."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

# What a CA's key is for.
SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key; `pem` holds both, the key first."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...] = ()

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def pem(self) -> str:
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = "".join(each.public_bytes(Encoding.PEM).decode() for each in self.chain)
        return key.decode() + self.certificate_pem + chain

    def write(self, path: Path) -> Path:
        path.write_text(self.pem)
        path.chmod(0o600)
        return path

    def server_context(self, folder: Path) -> ssl.SSLContext:
        """The context of a listener that shows this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.write(folder / f"{self.certificate.serial_number}.pem"))
        return context


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _signed_by(key: ec.EllipticCurvePrivateKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


class Authority:
    """A CA; `issuer`, another one, has signed it, or it has signed itself.

    Attributes:
        own: Its own certificate and key.
    """

    def __init__(self, name: str = "tests", issuer: Authority | None = None) -> None:
        self.own: Issued = _issue(name, (), issuer.own if issuer else None, is_ca=True)

    @property
    def pem(self) -> str:
        return self.own.certificate_pem

    def issue(
        self, *names: str, common_name: str = "broker", from_days: int = -1, to_days: int = 1
    ) -> Issued:
        """Sign a certificate with these alternative names, valid between two days from now."""
        return _issue(common_name, names, self.own, from_days=from_days, to_days=to_days)

    def revocations(self, *revoked: Issued) -> str:
        """The list of what is revoked, in PEM."""
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateRevocationListBuilder(
            self.own.certificate.subject, now - DAY, now + DAY
        )
        builder = builder.add_extension(_signed_by(self.own.key), critical=False).add_extension(
            x509.CRLNumber(1), critical=False
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder(each.certificate.serial_number, now - DAY)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.own.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def self_signed(*names: str) -> Issued:
    """A certificate that vouches for itself."""
    return _issue("broker", names, None)


def _issue(
    common_name: str,
    names: Sequence[str],
    issuer: Issued | None,
    *,
    is_ca: bool = False,
    from_days: int = -1,
    to_days: int = 1,
) -> Issued:
    now = datetime.datetime.now(datetime.timezone.utc)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(
        issuer.certificate.subject if issuer else _subject(common_name),
        _subject(common_name),
        key.public_key(),
        x509.random_serial_number(),
        now + from_days * DAY,
        now + to_days * DAY,
    ).add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    # From 3.13 on Python wants to know by which key who has signed.
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    ).add_extension(_signed_by(issuer.key if issuer else key), critical=False)
    if is_ca:
        builder = builder.add_extension(SIGNS, critical=True)
    if names:
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        builder = builder.add_extension(alternatives, critical=False)
    signed = builder.sign(issuer.key if issuer else key, hashes.SHA256())
    return Issued(signed, key)
