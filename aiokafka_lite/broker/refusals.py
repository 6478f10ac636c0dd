"""Responses that refuse a request, with an error code at the place that the API has for it.

The place follows from the declarations of messages. A request has lists (topics with partitions,
groups, keys), its response has lists of the same shape, and one or more levels an `error_code`:

    level 0   the response itself               JoinGroup, Heartbeat, Fetch (KIP-227) …
    level 1   elements of its list              topics of Metadata, groups of OffsetFetch …
    level 2   elements of these elements' lists partitions of Produce, Fetch, OffsetCommit …
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from aiokafka_lite.errors import BrokerResponseError
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.messages.offsets import OffsetFetchRequest
from aiokafka_lite.protocol.messages.share import ShareFetchRequest
from aiokafka_lite.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from aiokafka_lite.protocol.messages.transactions import AddPartitionsToTxnRequest
from aiokafka_lite.protocol.schema import ZERO_UUID, Message, Request, Response, Struct
from aiokafka_lite.protocol.source import SourceWriter, Steps, compile_function
from aiokafka_lite.protocol.wire import Array, Field, Nested

Place: TypeAlias = Literal["answer", "topic", "partition"]
"""The place of an error: the response itself, its outermost list (topics, groups, keys, …), or its
innermost list (partitions)."""

Concerns: TypeAlias = Callable[["str | None", "int | None"], bool]
"""Returns whether a rule matches a topic's name and a partition, each of which may be None."""

TopicName: TypeAlias = Callable[[bytes], "str | None"]
"""Returns the name of a topic id."""

_TOPIC_NAMES: Final = ("name", "topic", "topic_name")
_INDEX_NAMES: Final = ("partition_index", "partition", "index")
_COPIED: Final = frozenset(
    {"group_id", "key", "member_id", "group_instance_id", "transactional_id", "topic_id"}
    | {"resource_type", "resource_name", *_TOPIC_NAMES}
)
# The name of an element that is a text itself, not a struct.
_NAMES_OF_TEXTS: Final = ("group_id", "key", "transactional_id", *_TOPIC_NAMES)

FIRST_OFFSET_FETCH_WITH_AN_ERROR: Final = 2

SESSION_REQUESTS: Final = (FetchRequest, ShareFetchRequest, ShareAcknowledgeRequest)

# The usual place of an API's errors, if it is not the outermost one.
_USUAL_PLACE: Final[Mapping[type[Message], Place]] = {
    AddPartitionsToTxnRequest: "partition",
    MetadataRequest: "topic",
    **dict.fromkeys(SESSION_REQUESTS, "partition"),
}

# Kafka's values of other fields of an error, if they differ from the default.
_BESIDE_ERROR: Final[Mapping[str, object]] = {
    "base_offset": -1,
    "committed_offset": -1,
    "generation_id": -1,
    "high_watermark": -1,
    "leader_id": -1,
    "low_watermark": -1,
    "node_id": -1,
    "port": -1,
    "producer_epoch": -1,
    "records": b"",
}


@dataclass(frozen=True)
class Level:
    struct: type[Struct]
    asked_in: str | None
    answered_in: str | None
    error: str | None


class RefusalReason(NamedTuple):
    """The error of a refusal, and the elements that get it."""

    code: int
    message: str
    concerns: Concerns
    topic_name: TopicName


