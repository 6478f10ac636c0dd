"""Fetch requests from a template: a consumer's differ only in session, limits and offsets.

Structs in arrays are tuples. The rest, such as errors of a version, is done by encoding.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct as Layout
from struct import error as struct_error
from typing import Final, TypeAlias

from aiokafka_lite._compat import override
from aiokafka_lite.errors import IllegalArgumentError
from aiokafka_lite.protocol.encoding import EncoderSource, FixedFields
from aiokafka_lite.protocol.messages.fetch import (
    LAST_WITH_NAMES,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from aiokafka_lite.protocol.prepared import PreparedRequest
from aiokafka_lite.protocol.schema import ZERO_UUID, Request, Response, Struct
from aiokafka_lite.protocol.varint import encode_uvarint
from aiokafka_lite.protocol.wire import STRING, Field, Nested, Wire

Template: TypeAlias = Callable[..., bytes]
"""Takes the correlation id and the request's varying fields, in the order they were named."""

Varying: TypeAlias = Mapping[type[Struct], tuple[str, ...]]
"""The fields that vary, by struct; a struct in an array is given as a tuple of them."""

_REQUEST: Final = "request"


Counts: TypeAlias = Mapping[str, int]
"""How many elements arrays have, 0 or 1, by their names from the request on, with dots."""

_NO_COUNTS: Final[Counts] = {}


def compile_template(
    fixed: Request[Response],
    varying: Varying,
    version: int,
    client_id: str | None,
    counts: Counts = _NO_COUNTS,
) -> Template:
    """Compile the template of requests in `version`, with their headers and size prefixes.

    Fields that are not `varying` have the values of `fixed`, and those of structs in arrays their
    defaults. The lengths of arrays in `counts` are constant, and packed with the fields around
    them.
    """
    source = _TemplateSource(fixed, varying, version, client_id, counts)
    name = f"template of {type(fixed).__name__} v{version}"
    return source.compile(name)


class _TemplateSource(EncoderSource):
    def __init__(
        self,
        fixed: Request[Response],
        varying: Varying,
        version: int,
        client_id: str | None,
        counts: Counts,
    ) -> None:
        cls = type(fixed)
        parameters = ["correlation_id", *(f"{_REQUEST}_{name}" for name in varying[cls])]
        super().__init__(f"def encode_{cls.__name__}({', '.join(parameters)}):", cls, version)
        self.constants["struct_error"] = struct_error
        self.constants["IllegalArgumentError"] = IllegalArgumentError
        self._fixed = fixed
        self._varying = varying
        self._counts = {f"{cls.__name__}.{name}": count for name, count in counts.items()}
        # The classes of structs by their variables.
        self._structs: dict[str, type[Struct]] = {_REQUEST: cls}
        self._head: FixedFields | None = None
        with self.block("try:"):
            first = len(self.lines)
            self.write_struct(cls, _REQUEST, cls.__name__)
            self.flush()
            has_body = any("append(" in line for line in self.lines[first:])
            if has_body:  # otherwise all is packed with the header
                opening = ("parts = []", "append = parts.append")
                self.lines[first:first] = [self._indent + line for line in opening]
            self._write_return(client_id, has_body)
        with self.block("except (struct_error, AttributeError, TypeError, ValueError) as error:"):
            self.line(
                f"text = f'{cls.__name__} v{version}: a field has an invalid value: {{error}}'"
            )
            self.line("raise IllegalArgumentError(text) from error")

    def _write_return(self, client_id: str | None, has_body: bool) -> None:
        name = b"\xff\xff" if client_id is None else _string(client_id, is_compact=False)
        if self.is_flexible:
            name += b"\0"
        head: FixedFields = [
            ("h", str(self._fixed.api_key)),
            ("h", str(self.version)),
            ("i", "correlation_id"),
            (f"{len(name)}s", repr(name)),
            *(self._head or []),
        ]
        size = Layout(">" + "".join(code for code, _ in head)).size
        if has_body:
            self.line("body = b''.join(parts)")
            self.line(f"return {self.packed([('i', f'len(body) + {size}'), *head])} + body")
        else:
            self.line(f"return {self.packed([('i', str(size)), *head])}")

    @override
    def flush(self) -> None:
        """Pack the pending fields. The first ones are packed with the header, at the end."""
        if self._head is None:
            self._head, self.pending = self.pending, []
        super().flush()

    # -- where values come from
    def _varies(self, field: Field, source: str) -> bool:
        cls = self._structs.get(source)
        return cls is not None and field.name in self._varying[cls]

    def _fixed_value(self, field: Field, source: str) -> object:
        return getattr(self._fixed, field.name) if source == _REQUEST else field.new_default()

    @override
    def value(self, field: Field, source: str) -> str:
        if self._varies(field, source):
            return f"{source}_{field.name}"
        if source not in self._structs:  # a struct that is fixed as a whole
            return super().value(field, source)
        value = self._fixed_value(field, source)
        return repr(value) if type(value) is int else self.constant("fixed", value)

    @override
    def is_set(self, field: Field, source: str) -> str:
        if source not in self._structs:
            return super().is_set(field, source)
        if not self._varies(field, source):
            return "True" if self._fixed_value(field, source) != field.new_default() else ""
        value = self.value(field, source)
        return value if field.is_list else f"{value} != {self.constant('default', field.default)}"

    @override
    def each(self, element: Wire, item: str) -> str:
        if not isinstance(element, Nested) or element.struct not in self._varying:
            return item
        self._structs[item] = element.struct
        return "".join(f"{item}_{name}, " for name in self._varying[element.struct])

    @override
    def write_array(self, element: Wire, value: str, path: str) -> None:
        count = self._counts.get(path)
        if count is None:
            super().write_array(element, value, path)
            return
        self.pending.append(("B", str(count + 1)) if self.is_flexible else ("i", str(count)))
        if count:
            item = self.fresh("item")
            self.line(f"(({self.each(element, item)}),) = {value}")
            self.write_value(element, item, False, path)

    @override
    def write_field(self, field: Field, source: str, path: str) -> None:
        is_nullable = field.nullable.covers(self.version)
        is_fixed = source in self._structs and not self._varies(field, source)
        if field.wire is not STRING or is_nullable or not is_fixed:
            super().write_field(field, source, path)
            return
        encoded = _string(str(self._fixed_value(field, source)), is_compact=self.is_flexible)
        self.pending.append((f"{len(encoded)}s", repr(encoded)))


