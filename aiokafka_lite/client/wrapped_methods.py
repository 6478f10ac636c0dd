"""Puts wrappers that instrumentation has set on aiokafka's classes around methods of this package.

Such instrumentation knows no other clients. A wrapper is also put around methods that the wrapped
method replaces here, such as `poll` with the wrappers of `getmany`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, cast

log: Final = logging.getLogger(__name__)

MethodT = TypeVar("MethodT", bound=Callable[..., object])


def wrap_as_aiokafkas(instance: object, ours: type, original: Mapping[str, object]) -> None:
    """Put aiokafka's wrappers around an instance's methods that have no wrapper yet.

    Args:
        instance: A consumer or a producer.
        ours: This package's class. The class of aiokafka has the same name.
        original: The methods of this class before they may have been replaced, by name.
    """
    theirs = class_of_aiokafka(ours.__name__, type(instance))
    if theirs is None:
        return
    for name, method in original.items():
        if vars(ours)[name] is method and name not in vars(instance):
            bound = getattr(instance, name)
            wrapped = wrapped_alike(bound, theirs, name)
            if wrapped is not bound:
                setattr(instance, name, wrapped)


def class_of_aiokafka(name: str, kind: type) -> type | None:
    theirs = getattr(sys.modules.get("aiokafka"), name, None)
    return theirs if isinstance(theirs, type) and theirs not in kind.__mro__ else None


def wrapped_alike(method: MethodT, kind: type, name: str) -> MethodT:
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
                "calls of %s() are not traced, because the tracing library's wrapper around "
                "%s.%s.%s cannot be applied to aiokafka_lite. Wrap aiokafka_lite.%s, or call "
                "aiokafka_lite.as_aiokafka.install() before the first import of aiokafka",
                name,
                kind.__module__,
                kind.__qualname__,
                name,
                kind.__name__,
            )
            return method
        layers.append((type(layer), wrapper))
        layer = layer.__wrapped__
    wrapped: object = method
    for make, wrapper in reversed(layers):
        wrapped = cast("Callable[..., object]", make)(wrapped, wrapper, is_still_there)
    return cast("MethodT", wrapped)