class Refusal:
    """Refuses requests of one class and version. ValueError if no error code is at the place.

    `at` is None for the API's usual place. With `of_topics`, only some topics or partitions are
    refused, so higher levels are excluded.
    """

    def __init__(
        self,
        request: type[Request[Response]],
        version: int,
        at: Place | None,
        *,
        of_topics: bool = False,
    ) -> None:
        self._levels = levels_of(request, version)
        self._version = _layout_of(request.response, version)
        outermost = _depth_of_topics(self._levels) if of_topics and at is None else 0
        at = at or _usual_place(request, version)
        self._depth = self._place(at, request, version, outermost or 0)

    def _place(self, at: Place | None, request: type[Message], version: int, outermost: int) -> int:
        levels = self._levels
        usable = [
            depth
            for depth, level in enumerate(levels)
            if level.error is not None and depth >= outermost
        ]
        wanted = {None: usable, "answer": [0], "topic": [1], "partition": [len(levels) - 1]}[at]
        for depth in wanted:
            if depth in usable:
                return depth
        raise ValueError(
            f"the response to {request.__name__} v{version} has no error code for "
            f"at={at or 'answer'!r}: choose another value for at, or use .answer()"
        )

    @property
    def is_whole(self) -> bool:
        return self._depth == 0

    def split(
        self, request: Request[Response], refused: RefusalReason
    ) -> tuple[Response, Request[Response] | None]:
        """Return the refusal of matching elements, and a request for the others, or None."""
        answer = request.response()
        copy_names(request, answer)
        if self.is_whole:
            self._put_error(answer, 0, refused)
            return answer, None
        elements, rest = self._split(request, 1, None, refused)
        level = self._levels[1]
        setattr(answer, level.answered_in or "", elements)
        if not rest:
            return answer, None
        remaining = copy.copy(request)
        setattr(remaining, level.asked_in or "", rest)
        return answer, remaining

    def _split(
        self, parent: Struct, depth: int, topic: str | None, refused: RefusalReason
    ) -> tuple[list[Struct], list[object]]:
        """Return the refusing elements and the request's elements that are not refused."""
        level = self._levels[depth]
        elements: list[Struct] = []
        rest: list[object] = []
        for item in getattr(parent, level.asked_in or "") or ():
            item_topic = _topic(item, refused.topic_name) or topic
            element = level.struct()
            copy_names(item, element)
            if depth == self._depth:
                if refused.concerns(item_topic, _index(item)):
                    self._put_error(element, depth, refused)
                    elements.append(element)
                else:
                    rest.append(item)
                continue
            inner, inner_rest = self._split(item, depth + 1, item_topic, refused)
            below = self._levels[depth + 1]
            if inner:
                setattr(element, below.answered_in or "", inner)
                elements.append(element)
            if inner_rest:
                remaining = copy.copy(item)
                setattr(remaining, below.asked_in or "", inner_rest)
                rest.append(remaining)
        return elements, rest

    def is_empty(self, request: Request[Response]) -> bool:
        if self.is_whole or self._levels[1].asked_in is None:
            return False
        asked: object = getattr(request, self._levels[1].asked_in)
        return asked == []

    def is_listed(self, request: Request[Response]) -> bool:
        """Return whether the request lists all elements that its response has."""
        if self.is_whole:
            return True
        if isinstance(request, MetadataRequest):
            return False  # the response also lists brokers
        items: Sequence[object] = [request]
        for level in self._levels[1 : self._depth + 1]:
            lists = [getattr(item, level.asked_in or "", None) for item in items]
            if not all(isinstance(each, list) for each in lists):
                return False
            items = [element for each in lists for element in each or ()]
        return True

    def mark(self, answer: Response, refused: RefusalReason) -> bool:
        """Put the error into a response. Return whether a place matched."""
        return self._mark(answer, 0, None, refused)

    def _mark(self, element: Struct, depth: int, topic: str | None, refused: RefusalReason) -> bool:
        topic = _topic(element, refused.topic_name) or topic
        if depth == self._depth:
            if not refused.concerns(topic, _index(element)):
                return False
            self._put_error(element, depth, refused)
            for below in self._levels[depth + 1 : depth + 2]:
                setattr(element, below.answered_in or "", [])
            return True
        below = self._levels[depth + 1]
        inner = getattr(element, below.answered_in or "") or ()
        marked = [self._mark(each, depth + 1, topic, refused) for each in inner]
        return any(marked)

    def _put_error(self, element: Struct, depth: int, refused: RefusalReason) -> None:
        """Set the error code, and Kafka's values for other fields."""
        setattr(element, self._levels[depth].error or "", refused.code)
        names = {field.name for field in element.schema if field.versions.covers(self._version)}
        for name, value in _BESIDE_ERROR.items():
            if name in names:
                setattr(element, name, value)
        if "error_message" in names:
            setattr(element, "error_message", refused.message)  # noqa: B010 — of any struct

    def merge(self, answer: Response, refused: Response) -> None:
        self._merge(answer, refused, 1)

    def _merge(self, into: Struct, other: Struct, depth: int) -> None:
        if depth == len(self._levels):
            return
        name = self._levels[depth].answered_in or ""
        known: list[Struct] = getattr(into, name) or []
        by_name = {_identity(element): element for element in known}
        for element in getattr(other, name) or ():
            same = by_name.get(_identity(element))
            if same is None:
                known.append(element)
            else:
                self._merge(same, element, depth + 1)
        setattr(into, name, known)


