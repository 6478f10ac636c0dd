"""AlterClientQuotas (key 49), versions 0 and 1.

1 flexible.

Reference: org.apache.kafka.controller.ClientQuotaControlManager.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.network.quotas import CLIENT_ID, IP, USER, Entity, QuotaKey, entity_of
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import InvalidRequestError
from aiokafka_lite.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    EntryDataResult,
    OpData,
)

LARGEST_LONG: Final = 2**63 - 1

# Quotas that are whole numbers, and those that each kind of entity may have.
_WHOLE: Final = frozenset(
    {
        QuotaKey.PRODUCER_BYTE_RATE,
        QuotaKey.CONSUMER_BYTE_RATE,
        QuotaKey.CONNECTION_CREATION_RATE,
    }
)
_OF_ADDRESSES: Final = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
_OF_CLIENTS: Final = frozenset(QuotaKey) - _OF_ADDRESSES


@handler(AlterClientQuotasRequest)
async def handle(
    ctx: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Set and remove quotas, those of one entity all or none."""
    seen: dict[Entity, EntryDataResult] = {}
    altered: dict[Entity, Mapping[QuotaKey, float | None]] = {}
    async for entry in in_slices(request.entries):
        names = {each.entity_type: each.entity_name for each in entry.entity}
        # Not entity_of(): an empty name is an error, and is answered.
        entity = tuple(sorted(names.items(), key=lambda item: item[0]))
        result = EntryDataResult(
            error_message=None,
            entity=[
                EntityData(entity_type=kind, entity_name=name)
                async for kind, name in in_slices(entity)
            ],
        )
        try:
            if entity in seen or _repeats(entry.ops):
                raise InvalidRequestError(f"Ignoring duplicate entity {_text(names)}")
            _check_entity(names)
            altered[entity] = _changes(names, entry)
        except InvalidRequestError as error:
            altered.pop(entity, None)
            result.error_code, result.error_message = code_of(error), text_of(error)
        seen[entity] = result
    if altered and not request.validate_only:
        async for entity, changes in in_slices(altered.items()):
            for key, value in changes.items():
                ctx.broker.quotas.put(entity_of(dict(entity)), key, value)
        ctx.broker.quota_file.save()
        await ctx.broker.disk.settled()
    return AlterClientQuotasResponse(entries=list(seen.values()))


def _repeats(ops: Sequence[OpData]) -> bool:
    return len({op.key for op in ops}) < len(ops)


def _text(names: Mapping[str, str | None]) -> str:
    inner = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in names.items())
    return f"ClientQuotaEntity(entries={{{inner}}})"


def _check_entity(names: Mapping[str, str | None]) -> None:
    if not names:
        raise InvalidRequestError("Invalid empty client quota entity")
    for kind, name in names.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise InvalidRequestError(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidRequestError(f"Empty {kind} not supported")
    if IP in names:
        if len(names) > 1:
            raise InvalidRequestError(
                "Invalid quota entity combination, IP entity should"
                "not be combined with User or ClientId"
            )
        _check_address(names[IP])


def _check_address(address: str | None) -> None:
    if address is None:
        return
    try:
        ipaddress.ip_address(address)
    except ValueError:
        # Kafka also takes names that it can resolve; this broker asks no name server.
        raise InvalidRequestError(f"{address} is not a valid IP or resolvable host.") from None


def _changes(names: Mapping[str, str | None], entry: EntryData) -> Mapping[QuotaKey, float | None]:
    allowed = _OF_ADDRESSES if IP in names else _OF_CLIENTS
    changes: dict[QuotaKey, float | None] = {}
    for op in entry.ops:
        key = next((each for each in allowed if each.value == op.key), None)
        if op.remove:
            if key is not None:  # what never was there is removed without complaint
                changes[key] = None
            continue
        if key is None:
            raise InvalidRequestError(f"Invalid configuration key {op.key}")
        _check_value(key, op.value)
        changes[key] = op.value
    return changes


def _check_value(key: QuotaKey, value: float) -> None:
    if not value > 0:
        raise InvalidRequestError(f"Quota {key.value} must be greater than 0")
    if key in _WHOLE:
        if value > LARGEST_LONG:
            raise InvalidRequestError(f"Proposed value for {key.value} is too large for a LONG.")
        if value != int(value):
            raise InvalidRequestError(f"{key.value} cannot be a fractional value.")
