"""Tokens from an OAuth 2.0 server by client credentials (KIP-768, RFC 6749 section 4.4).

A token is renewed when four fifths of its lifetime are over, by a thread, so that no other
connection waits. If that fails, the token is used until it expires. All callers that wait share one
request and its outcome.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from aiokafka_lite._compat import Self, override
from aiokafka_lite._forks import notify_of_forks
from aiokafka_lite.abc import AbstractTokenProvider
from aiokafka_lite.client.sasl import TokenUnavailableError
from aiokafka_lite.errors import AuthenticationFailedError
from aiokafka_lite.sasl import Secret

if TYPE_CHECKING:
    from concurrent.futures import Future

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 1 << 16
MAX_LOGGED_CHARACTERS: Final = 200
RENEW_AT: Final = 0.8
# After a failed renewal of a valid token.
RENEW_AGAIN_AFTER_S: Final = 10.0
# Statuses that a later request may not get, besides those of broken servers.
PASSING_STATUSES: Final = frozenset({408, 425, 429})
FIRST_STATUS_OF_SERVERS: Final = 500


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Keeps credentials from other servers."""

    @override
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class _TimeLimit:
    """Ends a connection whose response, in any number of pieces, has not ended in time."""

    def __init__(self, limit_s: float) -> None:
        self.is_over = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True

    def begin(self, connected: socket.socket) -> None:
        """Begin when the socket is connected. Later calls have no effect."""
        if self._socket is None:
            self._socket = connected.dup()  # TLS takes over the descriptor
            self._timer.start()

    def _end(self) -> None:
        self.is_over = True
        if self._socket is not None:
            with suppress(OSError):  # the server has closed it
                self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._socket is not None:
            self._timer.join()
            self._socket.close()


class _Connection(HTTPConnection):
    limit: _TimeLimit

    @override
    def connect(self) -> None:
        super().connect()
        self.limit.begin(self.sock)

    @override
    def send(self, data: Any) -> None:
        """Send also CONNECT to a proxy, whose response `connect` waits for."""
        if self.sock is not None:
            self.limit.begin(self.sock)
        super().send(data)


class _TLSConnection(HTTPSConnection, _Connection):
    """Calls `_Connection.connect` before the handshake."""


