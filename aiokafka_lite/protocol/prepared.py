"""Requests with their own encoding or newest version."""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

from aiokafka_lite._compat import override
from aiokafka_lite.protocol.framing import encode_request
from aiokafka_lite.protocol.schema import Request, Response

R_co = TypeVar("R_co", bound=Response, covariant=True)
R = TypeVar("R", bound=Response)


class PreparedRequest(Generic[R_co]):
    """A request that is encoded once its version is known."""

    __slots__ = ()

    request_class: type[Request[R_co]]
    expects_response: bool = True

    @property
    def usable_max_version(self) -> int:
        """The newest stable version that can carry this content."""
        raise NotImplementedError

    def encode(self, version: int, correlation_id: int, client_id: str | None) -> bytes:
        """Return the request with its header and size prefix. Raises as `codec.encode`."""
        raise NotImplementedError


AnyRequest: TypeAlias = Request[R] | PreparedRequest[R]


class UpTo(PreparedRequest[R_co]):
    """A request whose newest version the sender decides, such as Produce below v12 (KIP-890)."""

    __slots__ = ("_newest", "_request", "expects_response", "request_class")

    def __init__(self, request: Request[R_co], newest: int) -> None:
        self._request = request
        self._newest = newest
        self.request_class = type(request)
        self.expects_response = request.expects_response

    @property
    @override
    def usable_max_version(self) -> int:
        return self._newest

    @override
    def encode(self, version: int, correlation_id: int, client_id: str | None) -> bytes:
        return encode_request(self._request, version, correlation_id, client_id)
