"""AlterClientQuotas (key 49): set and remove quotas (KIP-546).

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
    int16,
    int32,
    string,
)


class EntityData(Struct):
    """One part of who a quota is for; a null name is the default."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class EntryDataResult(Struct):
    """Whether the quotas of one entity were altered."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entity: list[EntityData] = array(EntityData, "0+")


# Kafka has two structs of one name here, in the request and in the response.
EntryDataResult.__name__ = "EntryData"


class AlterClientQuotasResponse(Response):
    """Whether the quotas were altered, by entity."""

    throttle_time_ms: int = int32("0+")
    entries: list[EntryDataResult] = array(EntryDataResult, "0+")


class OpData(Struct):
    """Set a quota, or remove it."""

    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class EntryData(Struct):
    """What to do with the quotas of one entity."""

    entity: list[EntityData] = array(EntityData, "0+")
    ops: list[OpData] = array(OpData, "0+")


class AlterClientQuotasRequest(
    Request[AlterClientQuotasResponse], key=49, versions="0-1", flexible="1+", route=Route.ANY
):
    """Alter quotas, or only say whether they could be."""

    entries: list[EntryData] = array(EntryData, "0+")
    validate_only: bool = boolean("0+")