def _string(text: str, *, is_compact: bool) -> bytes:
    encoded = text.encode()
    if is_compact:
        return encode_uvarint(len(encoded) + 1) + encoded
    return len(encoded).to_bytes(2, "big") + encoded


# --- Fetch -----------------------------------------------------------------------------------
PartitionToFetch: TypeAlias = tuple[int, int, int, int]
"""Index, leader epoch (-1: not known), fetch offset, limit in bytes."""

TopicToFetch: TypeAlias = tuple[str, bytes, Sequence[PartitionToFetch]]
"""Name, id, and partitions. Which of name and id is sent depends on the version."""

TopicToForget: TypeAlias = tuple[str, bytes, Sequence[int]]
"""Name, id, and indexes of partitions to drop from the session."""

TemplateKey: TypeAlias = tuple[int, str | None, str, bool]
"""Version, client id, rack id, and whether there is only one partition."""

_VARYING: Final[Varying] = {
    FetchRequest: (
        "max_wait_ms",
        "max_bytes",
        "session_id",
        "session_epoch",
        "topics",
        "forgotten_topics_data",
    ),
    FetchTopic: ("topic", "topic_id", "partitions"),
    FetchPartition: ("partition", "current_leader_epoch", "fetch_offset", "partition_max_bytes"),
    ForgottenTopic: ("topic", "topic_id", "partitions"),
}

# Most requests of a trickle have one partition.
_ONE_PARTITION: Final[Counts] = {"topics": 1, "topics.partitions": 1, "forgotten_topics_data": 0}


class FetchTemplate:
    """Creates the Fetch requests of one consumer."""

    def __init__(self, *, min_bytes: int, isolation_level: int) -> None:
        self._min_bytes = min_bytes
        self._isolation_level = isolation_level
        self.templates: dict[TemplateKey, Template] = {}

    def compile(self, key: TemplateKey) -> Template:
        template = _compile(self._min_bytes, self._isolation_level, *key)
        self.templates[key] = template
        return template


@lru_cache(maxsize=64)
def _compile(
    min_bytes: int,
    isolation_level: int,
    version: int,
    client_id: str | None,
    rack_id: str,
    is_one: bool,
) -> Template:
    """Compile a template, once per process, because it takes a millisecond."""
    fixed = FetchRequest(min_bytes=min_bytes, isolation_level=isolation_level, rack_id=rack_id)
    counts = _ONE_PARTITION if is_one else {}
    return compile_template(fixed, _VARYING, version, client_id, counts)


class PreparedFetch(PreparedRequest[FetchResponse]):
    __slots__ = (
        "_template",
        "forgotten",
        "max_bytes",
        "max_wait_ms",
        "rack_id",
        "session_epoch",
        "session_id",
        "topics",
    )

    request_class = FetchRequest

    def __init__(
        self,
        template: FetchTemplate,
        *,
        session_id: int,
        session_epoch: int,
        max_bytes: int,
        topics: Sequence[TopicToFetch],
        forgotten: Sequence[TopicToForget] = (),
        rack_id: str = "",
        max_wait_ms: int,
    ) -> None:
        self._template = template
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.max_bytes = max_bytes
        self.topics = topics
        self.forgotten = forgotten
        self.rack_id = rack_id
        self.max_wait_ms = max_wait_ms

    @property
    @override
    def usable_max_version(self) -> int:
        for _, topic_id, _ in self.topics:
            if topic_id == ZERO_UUID:
                return LAST_WITH_NAMES
        for _, topic_id, _ in self.forgotten:
            if topic_id == ZERO_UUID:
                return LAST_WITH_NAMES
        return FetchRequest.max_version

    @override
    def encode(self, version: int, correlation_id: int, client_id: str | None) -> bytes:
        topics, forgotten = self.topics, self.forgotten
        is_one = len(topics) == 1 and not forgotten and len(topics[0][2]) == 1
        key = version, client_id, self.rack_id, is_one
        encode = self._template.templates.get(key) or self._template.compile(key)
        return encode(
            correlation_id,
            self.max_wait_ms,
            self.max_bytes,
            self.session_id,
            self.session_epoch,
            topics,
            forgotten,
        )
