"""create_ssl_context: safe defaults that cannot be lost by accident."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from aiokafka_lite.helpers import create_ssl_context


def test_context_verifies_certificates_and_host_names() -> None:
    context = create_ssl_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        create_ssl_context(cafile=tmp_path / "ca.pem")
    with pytest.raises(FileNotFoundError):
        create_ssl_context(certfile=tmp_path / "client.pem")
