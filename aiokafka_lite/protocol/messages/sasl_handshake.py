"""SaslHandshake (key 17): choose a SASL mechanism (KIP-43).

v1 is followed by SaslAuthenticate requests (KIP-152), v0 by bare tokens.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import Request, Response, array, int16, string


class SaslHandshakeResponse(Response):
    """The mechanisms on offer."""

    error_code: int = int16("0+")
    mechanisms: list[str] = array(string, "0+")


class SaslHandshakeRequest(Request[SaslHandshakeResponse], key=17, versions="0-1"):
    """Ask for a mechanism."""

    mechanism: str = string("0+")
