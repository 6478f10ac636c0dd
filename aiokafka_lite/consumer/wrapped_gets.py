"""Applies wrappers of `getone` and `getmany`, as instrumentation sets them, to the other reads.

If the class's `getone` was replaced, `async for` calls it, as in aiokafka. At the start, wrappers
of `getmany` are also put around `poll`, and wrappers of aiokafka's consumer around this package's.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, cast

from aiokafka_lite.consumer.delivery.gets import RecordCursor

log: Final = logging.getLogger(__name__)

Get = TypeVar("Get", bound=Callable[..., object])

# Iterated over where each record comes by `getone`: it never has one itself.
NO_RECORDS: Final = RecordCursor(lambda: 0.0, 0.0, 0.0)


def goes_by_getone(consumer: object, original: Mapping[str, object]) -> bool:
    """Whether iterations call `getone`: it was replaced, and ``__anext__`` was not."""
    kind = type(consumer)
    is_replaced = {name: getattr(kind, name) is not value for name, value in original.items()}
    is_getone_replaced = is_replaced["getone"] or "getone" in vars(consumer)
    return is_getone_replaced and not is_replaced["__anext__"]


def wrap_as_aiokafkas(consumer: object, ours: type, original: Mapping[str, object]) -> None:
    theirs = _aiokafkas(type(consumer))
    if theirs is None:
        return
    for name in ("getone", "getmany"):
        if vars(ours)[name] is original[name] and name not in vars(consumer):
            get = getattr(consumer, name)
            wrapped = wrapped_alike(get, theirs, name)
            if wrapped is not get:
                setattr(consumer, name, wrapped)


def wrap_as_getmany(poll: Get, kind: type) -> Get | None:
    """Put around `poll` the wrappers of `getmany`: of the consumer's class, or else aiokafka's."""
    wrapped_kinds = [each for each in kind.__mro__ if is_wrapped(vars(each).get("getmany"))]
    of = wrapped_kinds[0] if wrapped_kinds else _aiokafkas(kind)
    wrapped = poll if of is None else wrapped_alike(poll, of, "getmany")
    return None if wrapped is poll else wrapped


def _aiokafkas(kind: type) -> type | None:
    """Return aiokafka's consumer, if it was imported and is not a base of this class."""
    theirs = getattr(sys.modules.get("aiokafka"), "AIOKafkaConsumer", None)
    return theirs if isinstance(theirs, type) and theirs not in kind.__mro__ else None


def is_wrapped(method: object) -> bool:
    return hasattr(method, "__wrapped__")


def wrapped_alike(get: Get, kind: type, name: str) -> Get:
    """Put the wrappers of a class's method around a bound method, for as long as they are there.

    Only wrappers of the package wrapt can be moved.
    """
    outermost = vars(kind).get(name)

    def is_still_there() -> bool:
        return vars(kind).get(name) is outermost

    layers = []
    layer: object = outermost
    while hasattr(layer, "__wrapped__"):
        wrapper = getattr(layer, "_self_wrapper", None)
        if wrapper is None:
            log.warning(
                "reads of this consumer are not traced, because the tracing library's wrapper "
                "around %s.%s.%s cannot be applied to aiokafka_lite. Wrap "
                "aiokafka_lite.AIOKafkaConsumer, or call aiokafka_lite.as_aiokafka.install() "
                "before the first import of aiokafka",
                kind.__module__,
                kind.__qualname__,
                name,
            )
            return get
        layers.append((type(layer), wrapper))
        layer = layer.__wrapped__
    wrapped: object = get
    for make, wrapper in reversed(layers):
        wrapped = cast("Callable[..., object]", make)(wrapped, wrapper, is_still_there)
    return cast("Get", wrapped)