def named_partitions(
    request: Request[Response], version: int, topic_name: TopicName
) -> list[tuple[str | None, int | None]]:
    lists = [level.asked_in for level in levels_of(type(request), version) if level.asked_in]
    return [*_named(request, lists, None, topic_name)] if lists else []


def _named(
    item: object, lists: Sequence[str], topic: str | None, topic_name: TopicName
) -> Iterator[tuple[str | None, int | None]]:
    topic = _topic(item, topic_name) or topic
    if not lists:
        yield topic, _index(item)
        return
    for each in getattr(item, lists[0]) or ():
        yield from _named(each, lists[1:], topic, topic_name)


def names_topics(request: type[Request[Response]], version: int) -> bool:
    return _depth_of_topics(levels_of(request, version)) is not None


def _depth_of_topics(levels: Sequence[Level]) -> int | None:
    names = {*_TOPIC_NAMES, "topic_id"}
    for depth, level in enumerate(levels):
        if level.asked_in is not None and any(f.name in names for f in level.struct.schema):
            return depth
    return None


NO_ERRORS: Final[frozenset[int]] = frozenset()
# Responses with at most this number of elements are sent at once.
LARGEST_SMALL: Final = 100


def is_error_class(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, BrokerResponseError)


def error_codes(answer: Response) -> frozenset[int] | None:
    """Return the error codes, or None if the response has more than `LARGEST_SMALL` elements."""
    return cast("frozenset[int] | None", _collector(type(answer), in_steps=False)(answer))


def error_codes_in_steps(answer: Response) -> Steps[frozenset[int]]:
    return cast("Steps[frozenset[int]]", _collector(type(answer), in_steps=True)(answer))


@functools.cache
def _collector(cls: type[Struct], *, in_steps: bool) -> Callable[[Struct], object]:
    source = SourceWriter("def collect(m0):", {"NO_ERRORS": NO_ERRORS}, in_steps=in_steps)
    source.line("found = None")
    source.line(f"room = {LARGEST_SMALL}")
    _collect(source, cls, 0)
    source.end("NO_ERRORS if found is None else frozenset(found)")
    name = f"error_codes({cls.__name__}){' in steps' if in_steps else ''}"
    return compile_function(name, source.lines, source.constants)


def _collect(source: SourceWriter, cls: type[Struct], depth: int) -> None:
    for name in (field.name for field in cls.schema if _is_error(field)):
        with source.block(f"if m{depth}.{name}:"):
            with source.block("if found is None:"):
                source.line("found = set()")
            source.line(f"found.add(m{depth}.{name})")
    for field in cls.schema:
        if not isinstance(field.wire, Array):
            continue
        elements = f"m{depth}.{field.name} or ()"
        if not source.in_steps:
            source.line(f"room -= len({elements})")
            with source.block("if room < 0:"):
                source.line("return None")
        inner = _struct_of(field)
        if inner and any(_is_error(each) or isinstance(each.wire, Array) for each in inner.schema):
            with source.block(f"for m{depth + 1} in {elements}:"):
                source.count()
                _collect(source, inner, depth + 1)


def _is_error(field: Field) -> bool:
    return field.name.endswith("error_code")


