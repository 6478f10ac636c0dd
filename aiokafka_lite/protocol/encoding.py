"""Generate the source of an encoder: one function for one message in one version.

The function appends buffers to a list. Runs of fixed-size fields are packed by one
``struct.Struct``, record sets are appended as they are: whoever sends the list without joining it
sends them without a copy.

A field that the version lacks must hold its default, unless it is ignorable; a null is refused
where the version has none. Both raise UnsupportedVersionError: the content needs another version.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Layout
from struct import pack
from typing import Final, TypeVar

from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.decoding import absent, present, tagged
from aiokafka_lite.protocol.schema import Message, Struct
from aiokafka_lite.protocol.source import compile_function
from aiokafka_lite.protocol.varint import ONE_BYTE, encode_uvarint
from aiokafka_lite.protocol.wire import STRING, Array, Field, Fixed, Nested, Sized, Wire

M = TypeVar("M", bound=Message)
Part = bytes | bytearray | memoryview
Encoder = Callable[[M, Callable[[Part], None]], None]


def compile_encoder(cls: type[M], version: int) -> Encoder[M]:
    """Compile the encoder of `cls` in `version`; it must be one of `cls.versions`."""
    return compile_function(
        f"encode {cls.__name__} v{version}",
        *_EncoderSource(cls, version).write(),
    )


def _cannot_carry(version: int, field: str) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"version {version} cannot carry what {field} is set to")


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


class _EncoderSource:
    """The source of one encoder while it is written."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls = cls
        self.version = version
        self.is_flexible = cls.flexible.covers(version)
        self.lines: list[str] = []
        self.constants = dict(_GLOBALS)
        self.indent = 1
        self.run: list[tuple[str, str]] = []  # (code in the struct module, expression; "" for x)
        self.append = "append"
        self.names = 0

    def write(self) -> tuple[list[str], dict[str, object]]:
        self.write_struct(self.cls, "message", self.cls.__name__)
        self.flush()
        self.line("return")
        return [f"def encode_{self.cls.__name__}(message, append):", *self.lines], self.constants

    # -- building blocks
    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, name: str) -> str:
        self.names += 1
        return f"{name}{self.names}"

    def constant(self, name: str, value: object) -> str:
        name = self.fresh(name)
        self.constants[name] = value
        return name

    def flush(self) -> None:
        """Pack the fields gathered so far with one call."""
        self.line_of_run(self.run)
        self.run.clear()

    def line_of_run(self, run: list[tuple[str, str]]) -> None:
        if not run:
            return
        pack = self.constant("pack", Layout(">" + "".join(code for code, _ in run)).pack)
        values = ", ".join(value for _, value in run if value)
        self.line(f"{self.append}({pack}({values}))")

    # -- structs
    def write_struct(self, cls: type[Struct], source: str, path: str) -> None:
        for field in absent(cls, self.version):
            if not field.ignorable:
                self.line(f"if {self.is_set(field, source)}:")
                self.line(f"    raise cannot_carry({self.version}, {path + '.' + field.name!r})")
        for field in present(cls, self.version):
            self.write_field(field, f"{source}.{field.slot}", path)
        if self.is_flexible:
            self.write_tags(tagged(cls, self.version), source, path)

    def is_set(self, field: Field, source: str) -> str:
        """Return the expression that tells whether a field differs from its default."""
        value = f"{source}.{field.slot}"
        if field.is_list:
            return value
        if field.is_lazy:
            default = self.constant("default", field.new_default())
            return f"({value} is not None and {value} != {default})"
        if field.default is None:
            return f"{value} is not None"
        default = self.constant("default", field.default)
        return f"({value} is not {default} and {value} != {default})"  # mostly it is the same one

    def write_field(self, field: Field, value: str, path: str) -> None:
        path = f"{path}.{field.name}"
        if field.is_lazy:  # untagged: it is on the wire even if nobody has looked at it yet
            value = value.replace(f".{field.slot}", f".{field.name}")
        is_nullable = field.nullable.covers(self.version)
        if not is_nullable and field.nullable.first <= field.nullable.last:
            self.line(f"if {value} is None:")
            self.line(f"    raise cannot_carry({self.version}, {path!r})")
        self.write_value(field.wire, value, path, is_nullable)

    def write_tags(self, fields: list[Field], source: str, path: str) -> None:
        if not fields:
            self.run.append(("x", ""))
            return
        conditions = [self.is_set(field, source) for field in fields]
        run, self.run = self.run, []
        self.line(f"if {' or '.join(conditions)}:")
        self.indent += 1
        self.line_of_run(run)
        outer, tags, parts = self.append, self.fresh("tags"), self.fresh("parts")
        self.line(f"{tags} = []")
        for field, condition in zip(fields, conditions, strict=True):
            self.line(f"if {condition}:")
            self.indent += 1
            self.line(f"{parts} = []")
            self.append = f"{parts}.append"
            self.write_field(field, f"{source}.{field.slot}", path)
            self.flush()
            self.line(f"{tags}.append(tagged_field({field.tag}, {parts}))")
            self.indent -= 1
        self.append = outer
        self.line(f"{outer}(encode_uvarint(len({tags})))")
        self.line(f"{outer}(b''.join({tags}))")
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        self.line_of_run([*run, ("x", "")])
        self.indent -= 1

    # -- values
    def write_value(self, wire: Wire, value: str, path: str, nullable: bool) -> None:
        match wire:
            case Fixed():
                self.run.append((wire.code, value))
            case Nested(struct) if not nullable:
                self.write_struct(struct, value, path)
            case _ if nullable:
                self.flush()
                self.line(f"if {value} is None:")
                self.line(f"    {self.append}({self.null(wire)!r})")
                self.line("else:")
                self.indent += 1
                if isinstance(wire, Nested):
                    self.run.append(("b", "1"))
                self.write_value(wire, value, path, nullable=False)
                self.flush()
                self.indent -= 1
            case Sized():
                self.write_sized(wire, value)
            case Array(element):
                self.write_array(element, value, path)

    def null(self, wire: Wire) -> bytes:
        if isinstance(wire, Nested):
            return b"\xff"
        if self.is_flexible:
            return b"\0"
        return b"\xff\xff" if wire is STRING else b"\xff\xff\xff\xff"

    def write_length(self, code: str, length: str) -> None:
        if not self.is_flexible:
            self.run.append((code, length))
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
        item = self.fresh("item")
        if isinstance(element, Fixed) and element.code in "bhiq?":
            self.line(f"if {value}:")
            self.line(f"    {self.append}(pack(f'>{{len({value})}}{element.code}', *{value}))")
            return
        self.line(f"for {item} in {value}:")
        self.indent += 1
        self.write_value(element, item, path, nullable=False)
        self.flush()
        self.indent -= 1
