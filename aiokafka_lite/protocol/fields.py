"""The functions that declare fields, by wire type (see schema.py).

For type checkers, fields.pyi declares them as default values, as ``dataclass_transform`` needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka_lite.protocol import wire
from aiokafka_lite.protocol.wire import UNSET, Field, VersionRange, Wire

if TYPE_CHECKING:
    from aiokafka_lite.protocol.schema import Struct


class _Specifier:
    """Declares fields of one wire type. Also names the element type of an array."""

    def __init__(self, wire_type: Wire) -> None:
        self.wire = wire_type

    def __call__(
        self,
        versions: str,
        *,
        nullable: str = "none",
        default: object = UNSET,
        ignorable: bool = False,
        tag: int | None = None,
        writes_null: bool = False,
    ) -> Field:
        if default is UNSET and isinstance(self.wire, wire.Fixed | wire.Sized):
            default = self.wire.zero
        ranges = VersionRange.parse(versions), VersionRange.parse(nullable)
        return Field(self.wire, *ranges, default, ignorable, tag, writes_null)


int8: Final = _Specifier(wire.INT8)
int16: Final = _Specifier(wire.INT16)
uint16: Final = _Specifier(wire.UINT16)
int32: Final = _Specifier(wire.INT32)
int64: Final = _Specifier(wire.INT64)
boolean: Final = _Specifier(wire.BOOL)
uuid: Final = _Specifier(wire.UUID)
string: Final = _Specifier(wire.STRING)
blob: Final = _Specifier(wire.BYTES)
record_set: Final = _Specifier(wire.RECORDS)


def array(element: _Specifier | type[Struct], versions: str, **facts: object) -> Field:
    """Declare a list of structs, or of the wire type of a function above."""
    of = element.wire if isinstance(element, _Specifier) else wire.Nested(element)
    return _Specifier(wire.Array(of))(versions, **facts)  # type: ignore[arg-type] # as fields.pyi


def nested(struct: type[Struct], versions: str, **facts: object) -> Field:
    """Declare a struct. Without a default of None, it is never null."""
    return _Specifier(wire.Nested(struct))(versions, **facts)  # type: ignore[arg-type] # ditto
