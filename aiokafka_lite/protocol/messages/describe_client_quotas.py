"""DescribeClientQuotas (key 48): the quotas of users, client ids and addresses (KIP-546).

v1 is flexible.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Route,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    string,
)


class EntityData(Struct):
    """One part of who a quota is for; a null name is the default."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class ValueData(Struct):
    """A quota."""

    key: str = string("0+")
    value: float = float64("0+")


class EntryData(Struct):
    """Who, and the quotas they have."""

    entity: list[EntityData] = array(EntityData, "0+")
    values: list[ValueData] = array(ValueData, "0+")


class DescribeClientQuotasResponse(Response):
    """The quotas that were found."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entries: list[EntryData] | None = array(EntryData, "0+", nullable="0+")


class ComponentData(Struct):
    """A part of a filter: match type 0 is a name, 1 the default, 2 any name."""

    entity_type: str = string("0+")
    match_type: int = int8("0+")
    match: str | None = string("0+", nullable="0+")


class DescribeClientQuotasRequest(
    Request[DescribeClientQuotasResponse], key=48, versions="0-1", flexible="1+", route=Route.ANY
):
    """Find quotas; a strict filter leaves out entities with parts that it does not name."""

    components: list[ComponentData] = array(ComponentData, "0+")
    strict: bool = boolean("0+")