class _Opening(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens connections that have a limit."""

    def __init__(self, limit: _TimeLimit) -> None:
        super().__init__()
        self._limit = limit

    def _connection(self, kind: type[_Connection], host: str, **settings: Any) -> HTTPConnection:
        connection = kind(host, **settings)
        connection.limit = self._limit
        return connection

    @override
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, _Connection), req)

    @override
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, _TLSConnection), req)


class _Kept(NamedTuple):
    token: Secret
    renew_at: float
    expires_at: float


class ClientCredentials(AbstractTokenProvider):
    """Requests tokens from a server's token endpoint, in the name of a client.

    `extensions` are SASL extensions to send with each token (KIP-342). `is_encoded` encodes name
    and password as in the RFC; Kafka's clients do not by default.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: Secret,
        *,
        scope: str | None = None,
        extensions: Mapping[str, str] | None = None,
        is_encoded: bool = False,
        timeout_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url: Final = url
        self._client_id: Final = client_id
        self._client_secret: Final = client_secret
        self._scope: Final = scope
        self._extensions: Final = dict(extensions or {})
        self._is_encoded: Final = is_encoded
        self._timeout_s: Final = timeout_s
        self._clock: Final = clock
        self._kept: _Kept | None = None
        self.note_fork()
        notify_of_forks(self)

    def note_fork(self) -> None:
        # A thread of the parent may hold the previous lock, and ends the previous request.
        self._lock = threading.Lock()
        self._in_flight: Future[_Kept] | None = None

    @override
    async def token(self) -> str:
        from aiokafka_lite._threads import outcome  # here: parsing needs no asyncio

        kept = self._kept
        if kept is None or self._clock() >= kept.renew_at:
            kept = await outcome(self._renewal())
        return kept.token.reveal().decode()

    def _renewal(self) -> Future[_Kept]:
        """Return the request in flight, or a new one. No caller can cancel it."""
        from concurrent.futures import Future

        from aiokafka_lite._threads import wait_in_thread

        request: Future[_Kept] = Future()
        request.set_running_or_notify_cancel()
        try:
            with self._lock:
                if self._in_flight is not None:
                    return self._in_flight
                kept = self._kept
                if kept is not None and self._clock() < kept.renew_at:  # a request ended now
                    request.set_result(kept)
                    return request
                self._in_flight = request
            wait_in_thread(partial(self._renew, request), name="token")
        except BaseException:  # such as a signal handler's: the thread may have started or not
            self._end(request, TokenUnavailableError("the request for a token was interrupted"))
            raise
        return request

    def _renew(self, request: Future[_Kept]) -> None:
        end: _Kept | BaseException
        try:
            end = self._renewed()
        except BaseException as error:  # noqa: BLE001 -- all callers raise it
            end = error
        self._end(request, end)

    def _end(self, request: Future[_Kept], end: _Kept | BaseException) -> None:
        from concurrent.futures import InvalidStateError

        with self._lock:
            if isinstance(end, _Kept):
                self._kept = end
            if self._in_flight is request:
                self._in_flight = None
        with suppress(InvalidStateError):  # a caller that was interrupted has ended it
            if isinstance(end, _Kept):
                request.set_result(end)
            else:
                request.set_exception(end)

    def _renewed(self) -> _Kept:
        try:
            return self._fetch()
        except AuthenticationFailedError:
            kept, now = self._kept, self._clock()
            if kept is None or now >= kept.expires_at:
                raise
            return kept._replace(renew_at=min(now + RENEW_AGAIN_AFTER_S, kept.expires_at))

    @override
    def extensions(self) -> dict[str, str]:
        return self._extensions

    def _fetch(self) -> _Kept:
        asked_at = self._clock()
        with _TimeLimit(self._timeout_s) as limit:
            answer = self._answer(limit)
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or not isinstance(token, str) or not token:
            raise self._failure("returned a response without an access_token")
        lifetime_s = self._lifetime_s(answer.get("expires_in"))
        return _Kept(Secret(token), asked_at + lifetime_s * RENEW_AT, asked_at + lifetime_s)

    def _lifetime_s(self, expires_in: object) -> float:
        """Return 0 if it is unknown: the token is then used once."""
        if expires_in is None:
            return 0.0
        try:
            lifetime_s = float(cast("str", expires_in))  # some servers return the number as text
        except (TypeError, ValueError, OverflowError):
            lifetime_s = math.nan
        if not 0 <= lifetime_s < math.inf:  # Python's JSON has NaN and Infinity
            raise self._failure("returned an expires_in that is not a number of seconds from 0 on")
        return lifetime_s

    def _answer(self, limit: _TimeLimit) -> object:
        opener = urllib.request.build_opener(_NoRedirects, _Opening(limit))
        try:
            with opener.open(self._request(), timeout=self._timeout_s) as response:
                body = _body(response)
            if body is None:
                raise self._failure(f"returned more than {MAX_ANSWER_BYTES} bytes")
            if not limit.is_over:  # else its end may be missing
                return json.loads(body)
            is_late = True
        except urllib.error.HTTPError as error:
            with error:
                what = f"answered with HTTP status {error.code}{_reason(error)}"
            may_pass = error.code >= FIRST_STATUS_OF_SERVERS or error.code in PASSING_STATUSES
            raise self._failure(what, may_pass=may_pass) from None
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            is_late = limit.is_over or isinstance(cause, TimeoutError)
            what, may_pass = f"cannot be reached: {cause}", not isinstance(cause, ssl.SSLError)
        except ValueError:
            is_late = limit.is_over
            what, may_pass = "returned a response that is not JSON", False
        if is_late:
            what, may_pass = f"did not respond within {self._timeout_s:g} s", True
        raise self._failure(what, may_pass=may_pass)

    def _request(self) -> urllib.request.Request:
        pair = [self._client_id, self._client_secret.reveal().decode()]
        if self._is_encoded:
            pair = [urllib.parse.quote_plus(each) for each in pair]
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        return urllib.request.Request(  # noqa: S310 -- the options allow http and https only
            self._url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                "Accept": "application/json",
                "Authorization": f"Basic {base64.b64encode(':'.join(pair).encode()).decode()}",
            },
        )

    def _failure(self, what: str, *, may_pass: bool = False) -> AuthenticationFailedError:
        # Logged here, because an error of a provider is shown only by its class.
        host = urllib.parse.urlsplit(self._url).hostname
        text = f"the token endpoint at {host} {what}"
        log.warning("%s", text)
        return (TokenUnavailableError if may_pass else AuthenticationFailedError)(text)


def _body(response: HTTPResponse) -> bytes | None:
    """Return a response's body, or None if it is too long."""
    body = b""
    while piece := response.read1(PIECE_BYTES):
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            return None
    return body


def _reason(error: urllib.error.HTTPError) -> str:
    """Return RFC 6749's error code in a response, such as invalid_client."""
    try:
        answer: object = json.loads(_body(cast("HTTPResponse", error.fp)) or b"")
    except (ValueError, OSError, HTTPException):
        return ""
    code = answer.get("error") if isinstance(answer, dict) else None
    return f" ({code[:MAX_LOGGED_CHARACTERS]!r})" if isinstance(code, str) else ""
