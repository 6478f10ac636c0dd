"""What a connection sends: requests that can say their frame's bytes."""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

from aiokafka_lite._compat import override
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.schema import Request, Response

R_co = TypeVar("R_co", bound=Response, covariant=True)
R = TypeVar("R", bound=Response)


class PreparedRequest(Generic[R_co]):
    """A request that is encoded once the version is known in which it is sent.

    Attributes:
        request_class: What it is, and so which answer it gets.
        expects_response: Whether the broker answers at all.
    """

    __slots__ = ()

    request_class: type[Request[R_co]]
    expects_response: bool = True

    @property
    def usable_max_version(self) -> int:
        """The newest stable version that can carry this content."""
        raise NotImplementedError

    def encode(self, version: int, correlation_id: int, client_id: str | None) -> bytes:
        """Return the request with its header and size prefix.

        Raises:
            UnsupportedVersionError: The version does not exist, or cannot carry the content.
            IllegalArgumentError: A value does not fit its field.
        """
        raise NotImplementedError


class _Message(PreparedRequest[R_co]):
    """A request that is encoded as a whole."""

    __slots__ = ("_request", "expects_response", "request_class")

    def __init__(self, request: Request[R_co]) -> None:
        self._request = request
        self.request_class = type(request)
        self.expects_response = request.expects_response

    @property
    @override
    def usable_max_version(self) -> int:
        return self._request.usable_max_version

    @override
    def encode(self, version: int, correlation_id: int, client_id: str | None) -> bytes:
        return framing.encode_request(self._request, version, correlation_id, client_id)


AnyRequest: TypeAlias = Request[R] | PreparedRequest[R]
"""What can be sent."""


class UpTo(_Message[R_co]):
    """A request whose newest version the sender decides, not what it says.

    Some versions mean more than their layout: from Produce v12 on a broker adds partitions to the
    transaction by itself (KIP-890), which only a producer knows to be wanted.
    """

    __slots__ = ("_newest",)

    def __init__(self, request: Request[R_co], newest: int) -> None:
        super().__init__(request)
        self._newest = newest

    @property
    @override
    def usable_max_version(self) -> int:
        return self._newest


def prepared(request: AnyRequest[R]) -> PreparedRequest[R]:
    """Return a request as a connection sends it."""
    return request if isinstance(request, PreparedRequest) else _Message(request)