def _struct_of(field: Field) -> type[Struct] | None:
    if isinstance(field.wire, Array) and isinstance(field.wire.element, Nested):
        return field.wire.element.struct
    return None


def _has_errors(cls: type[Struct]) -> bool:
    return any(
        _is_error(field) or ((inner := _struct_of(field)) is not None and _has_errors(inner))
        for field in cls.schema
    )


@functools.cache
def levels_of(request: type[Request[Response]], version: int) -> tuple[Level, ...]:
    """Return the levels of a response, as far as the lists of request and response correspond."""
    asked_version = _layout_of(request, version)
    version = _layout_of(request.response, version)
    asked: type[Struct] = request
    answered: type[Struct] = request.response
    levels = [Level(answered, None, None, _error_field(answered, version))]
    while True:
        asked_list = next(iter(_lists(asked, asked_version)), None)
        answered_list = next(
            (f for f in _lists(answered, version) if _has_errors(_struct_of(f) or Struct)), None
        )
        if answered_list is None:
            return tuple(levels)
        answered = _struct_of(answered_list) or Struct
        asked_in = None if asked_list is None else asked_list.name
        error = _error_field(answered, version)
        levels.append(Level(answered, asked_in, answered_list.name, error))
        asked = Struct if asked_list is None else _struct_of(asked_list) or Struct


def _layout_of(cls: type[Message], version: int) -> int:
    """Return the version of the message's layout: the newest if fields moved."""
    is_rearranged = (
        cls.for_version is not Message.for_version or cls.from_version is not Message.from_version
    )
    return cls.versions.last if is_rearranged else version


def _usual_place(request: type[Message], version: int) -> Place | None:
    if request is OffsetFetchRequest and version < FIRST_OFFSET_FETCH_WITH_AN_ERROR:
        return "partition"
    return _USUAL_PLACE.get(request)


def _lists(cls: type[Struct], version: int) -> list[Field]:
    return [f for f in cls.schema if isinstance(f.wire, Array) and f.versions.covers(version)]


def _error_field(cls: type[Struct], version: int) -> str | None:
    for field in cls.schema:
        if field.name.endswith("error_code") and field.versions.covers(version):
            return field.name
    return None


def copy_names(item: object, element: Struct) -> None:
    """Copy the names of a request's element, such as a topic's, to the response's element."""
    kind: type = type(item)
    for given, name in _copied(kind, type(element)):
        setattr(element, name, item if given is None else getattr(item, given))


@functools.cache
def _copied(item: type, element: type[Struct]) -> Sequence[tuple[str | None, str]]:
    names = [field.name for field in element.schema]
    if not issubclass(item, Struct):
        possible = _INDEX_NAMES if issubclass(item, int) else _NAMES_OF_TEXTS
        return [(None, name) for name in possible if name in names][:1]
    # The response to InitProducerId has a new producer id.
    same = _COPIED if issubclass(item, Request) else _COPIED | {"producer_id"}
    copied = [(name, name) for name in names if name in same and hasattr(item, name)]
    given = [name for name in _INDEX_NAMES if hasattr(item, name)]
    index = [name for name in _INDEX_NAMES if name in names]
    return [*copied, *zip(given[:1], index[:1], strict=False)]


def _topic(item: object, topic_name: TopicName) -> str | None:
    topic_id = getattr(item, "topic_id", ZERO_UUID)
    for name in _TOPIC_NAMES:
        if isinstance(known := getattr(item, name, None), str) and known:
            return known
    return topic_name(topic_id) if topic_id != ZERO_UUID else None


def _index(item: object) -> int | None:
    if isinstance(item, int):
        return item
    for name in _INDEX_NAMES:
        if isinstance(index := getattr(item, name, None), int):
            return index
    return None


def _identity(element: Struct) -> tuple[object, ...]:
    return tuple(
        getattr(element, field.name)
        for field in element.schema
        if field.name in _COPIED or field.name in _INDEX_NAMES
    )
