"""DescribeClientQuotas (key 48), versions 0 and 1.

1 flexible.

Reference: org.apache.kafka.image.ClientQuotasImage.describe.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.network.quotas import CLIENT_ID, IP, USER
from aiokafka_lite.errors import BrokerResponseError, InvalidRequestError, UnsupportedVersionError
from aiokafka_lite.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)


class MatchType(enum.IntEnum):
    """How a component of the filter chooses."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


@handler(DescribeClientQuotasRequest)
def handle(
    ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """List the entities that the filter chooses, with their quotas."""
    try:
        wanted = _components(request.components)
    except BrokerResponseError as error:
        return DescribeClientQuotasResponse(
            error_code=code_of(error), error_message=text_of(error), entries=None
        )
    return DescribeClientQuotasResponse(
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[
                    ValueData(key=key.value, value=value) for key, value in sorted(quotas.items())
                ],
            )
            for entity, quotas in ctx.broker.quotas
            if _is_chosen(dict(entity), wanted, is_strict=request.strict)
        ]
    )


def _components(components: list[ComponentData]) -> dict[str, ComponentData]:
    wanted: dict[str, ComponentData] = {}
    for component in components:
        kind = component.entity_type
        if not kind:
            raise InvalidRequestError("Invalid empty entity type.")
        if kind in wanted:
            raise InvalidRequestError(
                f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise UnsupportedVersionError(f"Unsupported entity type {kind}")
        _check_match(component)
        wanted[kind] = component
    if IP in wanted and len(wanted) > 1:
        raise InvalidRequestError(
            "Invalid entity filter component combination. IP filter component should not be "
            "used with user or clientId filter component."
        )
    return wanted


def _check_match(component: ComponentData) -> None:
    if component.match_type not in tuple(MatchType):
        raise InvalidRequestError(f"Unknown match type {component.match_type}")
    match = MatchType(component.match_type)
    if match is MatchType.EXACT:
        if component.match is None:
            raise InvalidRequestError(
                "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
    elif component.match is not None:
        raise InvalidRequestError(
            f"Request specified MATCH_TYPE_{match.name}, but also specified a match string."
        )


def _is_chosen(
    entity: Mapping[str, str | None], wanted: Mapping[str, ComponentData], *, is_strict: bool
) -> bool:
    if is_strict and len(entity) != len(wanted):
        return False
    for kind, component in wanted.items():
        if kind not in entity:
            return False
        if component.match_type == MatchType.EXACT and entity[kind] != component.match:
            return False
        if component.match_type == MatchType.DEFAULT and entity[kind] is not None:
            return False
    return True
