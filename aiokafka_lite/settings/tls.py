"""The TLS settings of Kafka's Java clients: PEM in files or inline, or PKCS12 stores."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from aiokafka_lite.errors import OptionError
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.settings.raw_options import RawOptions, trimmed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
OLD_VERSIONS: Final = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
TLS13_SUITES: Final = ("TLS_AES_", "TLS_CHACHA20_")

_JKS: Final = b"\xfe\xed\xfe\xed"
_JCEKS: Final = b"\xce\xce\xce\xce"
_PEM: Final = b"-----BEGIN "
_ONE_LINE: Final = re.compile(
    r"(-----BEGIN [A-Z ]+-----)([A-Za-z0-9+/=\s]+)(-----END [A-Z ]+-----)"
)


class _Identity(NamedTuple):
    """A client's certificates in PEM, and the key to the first."""

    certificates: bytes
    key: bytes
    password: str | None

    def __repr__(self) -> str:
        return "_Identity(***)"


def tls_context(raw: RawOptions) -> ssl.SSLContext:
    """Create the context that the options kafka.ssl.* describe."""
    context = _trusting(raw)
    _load_identity(context, raw)
    _set_host_check(context, raw)
    _set_versions(context, raw)
    _set_ciphers(context, raw)
    return context


# --- Truststore ----------------------------------------------------------------------------
def _trusting(raw: RawOptions) -> ssl.SSLContext:
    name = _one_of(raw, "ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.location")
    if name is None:
        return create_ssl_context()
    _check_type(raw, "ssl.truststore.type")
    stored = _stored(raw, name)
    if _PEM not in stored:
        stored = _pkcs12_certificates(raw, name, stored)
    try:
        return create_ssl_context(cadata=stored.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise raw.refusal(
            name, f"cannot read the trusted certificates ({_reason(error)})"
        ) from error


def _pkcs12_certificates(raw: RawOptions, name: str, stored: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    opened = _pkcs12(raw, name, stored, "kafka.ssl.truststore.password", "-nokeys ")
    found = [each.certificate for each in (*opened.additional_certs, opened.cert) if each]
    if not found:
        raise raw.refusal(name, "the truststore contains no certificates")
    return b"".join(each.public_bytes(Encoding.PEM) for each in found)


# --- Keystore ------------------------------------------------------------------------------
def _load_identity(context: ssl.SSLContext, raw: RawOptions) -> None:
    name = _one_of(
        raw,
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
        "ssl.certificate.location",
    )
    if name is None:
        for key, certificate in (
            ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
            ("ssl.key.location", "ssl.certificate.location"),
        ):
            if f"kafka.{key}" in raw:
                raise OptionError(
                    f"option kafka.{key} is set, but the certificate is missing: set the option "
                    f"kafka.{certificate}"
                )
        return
    _check_type(raw, "ssl.keystore.type")
    identity = _identity(raw, name)

    def password() -> str:
        # A function, because OpenSSL would ask for a missing password on the terminal.
        if identity.password is None:
            raise OptionError(
                f"the private key of the certificate in option {name} is encrypted: set the option "
                "kafka.ssl.key.password"
            )
        return identity.password

    with _file_of(identity.certificates) as certificates, _file_of(identity.key) as key:
        try:
            context.load_cert_chain(certificates, key, password)
        except (ssl.SSLError, ValueError) as error:
            raise raw.refusal(
                name,
                "the certificate and the key cannot be read or do not match, or "
                f"kafka.ssl.key.password is wrong ({_reason(error)})",
            ) from error


def _identity(raw: RawOptions, name: str) -> _Identity:
    key_password = raw.text("kafka.ssl.key.password")
    stored = _stored(raw, name)
    match name:
        case "kafka.ssl.keystore.certificate.chain":
            return _Identity(stored, _key(raw, "kafka.ssl.keystore.key", name), key_password)
        case "kafka.ssl.certificate.location":
            key = stored
            if "kafka.ssl.key.location" in raw:
                key = _key(raw, "kafka.ssl.key.location", name)
            return _Identity(stored, key, key_password)
    if _PEM in stored:
        return _Identity(stored, stored, key_password)
    return _pkcs12_identity(raw, name, stored)


def _key(raw: RawOptions, name: str, beside: str) -> bytes:
    if name not in raw:
        raise OptionError(
            f"option {name} is missing: set it to the private key of the certificate in {beside}"
        )
    return _stored(raw, name)


def _pkcs12_identity(raw: RawOptions, name: str, stored: bytes) -> _Identity:
    from cryptography.hazmat.primitives import serialization

    opened = _pkcs12(raw, name, stored, "kafka.ssl.keystore.password", "")
    if opened.key is None or opened.cert is None:
        raise raw.refusal(name, "the keystore contains no private key with a certificate")
    password = os.urandom(24).hex()
    key = opened.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password.encode()),
    )
    chain = [opened.cert, *opened.additional_certs]
    pem = b"".join(each.certificate.public_bytes(serialization.Encoding.PEM) for each in chain)
    return _Identity(pem, key, password)


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Lend a file, because OpenSSL reads certificates and keys only from files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("aiokafka-lite")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp()
    try:
        os.write(descriptor, content)
        yield path
    finally:
        os.close(descriptor)
        os.unlink(path)


# --- Stores --------------------------------------------------------------------------------
def _one_of(raw: RawOptions, *names: str) -> str | None:
    found = [f"kafka.{name}" for name in names if f"kafka.{name}" in raw]
    if len(found) > 1:
        raise OptionError(
            f"options {' and '.join(found)} exclude each other: set only one of the options"
        )
    return found[0] if found else None


