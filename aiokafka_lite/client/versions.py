"""Negotiates versions with ApiVersions when a connection opens (KIP-35, KIP-511, KIP-1242)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from aiokafka_lite._version import __version__
from aiokafka_lite.client.config import Address
from aiokafka_lite.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    NoError,
    RebootstrapRequiredError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka_lite.protocol.framing import ResponseDecoder, response_decoder
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from aiokafka_lite.protocol.schema import Request, Response

if TYPE_CHECKING:
    from aiokafka_lite.client.connection import Connection

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

# The version to use, and the decoder of responses.
Choice: TypeAlias = tuple[int, ResponseDecoder[R]]
MAX_TRIES: Final = 3
SOFTWARE_NAME: Final = "aiokafka-lite"
# Version 4 only adds features from level 0, and Azure Event Hubs resets connections on it.
FIRST_VERSION: Final = 3
# The first that names the expected node; used if brokers have offered it.
IDENTITY_VERSION: Final = 5
OLDEST_VERSION: Final = 0
# How long the oldest version is used for an address that closed a connection on FIRST_VERSION.
OLDEST_FOR_S: Final = 600.0


class NegotiationCutError(KafkaConnectionError):
    """The peer closed the connection before it answered ApiVersions."""


class MisroutedError(KafkaConnectionError):
    """Another broker than the expected one responds at an address (KIP-1242)."""


class MeantBroker(NamedTuple):
    cluster_id: str | None
    node_id: int | None

    @property
    def is_known(self) -> bool:
        return self.cluster_id is not None and self.node_id is not None


class ApiVersions(dict[int, tuple[int, int]]):
    """The (lowest, highest) versions of a broker by API key, and levels of features (KIP-584)."""

    __slots__ = ("choices", "features")

    def __init__(
        self,
        ranges: Mapping[int, tuple[int, int]],
        features: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(ranges)
        self.features = features
        self.choices: dict[tuple[type[Request[Response]], int], Choice[Response]] = {}

    def choose(
        self,
        request_class: type[Request[R]],
        max_version: int | None = None,
        *,
        peer: str = "the broker",
    ) -> int:
        """Return the newest version that both sides support, at most ``max_version``."""
        try:
            low, high = self[request_class.api_key]
        except KeyError:
            raise IncompatibleBrokerVersion(
                f"{peer} does not support {request_class.__name__}"
            ) from None
        if low > high:
            raise KafkaProtocolError(
                f"{peer} reports that it supports versions {low} to {high} of "
                f"{request_class.__name__}, which is not a valid range"
            )
        newest = request_class.max_version
        chosen = min(newest, high) if max_version is None else min(newest, high, max_version)
        if chosen < max(request_class.used_from, low):
            raise IncompatibleBrokerVersion(
                f"{peer} supports versions {low} to {high} of {request_class.__name__}, but "
                f"this client supports versions {request_class.used_from} to "
                f"{newest if max_version is None else min(newest, max_version)}"
            )
        return chosen

    def choice(self, request_class: type[Request[R]], max_version: int, *, peer: str) -> Choice[R]:
        """Return the version to use and the decoder of its responses. Raises as ``choose``."""
        found: Choice[R] | None = self.choices.get(  # type: ignore[assignment] # R is the class's
            (request_class, max_version)
        )
        if found is None:
            version = self.choose(request_class, max_version, peer=peer)
            found = version, response_decoder(request_class, version)
            self.choices[request_class, max_version] = found
        return found


NOTHING_OFFERED: Final = ApiVersions({})


@lru_cache(maxsize=16)
def _shared(
    ranges: tuple[tuple[int, tuple[int, int]], ...], features: tuple[tuple[str, int], ...]
) -> ApiVersions:
    return ApiVersions(dict(ranges), dict(features))


class FirstVersions:
    """The version of ApiVersions to try first at each address, for one client."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._oldest_until: dict[Address, float] = {}
        self._offers_identity = False

    async def open(
        self,
        address: Address,
        attempt: Callable[[int], Awaitable[Connection]],
        *,
        is_identified: bool,
    ) -> Connection:
        """Open a connection. If the peer closes it on ApiVersions, try the oldest version.

        A gateway may do so on an unknown version (KIP-511 requires a response). This address is
        then asked in the oldest version for `OLDEST_FOR_S`.
        """
        if self._oldest_until.get(address, 0.0) > self._clock():
            return await attempt(OLDEST_VERSION)
        is_checked = is_identified and self._offers_identity
        try:
            connection = await attempt(IDENTITY_VERSION if is_checked else FIRST_VERSION)
            _, newest = connection.api_versions.get(ApiVersionsRequest.api_key, (0, 0))
            self._offers_identity = newest >= IDENTITY_VERSION
            return connection
        except NegotiationCutError as error:
            cut = error
        connection = await attempt(OLDEST_VERSION)
        log.info(
            "%s accepts ApiVersions only in version %s. The attempt with a newer version failed: "
            "%s",
            address,
            OLDEST_VERSION,
            cut,
        )
        self._oldest_until[address] = self._clock() + OLDEST_FOR_S
        return connection


def not_negotiated(error: KafkaError, peer: str) -> KafkaConnectionError:
    is_cut = isinstance(error, KafkaConnectionError)
    error_class = NegotiationCutError if is_cut else KafkaConnectionError
    return error_class(
        f"{error.args[0]} while API versions were negotiated (connected to {peer}): check that "
        f"{peer} is a Kafka listener, and that security_protocol matches the listener"
    )


async def ask_api_versions(
    ask: Callable[[ApiVersionsRequest, int], Awaitable[ApiVersionsResponse]],
    peer: str,
    version: int,
    meant: MeantBroker,
) -> ApiVersions:
    """Request versions in a version, then in one that the broker names, at last in version 0."""
    request = ApiVersionsRequest(
        client_software_name=SOFTWARE_NAME,
        client_software_version=__version__,
        cluster_id=meant.cluster_id,
    )
    if meant.node_id is not None:
        request.node_id = meant.node_id
    for _ in range(MAX_TRIES):
        response = await ask(request, version)
        if response.error_code == NoError.errno:
            ranges = tuple(
                [(key.api_key, (key.min_version, key.max_version)) for key in response.api_keys]
            )
            features = tuple(
                (each.name, each.max_version_level) for each in response.finalized_features
            )
            return _shared(ranges, features)
        if response.error_code == RebootstrapRequiredError.errno:
            raise MisroutedError(
                f"{peer} reports that it is not node {meant.node_id} of cluster "
                f"{meant.cluster_id}: another broker may use this address now"
            )
        if response.error_code != UnsupportedVersionError.errno:
            raise for_code(response.error_code)(f"{peer} refuses ApiVersions v{version}")
        if version == 0:
            break
        # Always downwards, so the loop ends if a broker refuses the versions that it offers.
        offered = [key.max_version for key in response.api_keys if key.api_key == request.api_key]
        version = max(0, min(offered[0], version - 1)) if offered else 0
    raise KafkaProtocolError(
        f"{peer} refuses every version of ApiVersions: Kafka 0.10 or newer is required"
    )
