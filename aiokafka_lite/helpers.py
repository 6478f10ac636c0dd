"""Helpers under aiokafka's name."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import TypeAlias

from aiokafka_lite._compat import Buffer

__all__ = ["create_ssl_context"]

_Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Password: TypeAlias = str | bytes | bytearray


def create_ssl_context(
    *,
    cafile: _Path | None = None,
    capath: _Path | None = None,
    cadata: str | Buffer | None = None,
    certfile: _Path | None = None,
    keyfile: _Path | None = None,
    password: Callable[[], _Password] | _Password | None = None,
) -> ssl.SSLContext:
    """Return a context for ``ssl_context=``: TLS 1.2 or newer, with verified host names.

    Args:
        cafile: A PEM file of trusted certificates. Without any, the system's are trusted.
        capath: A folder of hashed PEM files of trusted certificates.
        cadata: Trusted certificates as PEM text or DER bytes.
        certfile: The client's certificate chain, for brokers that request one.
        keyfile: The client's key, unless it is in `certfile`.
        password: The key's password, or a callable that returns it.

    Raises:
        ssl.SSLError, OSError: A file is missing or cannot be read as certificates.
    """
    context = ssl.create_default_context(
        ssl.Purpose.SERVER_AUTH, cafile=cafile, capath=capath, cadata=cadata
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certfile is not None:
        context.load_cert_chain(certfile, keyfile, password)
    return context
