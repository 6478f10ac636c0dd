"""Messages of the protocol: responses that the client decodes, blobs and records inside them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.assignors.blobs import decode_assignment, decode_subscriptions
from aiokafka_lite.consumer.assignors.sticky import StickyPartitionAssignor
from aiokafka_lite.errors import IllegalArgumentError, KafkaProtocolError, UnsupportedVersionError
from aiokafka_lite.protocol import codec, framing
from aiokafka_lite.protocol.decoding import MessageDecoder
from aiokafka_lite.protocol.messages.group_members import JoinGroupResponseMember
from aiokafka_lite.protocol.registry import REQUESTS
from aiokafka_lite.protocol.schema import Message, Request, Response, Struct
from aiokafka_lite.protocol.source import run_to_end
from tests.fuzz import mutations, reading, record_sets, structure
from tests.fuzz.corpus import Kind, recorded_of
from tests.fuzz.engine import LARGEST_INPUT_BYTES, Broken, Target
from tests.support.samples import BLOB_CLASSES, REQUEST_CLASSES, filled, versions

VERSIONED: Final = struct.Struct(">hh")


@cache
def blob_seeds() -> Sequence[bytes]:
    """Embedded messages of every class and version, with the version in front."""
    return [
        struct.pack(">h", version) + codec.encode(filled(cls, version), version)
        for cls in BLOB_CLASSES
        for version in versions(cls)
    ]


class _Others(structure.Others):
    @override
    def record_set(self, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return b""
        return record_sets.mutate(rng, rng.choice(record_sets.seeds()), ())

    @override
    def blob(self, rng: random.Random) -> bytes:
        return rng.choice((rng.choice(blob_seeds()), b""))


class Body:
    """A message that is decoded once for several mutations."""

    def __init__(self, cls: type[Message], version: int, body: bytes) -> None:
        self._cls, self._version, self._body = cls, version, body
        self._tokens: Sequence[structure.Token] | None = None

    def mutated(
        self, rng: random.Random, pool: Sequence[bytes], *, may_grow: bool = False
    ) -> bytes:
        """Change the message by its field table, or its bytes."""
        if rng.random() < 0.25:
            return mutations.changed(rng, self._body, pool)
        if may_grow and rng.random() < 0.02:
            return _grown(rng, self._cls, self._version, self._message(rng))
        if self._tokens is None:
            self._tokens = structure.tokens_of(self._message(rng), self._cls, self._version)
        return structure.mutate(rng, self._tokens, _Others())

    def _message(self, rng: random.Random) -> Message:
        """Decode the message, or return another one if it is none."""
        try:
            return codec.decode(self._cls, self._version, self._body)
        except (KafkaProtocolError, UnsupportedVersionError):
            return filled(self._cls, self._version, has_nulls=rng.random() < 0.3)


def mutated_body(
    rng: random.Random,
    cls: type[Message],
    version: int,
    body: bytes,
    pool: Sequence[bytes],
    *,
    may_grow: bool = False,
) -> bytes:
    """Change a message once. See `Body.mutated`."""
    return Body(cls, version, body).mutated(rng, pool, may_grow=may_grow)


def _grown(rng: random.Random, cls: type[Message], version: int, message: Message) -> bytes:
    """Make one of the lists in a message long, with the right counts."""
    lists: list[tuple[Struct, str, list[object]]] = []
    _collect_lists(message, lists)
    if lists:
        owner, name, items = rng.choice(lists)
        size = len(_rendered(cls, version, message))
        setattr(owner, name, [])
        size -= len(_rendered(cls, version, message))
        most = LARGEST_INPUT_BYTES // max(1, size) + 1
        setattr(owner, name, items * min(most, rng.choice((10, 300, 5_000))))
    return _rendered(cls, version, message)[: LARGEST_INPUT_BYTES - 100]


def _rendered(cls: type[Message], version: int, message: Message) -> bytes:
    return structure.render(structure.tokens_of(message, cls, version))


def _collect_lists(owner: Struct, lists: list[tuple[Struct, str, list[object]]]) -> None:
    for field in owner.schema:
        value = getattr(owner, field.name)
        if isinstance(value, Struct):
            _collect_lists(value, lists)
        elif isinstance(value, list) and value:
            lists.append((owner, field.name, value))
            for item in value[:2]:
                if isinstance(item, Struct):
                    _collect_lists(item, lists)


class Responses(Target):
    """Every response, in every version. Behind key and version stands the frame.

    Decoded at once and in steps it has to be the same, and can be sent on.
    """

    name = "responses"
    allowed = (KafkaProtocolError,)  # closes the connection
    weight = 4
    batch_size = 256

    @override
    def seeds(self) -> Sequence[bytes]:
        found = [
            _with_version(cls, version, _frame(filled(cls.response, version), version))
            for cls in REQUEST_CLASSES
            for version in versions(cls)
        ]
        found += [
            VERSIONED.pack(entry.api_key, entry.version) + entry.content
            for entry in recorded_of(Kind.RESPONSE)
        ]
        return found

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        return self.variants(rng, content, pool, 1)[0]

    @override
    def variants(
        self, rng: random.Random, content: bytes, pool: Sequence[bytes], count: int
    ) -> list[bytes]:
        known = _request_class(content)
        if known is None or rng.random() < 0.02:
            return [mutations.changed(rng, content, pool)]
        cls, version = known
        size = 4 + (cls.response.flexible.covers(version) and not cls.response.has_plain_header)
        key, frame = content[: VERSIONED.size], content[VERSIONED.size :]
        head, body = frame[:size], Body(cls.response, version, frame[size:])
        found = []
        for _ in range(count):
            first = mutations.changed(rng, head, ()) if rng.random() < 0.02 else head
            found.append(key + first + body.mutated(rng, [rng.choice(pool)]))
        return found

    @override
    def run(self, content: bytes) -> str:
        known = _request_class(content)
        if known is None:
            return "unknown"
        cls, version = known
        frame = memoryview(content)[VERSIONED.size :]
        if len(frame) < 4:  # `Wire` closes the connection before it looks for a decoder
            return "short"
        decode = framing.response_decoder(cls, version)
        if len(frame) > 4:
            _compare_frame(cls, version, frame)
        with self.on_loop():
            message = decode(frame)
        try:
            sent_on = framing.encode_response(message, version, 0)
        except (IllegalArgumentError, UnsupportedVersionError):
            if cls.api_key == 18:  # a refusal is always in version 0
                return "refused"
            raise
        again = framing.encode_response(decode(memoryview(sent_on)[4:]), version, 0)
        if again != sent_on:
            raise Broken(f"{cls.__name__} v{version} is sent on as another message")
        return f"{cls.__name__} {version} {min(len(content) // 32, 8)}"


def _frame(message: Response, version: int) -> bytes:
    return framing.encode_response(message.from_version(version), version, 7)[4:]


def _with_version(cls: type[Request[Response]], version: int, frame: bytes) -> bytes:
    return VERSIONED.pack(cls.api_key, version) + frame


def _request_class(content: bytes) -> tuple[type[Request[Response]], int] | None:
    if len(content) < VERSIONED.size:
        return None
    api_key, version = VERSIONED.unpack_from(content)
    cls = REQUESTS.get(api_key)
    return None if cls is None or not cls.versions.covers(version) else (cls, version)


def _compare_frame(cls: type[Request[Response]], version: int, frame: memoryview) -> None:
    response = cls.response
    is_tagged = response.flexible.covers(version) and not response.has_plain_header
    if not (is_tagged and frame[4]):
        compare_ways(response, version, frame[4 + is_tagged :])


def compare_ways(cls: type[Message], version: int, body: memoryview) -> None:
    """Decode a message that bytes may follow: at once, in steps, and with the other reader."""
    ways: Sequence[Callable[[], Message]] = (
        lambda: _decoded(cls, version, body),
        lambda: run_to_end(codec.decoder_in_steps(cls, version)(body, True)),
    )
    answers: list[Message | str] = []
    for way in ways:
        try:
            answers.append(way())
        except KafkaProtocolError as error:
            answers.append(str(error))
    if answers[0] != answers[1]:
        raise Broken(f"{cls.__name__} v{version} differs when it is decoded in steps")


def _decoded(cls: type[Message], version: int, body: memoryview) -> Message:
    decode: MessageDecoder[Message] = codec.decoder(cls, version)
    found = reading.read(cls, version, bytes(body))
    try:
        message = decode(body, True)
    except KafkaProtocolError:
        if found is not None:
            raise Broken(f"{cls.__name__} v{version} is refused") from None
        raise
    if found is None:
        raise Broken(f"{cls.__name__} v{version} is accepted")
    other, end = found
    if message != other:
        raise Broken(f"{cls.__name__} v{version} has other values")
    try:
        decode(body[:end])
    except KafkaProtocolError:
        raise Broken(f"{cls.__name__} v{version} has another end") from None
    return message


class ConsumerProtocol(Target):
    """Subscriptions and assignments, which members write for each other.

    The first byte chooses what the bytes are. A leader survives any subscription.
    """

    name = "consumer-protocol"
    allowed = (KafkaProtocolError,)  # an assignment: the member joins again

    @override
    def seeds(self) -> Sequence[bytes]:
        return [bytes([kind]) + blob for blob in blob_seeds()[:8] for kind in (0, 1, 2)]

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        first, blob = content[:1] or b"\0", content[1:]
        cls = BLOB_CLASSES[1 if first[0] % 3 == 1 else 0]
        version = int.from_bytes(blob[:2], "big")
        if rng.random() < 0.1 or not cls.versions.covers(version):
            return first + mutations.changed(rng, blob, [rng.choice(pool)[1:]])
        return first + blob[:2] + mutated_body(rng, cls, version, blob[2:], [rng.choice(pool)[1:]])

    @override
    def run(self, content: bytes) -> str:
        kind, blob = (content[0] if content else 0) % 3, content[1:]
        if kind == 1:
            found = decode_assignment(blob, frozenset({"ü2", "t"}))
            numbers = [number for _, shares in found.assignment for number in shares]
            if any(number < 0 for number in numbers) or len(numbers) > len(blob):
                raise Broken(f"assigned {numbers[:20]}")
            return f"assigned {min(len(numbers), 3)}"
        others = [
            JoinGroupResponseMember(member_id=f"m{number}", metadata=metadata)
            for number, metadata in enumerate((blob, blob_seeds()[kind], blob))
        ]
        with self.on_loop():
            members = decode_subscriptions(others)
        if len(members) != len(others):
            raise Broken("a member is missing")
        if kind == 2:  # what sticky members claim to have
            members["m0"] = members["m0"]._replace(subscription=["t"], user_data=blob)
        assigned = StickyPartitionAssignor().assign(Topics(), members)
        given = [tp for each in assigned.values() for tp in each.partitions()]
        if len(given) != len(set(given)):
            raise Broken("a partition is assigned twice")
        return f"{kind} {[len(each.subscription) for each in members.values()]} {len(given)}"


class Topics:
    """A cluster with two topics."""

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {0, 1, 2} if topic in ("t", "ü2") else None