def _check_type(raw: RawOptions, name: str) -> None:
    kind = trimmed(raw.text(f"kafka.{name}") or "PEM").upper()
    if kind not in ("PEM", "PKCS12", "JKS"):
        raise raw.refusal(f"kafka.{name}", "the value must be PEM or PKCS12")


def _stored(raw: RawOptions, name: str) -> bytes:
    value = raw.text(name) or ""
    if not name.endswith(".location"):
        return _ONE_LINE.sub(_in_lines, value).encode()
    try:
        stored = Path(trimmed(value)).read_bytes()
    except (OSError, ValueError) as error:
        raise raw.refusal(
            name,
            f"the file cannot be read ({_reason(error)}). The file must exist at this path on the "
            "driver and on every executor",
        ) from error
    if stored.startswith((_JKS, _JCEKS)):
        _refuse_jks(raw, name)
    return stored


def _in_lines(found: re.Match[str]) -> str:
    """Write PEM in lines for OpenSSL. Java accepts spaces between them."""
    begin, body, end = found.groups()
    characters = "".join(body.split())
    lines = [characters[pos : pos + 64] for pos in range(0, len(characters), 64)]
    return "\n".join(["", begin, *lines, end, ""])


def _refuse_jks(raw: RawOptions, name: str) -> NoReturn:
    path = trimmed(raw.text(name) or "")
    if "truststore" in name or "ca" in name.split("."):
        convert = f"keytool -list -rfc -keystore '{path}' > '{path}.pem'"
    else:
        convert = (
            f"keytool -importkeystore -srckeystore '{path}' -destkeystore '{path}.p12' "
            f"-deststoretype PKCS12 && openssl pkcs12 -in '{path}.p12' -out '{path}.pem'"
        )
    raise raw.refusal(
        name, f"the file is a JKS store, which only Java can read: convert it with {convert}"
    )


def _pkcs12(
    raw: RawOptions, name: str, stored: bytes, password_name: str, openssl: str
) -> PKCS12KeyAndCertificates:
    path = trimmed(raw.text(name) or "")
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise raw.refusal(
            name,
            "reading a PKCS12 store needs the package cryptography: install it, or convert the "
            f"store with openssl pkcs12 -in '{path}' {openssl}-out '{path}.pem'",
        ) from error
    password = raw.text(password_name)
    try:
        return pkcs12.load_pkcs12(stored, password.encode() if password is not None else None)
    except ValueError as error:
        raise raw.refusal(
            name,
            "the content is neither PEM nor a PKCS12 store, or the password in option "
            f"{password_name} is wrong or missing",
        ) from error


# --- Protocol ------------------------------------------------------------------------------
def _set_host_check(context: ssl.SSLContext, raw: RawOptions) -> None:
    name = "kafka.ssl.endpoint.identification.algorithm"
    algorithm = raw.text(name)
    if algorithm is None or trimmed(algorithm).lower() == "https":
        return
    if trimmed(algorithm):
        raise raw.refusal(
            name, "the value must be https, or empty to disable the check of host names"
        )
    context.check_hostname = False


def _set_versions(context: ssl.SSLContext, raw: RawOptions) -> None:
    name = "kafka.ssl.enabled.protocols"
    text = raw.text(name)
    if text is None:
        return
    asked = _list(text)
    if unknown := [one for one in asked if one not in VERSIONS and one not in OLD_VERSIONS]:
        raise raw.refusal(
            name, f"{unknown[0]!r} is not a TLS version: choose among {', '.join(VERSIONS)}"
        )
    versions = [VERSIONS[one] for one in asked if one in VERSIONS]
    if not versions:
        raise raw.refusal(name, f"TLS versions older than {min(VERSIONS)} are not supported")
    context.minimum_version = min(versions)
    context.maximum_version = max(versions)


def _set_ciphers(context: ssl.SSLContext, raw: RawOptions) -> None:
    """Restrict the cipher suites. Those of TLS 1.3 can only be enabled all together."""
    name = "kafka.ssl.cipher.suites"
    suites = _list(raw.text(name) or "")
    if not suites:
        return
    old = [one for one in suites if not one.startswith(TLS13_SUITES)]
    if len(old) == len(suites):
        if context.minimum_version == ssl.TLSVersion.TLSv1_3:
            raise raw.refusal(
                name,
                "the value must contain a suite for TLSv1.3, because kafka.ssl.enabled.protocols "
                "requires TLSv1.3",
            )
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not old:
        if context.maximum_version == ssl.TLSVersion.TLSv1_2:
            raise raw.refusal(
                name,
                "the value must contain a suite for TLSv1.2, because kafka.ssl.enabled.protocols "
                "requires TLSv1.2",
            )
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    for one in old:
        try:
            context.set_ciphers(openssl_name(one))
        except ssl.SSLError as error:
            raise raw.refusal(
                name, f"{one!r} is not a cipher suite that this machine's OpenSSL supports"
            ) from error
    context.set_ciphers(":".join(map(openssl_name, old)))


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite, such as ECDHE-RSA-AES128-GCM-SHA256."""
    if "_WITH_" not in suite:
        return suite
    exchange, cipher = suite.partition("_")[2].split("_WITH_", 1)
    for theirs, ours in (("AES_128", "AES128"), ("AES_256", "AES256"), ("_CBC", "")):
        cipher = cipher.replace(theirs, ours)
    if cipher.startswith("CHACHA20_POLY1305"):
        cipher = "CHACHA20-POLY1305"  # without its hash
    parts = [*([] if exchange == "RSA" else exchange.split("_")), *cipher.split("_")]
    return "-".join(parts)


def _list(text: str) -> list[str]:
    return [one for one in map(trimmed, text.split(",")) if one]


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not in PEM"
    return getattr(error, "strerror", None) or type(error).__name__
