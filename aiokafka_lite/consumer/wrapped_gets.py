"""Applies wrappers of `getone` and `getmany`, as instrumentation sets them, to the other reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiokafka_lite.client.wrapped_methods import (
    MethodT,
    class_of_aiokafka,
    is_wrapped,
    wrapped_alike,
)
from aiokafka_lite.consumer.delivery.record_cursor import RecordCursor

# Iterated over where each record comes by `getone`: it never has one itself.
NO_RECORDS: Final = RecordCursor(lambda: 0.0, 0.0, 0.0)


def goes_by_getone(consumer: object, original: Mapping[str, object]) -> bool:
    kind = type(consumer)
    is_replaced = {name: getattr(kind, name) is not value for name, value in original.items()}
    is_getone_replaced = is_replaced["getone"] or "getone" in vars(consumer)
    return is_getone_replaced and not is_replaced["__anext__"]


def wrap_as_getmany(poll: MethodT, kind: type) -> MethodT | None:
    """Put around `poll` the wrappers of `getmany`: of the consumer's class, or else aiokafka's."""
    wrapped_kinds = [each for each in kind.__mro__ if is_wrapped(vars(each).get("getmany"))]
    of = wrapped_kinds[0] if wrapped_kinds else class_of_aiokafka("AIOKafkaConsumer", kind)
    wrapped = poll if of is None else wrapped_alike(poll, of, "getmany")
    return None if wrapped is poll else wrapped
