"""Handlers that take the value of a record as their annotation says, in place of the record.

The first argument is annotated with a class of pydantic or msgspec, a dataclass, or a union of
these, perhaps with None. Any other annotation means the record, as does none. A value that does not
fit is an error of the record, which no retry can help.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
import math
import sys
import typing
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin

from aiokafka_lite.bad_records import RawRecord
from aiokafka_lite.consumer.config import is_async_callable
from aiokafka_lite.errors import InvalidValueError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

log = logging.getLogger(__name__)

Parse: TypeAlias = Callable[[Any], Any]
UNIONS: Final = (Union, UnionType)
LISTS: Final = (list, Sequence)
# Of JSON, for dataclasses without msgspec.
PLAIN: Final = (str, int, float, bool, NoneType, dict, list)


class Form(NamedTuple):
    """How the arguments of a handler are made of a record, or of a list of records."""

    parse: Parse
    models: tuple[type, ...]
    takes_none: bool
    takes_record: bool
    is_list: bool

    def arguments(self, given: Any) -> tuple[Any, ...]:
        value = [self._value(each) for each in given] if self.is_list else self._value(given)
        return (value, given) if self.takes_record else (value,)

    def _value(self, record: ConsumerRecord[Any, Any]) -> object:
        value = record.value
        if isinstance(value, self.models):
            return value
        try:
            if isinstance(record, RawRecord):
                raise record.error
            if value is None:
                if self.takes_none:
                    return None
                raise TypeError(
                    "it is null (a tombstone), and the annotation does not contain None"
                )
            return self.parse(value)
        except Exception as error:
            tp = TopicPartition(record.topic, record.partition)
            names = " | ".join(each.__name__ for each in self.models)
            invalid = InvalidValueError(
                f"the value of {tp.topic}/{tp.partition} offset {record.offset} is no valid "
                f"{names}: {error}"
            ).at(tp, record.offset, record.offset + 1)
            invalid.record = record
            raise invalid from error


def with_values(handler: Any, output_count: int, *, takes_lists: bool) -> Any:
    """Return a handler of records that passes values to one that is annotated with their type."""
    if (form := _form_of(handler, output_count, takes_lists=takes_lists)) is None:
        return handler
    arguments = form.arguments
    if is_async_callable(handler):

        async def call(given: object, *outputs: object) -> None:
            await handler(*arguments(given), *outputs)

        return call

    def call_plain(given: object, *outputs: object) -> Any:
        return handler(*arguments(given), *outputs)

    return call_plain


# --- What a handler asks for ----------------------------------------------------------------------
def _form_of(handler: Any, output_count: int, *, takes_lists: bool) -> Form | None:
    if isinstance(handler, type):
        return None
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError, NameError):
        return None
    annotation = _resolved(handler, next(iter(signature.parameters.values()), None))
    is_list = get_origin(annotation) in LISTS
    if is_list:
        (annotation,) = get_args(annotation)
    if (models := _models_of(annotation)) is None:
        return None
    if is_list is not takes_lists:
        raise TypeError(
            f"handler must be annotated with {'list[…]' if takes_lists else 'the type of a value'} "
            f"{'with' if takes_lists else 'without'} batch_size, but {handler!r} is not"
        )
    takes_record = not _takes(signature, 1 + output_count)
    if takes_record and not _takes(signature, 2 + output_count):
        raise TypeError(
            "handler must take a value, or a value and its record, and with transactions the "
            f"outputs, but {handler!r} does not"
        )
    members, takes_none = models
    return Form(_parser(annotation, members), members, takes_none, takes_record, is_list)


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _resolved(handler: Any, parameter: inspect.Parameter | None) -> Any:
    """Return a parameter's annotation, or None for a text whose names are not known."""
    if parameter is None or parameter.annotation is parameter.empty:
        return None
    if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
        return None
    function = handler
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__globals__") and not inspect.ismethod(function):
        function = type(function).__call__
    function = inspect.unwrap(getattr(function, "__func__", function))
    told = SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(
            told, getattr(function, "__globals__", {}), include_extras=True
        )["it"]
    except Exception:  # noqa: BLE001 -- of whatever is in the text
        if "Record" not in str(parameter.annotation):
            log.warning(
                "%r is called with the record, because its annotation %r cannot be resolved: "
                "import its names at the top of the module, not under TYPE_CHECKING",
                handler,
                parameter.annotation,
            )
        return None


