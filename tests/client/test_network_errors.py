"""What exceptions of the network mean, in words."""

from __future__ import annotations

import socket
import ssl

import pytest

from aiokafka_lite.client.config import Address
from aiokafka_lite.client.network_errors import (
    explain,
    hosts,
    is_numeric,
    is_refusal,
    not_connected,
    unresolved,
)
from aiokafka_lite.errors import KafkaConnectionError, TLSError
from tests.support.for_each import for_each

MISSING_AUTHORITY_KEY_IDENTIFIER = 85
SELF_SIGNED = 18


def refused(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    error.verify_message = message
    return error


@for_each(
    [
        (
            MISSING_AUTHORITY_KEY_IDENTIFIER,
            "Missing Authority Key Identifier",
            "VERIFY_X509_STRICT",
        ),
        (92, "CA cert does not include key usage extension", "VERIFY_X509_STRICT"),
        (SELF_SIGNED, "self-signed certificate", "create_ssl_context(cafile=...)"),
        (10, "certificate has expired", "renew the certificate"),
        (62, "hostname mismatch", "subjectAltName"),
    ]
)
def test_a_certificate_that_is_refused_says_what_to_do(code: int, message: str, hint: str) -> None:
    words = explain(refused(code, message))
    assert message in words
    assert hint in words


def tls_error(reason: str, kind: type[ssl.SSLError] = ssl.SSLError) -> ssl.SSLError:
    error = kind(1, reason)
    error.reason = reason
    return error


def caused_by(text: str) -> ssl.SSLError:
    error = tls_error(text)
    error.reason = ""
    return error


@for_each(
    [
        (None, "the peer closed the connection"),
        (ConnectionRefusedError(), "connection refused: check that a broker listens"),
        (ConnectionResetError(), "connection reset by the peer"),
        (TimeoutError(), "no answer within 0.5 s"),
        (OSError(113, "No route to host"), "No route to host"),
        (ValueError("a port beyond 65535"), "a port beyond 65535"),
        (OverflowError(), "OverflowError"),
        (tls_error("WRONG_VERSION_NUMBER"), "TLS failed (WRONG_VERSION_NUMBER): perhaps the list"),
        (
            tls_error("UNSUPPORTED_PROTOCOL"),
            "TLS failed (UNSUPPORTED_PROTOCOL): this client needs TLS 1.2",
        ),
    ]
)
def test_an_exception_has_words(error: BaseException | None, words: str) -> None:
    assert explain(error, 0.5).startswith(words)


def test_a_timeout_without_a_limit_has_its_own_words() -> None:
    assert explain(TimeoutError("timed out")) == "timed out"
    assert explain(tls_error("NO_IDEA")) == "TLS failed (NO_IDEA)"
    assert "not even a reason" in explain(caused_by("not even a reason"))


@for_each(
    [
        (None, False),
        (ConnectionResetError(), False),
        (tls_error("SSLV3_ALERT_BAD_CERTIFICATE"), True),
        (tls_error("TLSV1_ALERT_INTERNAL_ERROR"), False),
        (tls_error("WRONG_VERSION_NUMBER"), False),
    ]
)
def test_an_alert_of_tls_is_a_refusal_unless_it_passes(
    error: BaseException | None, is_so: bool
) -> None:
    assert is_refusal(error) is is_so


@for_each(
    [
        (
            [ConnectionRefusedError(), TimeoutError()],
            False,
            KafkaConnectionError,
            r": cannot connect to kafka.test:9092: 10.0.0.0: connection refused.*; 10.0.0.1: no ",
        ),
        ([tls_error("WRONG_VERSION_NUMBER")], True, TLSError, "does not speak TLS"),
        ([tls_error("UNEXPECTED_EOF", ssl.SSLEOFError)], True, KafkaConnectionError, "TLS failed"),
        (
            [ConnectionResetError()] * 2,
            True,
            KafkaConnectionError,
            "peer; 10.0.0.1: connection reset by the peer during TLS's handshake: perhaps",
        ),
        ([ConnectionResetError()], False, KafkaConnectionError, "reset by the peer$"),
        ([ConnectionRefusedError()], True, KafkaConnectionError, "on this address$"),
    ]
)
def test_failed_addresses_are_named_with_the_reasons(
    errors: list[BaseException], uses_tls: bool, error_class: type[Exception], text: str
) -> None:
    failures = {f"10.0.0.{number}": each for number, each in enumerate(errors)}
    address = Address("kafka.test", 9092)
    with pytest.raises(error_class, match=text) as caught:
        raise not_connected(address, failures, timeout_s=0.5, uses_tls=uses_tls)
    assert type(caught.value) is error_class
    assert caught.value.__cause__ is errors[-1]


def test_an_address_is_named_once_and_a_name_that_leads_nowhere_with_its_cause() -> None:
    failures = {"10.0.0.1": TimeoutError()}
    failed = not_connected(Address("10.0.0.1", 9092), failures, timeout_s=0.5, uses_tls=False)
    assert str(failed.args[0]) == "cannot connect to 10.0.0.1:9092: no answer within 0.5 s"
    cause = socket.gaierror(socket.EAI_NONAME, "unknown")
    error = unresolved(Address("kafka.test", 9092), cause)
    assert "cannot resolve the host name of kafka.test:9092: unknown. Check" in error.args[0]
    assert error.__cause__ is cause


def test_addresses_that_were_found_are_tried_once_in_order() -> None:
    kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
    found = [(*kind, (host, 9092)) for host in ("b", "a", "b")]
    assert hosts(found) == ["b", "a"]
    assert [is_numeric(host) for host in ("127.0.0.1", "::1", "kafka.test", "a\0b")] == [
        True, True, False, False
    ]  # fmt: skip
