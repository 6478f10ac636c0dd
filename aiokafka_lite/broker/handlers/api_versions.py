"""ApiVersions (key 18), versions 0 to 5.

1 throttle time; 3 flexible (but for the answer's header), the client says what it is, features;
4 features may start at level 0; 5 which broker the client means (KIP-1242).

A version that the broker does not speak is answered in version 0 with UNSUPPORTED_VERSION: the
processor does that, since such a request cannot be decoded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import HANDLERS, handler
from aiokafka_lite.errors import (
    IllegalSaslStateError,
    InvalidRequestError,
    RebootstrapRequiredError,
)
from aiokafka_lite.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FIRST_WITH_SOFTWARE_NAME: Final = 3
# The first that can say that a feature starts at level 0.
FIRST_WITH_LEVEL_0: Final = 4
# Of a client that does not say which node it means.
NO_NODE: Final = -1
# Counts the changes of features' levels in Kafka; here they are settings.
FEATURES_EPOCH: Final = 0
_LEGAL_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class _Feature(NamedTuple):
    """A feature of the cluster (KIP-584); a finalized level of 0 means that it is not used."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


def _features(config: BrokerConfig) -> Sequence[_Feature]:
    """Return the features by whose levels clients decide what they ask for."""
    return [
        _Feature("group.version", 0, 1, 1),  # KIP-848
        _Feature("transaction.version", 0, 2, config.transaction_version),
    ]


@handler(ApiVersionsRequest)
def handle(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """List the APIs that have a handler."""
    if ctx.api_version >= FIRST_WITH_SOFTWARE_NAME and not (
        _LEGAL_SOFTWARE_NAME.fullmatch(request.client_software_name)
        and _LEGAL_SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=InvalidRequestError.errno)
    if request.cluster_id not in (None, ctx.cluster.cluster_id) or request.node_id not in (
        NO_NODE,
        ctx.node.id,
    ):
        return ApiVersionsResponse(error_code=RebootstrapRequiredError.errno)
    session = ctx.connection.sasl
    if session is not None and not session.versions_told():
        return ApiVersionsResponse(error_code=IllegalSaslStateError.errno)
    known = _features(ctx.cluster.config)
    return ApiVersionsResponse(
        supported_features=[
            SupportedFeatureKey(
                name=each.name, min_version=each.min_level, max_version=each.max_level
            )
            for each in known
            if each.min_level or ctx.api_version >= FIRST_WITH_LEVEL_0
        ],
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(
                name=each.name,
                max_version_level=each.finalized_level,
                min_version_level=each.finalized_level,
            )
            for each in known
            if each.finalized_level
        ],
        api_keys=[
            ApiVersion(
                api_key=key,
                min_version=entry.advertised_min_version,
                max_version=entry.max_version,
            )
            for key, entry in sorted(HANDLERS.items())
        ],
    )
