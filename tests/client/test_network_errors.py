"""What exceptions of the network mean, in words."""

from __future__ import annotations

import ssl

import pytest

from aiokafka_lite.client.network_errors import explain

MISSING_AUTHORITY_KEY_IDENTIFIER = 85
SELF_SIGNED = 18


def refused(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    error.verify_message = message
    return error


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (
            MISSING_AUTHORITY_KEY_IDENTIFIER,
            "Missing Authority Key Identifier",
            "VERIFY_X509_STRICT",
        ),
        (92, "CA cert does not include key usage extension", "VERIFY_X509_STRICT"),
        (SELF_SIGNED, "self-signed certificate", "create_ssl_context(cafile=...)"),
    ],
)
def test_a_certificate_that_is_refused_says_what_to_do(code: int, message: str, hint: str) -> None:
    words = explain(refused(code, message))
    assert message in words
    assert hint in words
