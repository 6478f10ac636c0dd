"""ApiVersions (key 18), versions 0 to 4.

1 throttle time; 3 flexible (but for the answer's header), the client says what it is, features;
4 features may start at level 0.

A version that the broker does not speak is answered in version 0 with UNSUPPORTED_VERSION: the
processor does that, since such a request cannot be decoded.
"""

from __future__ import annotations

import re
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.features import FEATURES_EPOCH, FIRST_WITH_LEVEL_0, features
from aiokafka_lite.broker.handlers.registry import HANDLERS, handler
from aiokafka_lite.errors import IllegalSaslStateError, InvalidRequestError
from aiokafka_lite.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FIRST_WITH_SOFTWARE_NAME: Final = 3
_LEGAL_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handler(ApiVersionsRequest)
def handle(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """List the APIs that have a handler."""
    if ctx.api_version >= FIRST_WITH_SOFTWARE_NAME and not (
        _LEGAL_SOFTWARE_NAME.fullmatch(request.client_software_name)
        and _LEGAL_SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=InvalidRequestError.errno)
    session = ctx.connection.sasl
    if session is not None and not session.versions_told():
        return ApiVersionsResponse(error_code=IllegalSaslStateError.errno)
    known = features(ctx.broker.config)
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