def _models_of(annotation: Any) -> tuple[tuple[type, ...], bool] | None:
    """Return the classes of a union, and whether it contains None. None: it is no model."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    each = get_args(annotation) if get_origin(annotation) in UNIONS else (annotation,)
    members = tuple(get_origin(kind) or kind for kind in each if kind is not NoneType)
    are = [isinstance(kind, type) and _is_model(kind) for kind in members]
    if not any(are):
        return None
    if not all(are):
        raise TypeError(
            "the annotation of a handler's first argument must be ConsumerRecord, or consist of "
            f"models (of pydantic or msgspec, or dataclasses) and None, not {annotation!r}"
        )
    return members, NoneType in each


def _is_model(kind: type) -> bool:
    if issubclass(kind, ConsumerRecord):
        return False
    return dataclasses.is_dataclass(kind) or _is_pydantic(kind) or _is_struct(kind)


def _is_pydantic(kind: type) -> bool:
    return hasattr(kind, "__pydantic_validator__")


def _is_struct(kind: type) -> bool:
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and issubclass(kind, msgspec.Struct)


def has_msgspec() -> bool:
    return find_spec("msgspec") is not None


# --- Values ---------------------------------------------------------------------------------------
def _parser(annotation: Any, members: Sequence[type]) -> Parse:
    """Return a function that makes a value of JSON, or of what a deserialiser has returned."""
    if any(map(_is_pydantic, members)):
        from pydantic import TypeAdapter

        adapter: Any = TypeAdapter(annotation)
        return _either(adapter.validate_json, adapter.validate_python)
    if has_msgspec():
        import msgspec

        decode = msgspec.json.Decoder(annotation).decode
        return _either(decode, functools.partial(msgspec.convert, type=annotation))
    build = _builder(annotation, {})
    return _either(lambda value: build(_json(value)), build)


def _either(of_json: Parse, of_objects: Parse) -> Parse:
    return lambda value: (of_json if isinstance(value, (bytes, str)) else of_objects)(value)


def _json(value: bytes | str) -> Any:
    """Read JSON as strictly as msgspec and pydantic."""
    text = value if isinstance(value, str) else value.decode()
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of JSON, or out of range")
    return number


def _builder(kind: Any, fields_of: dict[Any, dict[str, Parse]]) -> Parse:
    """Return a function that makes dataclasses of JSON's objects, and checks the fields' types."""
    if kind is Any:
        return lambda value: value
    origin = get_origin(kind) or kind
    inner = [_builder(each, fields_of) for each in get_args(kind)]
    if origin in UNIONS:
        return lambda value: _first(inner, value)
    if dataclasses.is_dataclass(origin) and not inner:
        if kind not in fields_of:
            fields_of[kind] = fields = {}  # before those of its fields, which may contain it
            hints = typing.get_type_hints(kind)
            for each in dataclasses.fields(kind):
                if each.init:
                    fields[each.name] = _builder(hints[each.name], fields_of)
        return functools.partial(_build, kind, fields_of[kind])
    if origin not in PLAIN:
        raise TypeError(
            f"a handler's value can have a field of {kind!r} only if msgspec is installed"
        )

    def build(value: Any) -> Any:
        if origin is float and type(value) is int:
            return float(value)
        if type(value) is not origin:
            raise TypeError(f"{value!r} is no {origin.__name__}")
        if origin is list and inner:
            return [inner[0](each) for each in value]
        return {key: inner[1](each) for key, each in value.items()} if inner else value

    return build


def _first(builders: Sequence[Parse], value: Any) -> Any:
    reasons = []
    for build in builders:
        try:
            return build(value)
        except TypeError as error:
            reasons.append(str(error))
    raise TypeError(", and ".join(reasons))


def _build(kind: Any, fields: dict[str, Parse], value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object for {kind.__name__}")
    return kind(**{name: each(value[name]) for name, each in fields.items() if name in value})
