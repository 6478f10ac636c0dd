"""Generate the source of an encoder: one function for one message in one version.

The function appends buffers to a list. One ``struct.Struct`` packs consecutive fields of fixed
size. Record sets are not copied. UnsupportedVersionError refuses a null or a value that the version
has not, unless the field is ignorable.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Layout
from struct import pack
from typing import Final, TypeVar

from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.decoding import absent, present, tagged
from aiokafka_lite.protocol.schema import Message, Struct
from aiokafka_lite.protocol.source import SourceWriter, Steps
from aiokafka_lite.protocol.varint import ONE_BYTE, encode_uvarint
from aiokafka_lite.protocol.wire import (
    NO_VERSIONS,
    STRING,
    UUID,
    Array,
    Field,
    Fixed,
    Nested,
    Sized,
    Wire,
)

M = TypeVar("M", bound=Message)
Part = bytes | bytearray | memoryview
Encoder = Callable[[M, Callable[[Part], None]], None]
EncoderInSteps = Callable[[M, Callable[[Part], None]], Steps[None]]
"""Yields after so many elements; what was appended until then may be taken away."""


def _cannot_carry(version: int, field: str) -> UnsupportedVersionError:
    return UnsupportedVersionError(
        f"version {version} of the request has no field {field}, so the value cannot be sent"
    )


def _tagged_field(tag: int, parts: list[Part]) -> bytes:
    value = b"".join(parts)
    return encode_uvarint(tag) + encode_uvarint(len(value)) + value


_GLOBALS: Final[dict[str, object]] = {
    "ONE_BYTE": ONE_BYTE,
    "cannot_carry": _cannot_carry,
    "encode_uvarint": encode_uvarint,
    "pack": pack,
    "tagged_field": _tagged_field,
}


FixedFields = list[tuple[str, str]]
"""Fields of fixed size: code in the struct module, and expression, which is empty for an x."""


class EncoderSource(SourceWriter):
    """The source of one encoder. Subclasses change the sources of values."""

    def __init__(
        self, signature: str, cls: type[Message], version: int, *, in_steps: bool = False
    ) -> None:
        super().__init__(signature, _GLOBALS, in_steps=in_steps)
        self.version = version
        self.is_flexible = cls.flexible.covers(version)
        self.pending: FixedFields = []
        self.append = "append"

    def flush(self) -> None:
        """Write one call that packs the pending fields."""
        self.write_packed(self.pending)
        self.pending = []

    def write_packed(self, fields: FixedFields) -> None:
        if fields:
            self.line(f"{self.append}({self.packed(fields)})")

    def packed(self, fields: FixedFields) -> str:
        layout = Layout(">" + "".join(code for code, _ in fields))
        values = [value for _, value in fields if value]
        if not values:
            return repr(layout.pack())
        return f"{self.constant('pack', layout.pack)}({', '.join(values)})"

    # -- where values come from
    def value(self, field: Field, source: str) -> str:
        return f"{source}.{field.name}"

    def is_set(self, field: Field, source: str) -> str:
        """Return the expression for whether a field differs from its default ("": never)."""
        value = f"{source}.{field.slot}"
        if field.writes_null:
            return "True"
        if field.is_list:
            return value  # it may be another sequence
        default = self.constant("default", field.new_default())
        if field.is_lazy:
            return f"({value} is not None and {value} != {default})"
        return f"({value} is not {default} and {value} != {default})"  # usually the same object

    def each(self, element: Wire, item: str) -> str:
        """Return the target of the loop over elements, which are called `item`."""
        return item

    # -- structs
    def write_struct(self, cls: type[Struct], source: str, path: str) -> None:
        for field in absent(cls, self.version):
            if not field.ignorable and (condition := self.is_set(field, source)):
                self.refuse_if(condition, f"{path}.{field.name}")
        for field in present(cls, self.version):
            self.write_field(field, source, path)
        if self.is_flexible:
            self.write_tags(tagged(cls, self.version), source, path)

    def refuse_if(self, condition: str, path: str) -> None:
        with self.block(f"if {condition}:"):
            self.line(f"raise cannot_carry({self.version}, {path!r})")

    def write_field(self, field: Field, source: str, path: str) -> None:
        value, path = self.value(field, source), f"{path}.{field.name}"
        is_nullable = field.nullable.covers(self.version)
        if not is_nullable and field.nullable != NO_VERSIONS:
            self.refuse_if(f"{value} is None", path)
        if is_nullable and field.tag is not None and isinstance(field.wire, Nested):
            self.write_nullable(field.wire, value, path, null=b"\0")
        else:
            self.write_value(field.wire, value, is_nullable, path)

    def write_tags(self, fields: list[Field], source: str, path: str) -> None:
        """Write the tagged fields. Usually a 0 ends the pending fields."""
        conditions = {field: is_set for field in fields if (is_set := self.is_set(field, source))}
        if not conditions:
            self.pending.append(("x", ""))
            return
        pending, self.pending = self.pending, []
        with self.block(f"if {' or '.join(conditions.values())}:"):
            self.write_packed(pending)
            outer, tags, parts = self.append, self.fresh("tags"), self.fresh("parts")
            self.line(f"{tags} = []")
            self.append = f"{parts}.append"
            for field, condition in conditions.items():
                with self.block(f"if {condition}:"):
                    self.line(f"{parts} = []")
                    self.write_field(field, source, path)
                    self.flush()
                    self.line(f"{tags}.append(tagged_field({field.tag}, {parts}))")
            self.append = outer
            self.line(f"{outer}(encode_uvarint(len({tags})))")
            self.line(f"{outer}(b''.join({tags}))")
        with self.block("else:"):
            self.write_packed([*pending, ("x", "")])

    # -- values
    def write_value(self, wire: Wire, value: str, nullable: bool, path: str) -> None:
        match wire:
            case _ if nullable:
                self.write_nullable(wire, value, path, null=self.null(wire))
            case Fixed():
                if wire is UUID:  # struct would pad or truncate others
                    with self.block(f"if len({value}) != 16:"):
                        self.line(f"raise ValueError('{path} does not have 16 bytes')")
                self.pending.append((wire.code, value))
            case Nested(struct):
                self.write_struct(struct, value, path)
            case Sized():
                self.write_sized(wire, value)
            case Array(element):
                self.write_array(element, value, path)

    def write_nullable(self, wire: Wire, value: str, path: str, *, null: bytes) -> None:
        self.flush()
        with self.block(f"if {value} is None:"):
            self.line(f"{self.append}({null!r})")
        with self.block("else:"):
            if isinstance(wire, Nested):
                self.pending.append(("b", "1"))
            self.write_value(wire, value, False, path)
            self.flush()

    def null(self, wire: Wire) -> bytes:
        if isinstance(wire, Nested):
            return b"\xff"
        if self.is_flexible:
            return b"\0"
        return b"\xff\xff" if wire is STRING else b"\xff\xff\xff\xff"

    def write_length(self, code: str, length: str) -> None:
        if not self.is_flexible:
            self.pending.append((code, length))
            self.flush()
            return
        self.flush()
        self.line(f"n = {length} + 1")
        self.line(f"{self.append}(ONE_BYTE[n] if n < 128 else encode_uvarint(n))")

    def write_sized(self, wire: Sized, value: str) -> None:
        if wire is STRING:
            text = self.fresh("text")
            self.line(f"{text} = {value}.encode()")
            value = text
        self.write_length("h" if wire is STRING else "i", f"len({value})")
        self.line(f"{self.append}({value})")

    def write_array(self, element: Wire, value: str, path: str) -> None:
        self.write_length("i", f"len({value})")
        if isinstance(element, Fixed) and element is not UUID:
            with self.block(f"if {value}:"):
                code = f"f'>{{len({value})}}{element.code}'"
                self.line(f"{self.append}(pack({code}, *{value}))")
                self.count(f"len({value})")
            return
        item = self.fresh("item")
        with self.block(f"for {self.each(element, item)} in {value}:"):
            self.count()
            self.write_value(element, item, False, path)
            self.flush()
