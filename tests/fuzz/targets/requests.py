"""Every request that the embedded broker takes, in every version, as the bytes of a connection."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Final

from aiokafka_lite._compat import override
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from aiokafka_lite.protocol.registry import REQUESTS
from aiokafka_lite.protocol.schema import Request
from tests.fuzz import broker_in_process, mutations, reading, scenario
from tests.fuzz.broker_in_process import Loop, Transport
from tests.fuzz.corpus import Kind, recorded_of
from tests.fuzz.engine import MIB, Broken, Limits, Target
from tests.fuzz.targets import sasl
from tests.fuzz.targets.messages import compare_ways, mutated_body
from tests.support.samples import REQUEST_CLASSES, filled

TOPIC: Final = "t"
MOST_FRAMES: Final = 40
HANDSHAKE_WITH_BARE_TOKENS: Final = (SaslHandshakeRequest.api_key, 0)


def config(**more: Any) -> BrokerConfig:
    return BrokerConfig(
        seed=1,
        offsets_topic_partitions=2,
        transaction_topic_partitions=2,
        group_min_session_timeout_ms=10,
        request_log_size=10,
        max_partitions=200,
        max_frame_bytes=1 << 20,
        segment_bytes=1 << 20,
        **more,
    )


def sized(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def split(content: bytes) -> list[bytes]:
    """Split bytes into frames with their sizes, and the incomplete rest."""
    found = []
    while len(content) >= 4:
        (size,) = struct.unpack_from(">i", content)
        if not 0 < size <= len(content) - 4:
            break
        found.append(content[: 4 + size])
        content = content[4 + size :]
    return [*found, content] if content else found


class Conversation:
    """Asks the embedded broker, and keeps the frames of the requests."""

    def __init__(self, transport: Transport, level: int) -> None:
        self._transport = transport
        self._level = level
        self.sent: list[bytes] = []

    async def ask(self, request: Request[Any]) -> Any:
        cls = type(request)
        version = scenario.version_at(self._level, cls)
        try:
            frame = framing.encode_request(request, version, len(self.sent), "fuzz")
        except scenario.CANNOT_CARRY:
            return None
        self.sent.append(frame)
        answer = await self._transport.ask(frame)
        return (
            None if answer is None else framing.response_decoder(cls, version)(memoryview(answer))
        )


@cache
def conversations() -> Sequence[bytes]:
    """Run each scene at each level of versions, and return what was sent."""
    found = dict.fromkeys(
        b"".join(_conversation(scene, level))
        for scene in scenario.SCENES
        for level in scenario.LEVELS
    )
    return [content for content in found if content]


def _conversation(scene: Any, level: int) -> list[bytes]:
    async def converse(loop: Loop) -> list[bytes]:
        async def use(broker: Broker) -> list[bytes]:
            prepare(broker)
            conversation = Conversation(Transport(loop), level)
            await scene(conversation.ask, TOPIC)
            return conversation.sent

        return await broker_in_process.with_broker(Broker(config=config()), use)

    return broker_in_process.run(converse)[0]


def prepare(broker: Broker) -> None:
    broker.create_topic(TOPIC, 2)
    for number in range(3):
        broker.produce(TOPIC, f"v{number}", key="k", partition=0, timestamp_ms=1_700_000_000_000)


class Requests(Target):
    """The bytes of one connection to a broker with one topic, of some frames.

    The broker answers each, or closes the connection. Every response is one of its version. Each
    request is decoded as another reader does.
    """

    name = "requests"
    weight = 6
    limits: ClassVar = Limits(memory_bytes=64 * MIB)
    CONFIG: ClassVar = config()

    @override
    def seeds(self) -> Sequence[bytes]:
        found = [*conversations()]
        for cls in REQUEST_CLASSES:
            for version in range(cls.min_version, cls.max_version + 1):
                message = filled(cls, version).from_version(version)
                found.append(framing.encode_request(message, version, 7, "fuzz"))
        found += [sized(entry.content) for entry in recorded_of(Kind.REQUEST)]
        return found

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        frames = split(content)[:MOST_FRAMES]
        if not frames or rng.random() < 0.05:
            return mutations.changed(rng, content, [rng.choice(pool)])
        if len(frames) > 6 and rng.random() < 0.8:  # shorter ones are faster
            first = rng.randrange(len(frames))
            frames = frames[max(0, first - rng.randint(1, 12)) : first + 2]
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(frames))
            match rng.randrange(8):
                case 0:
                    others = split(rng.choice(pool)) or [b""]
                    frames.insert(at, rng.choice(others))
                case 1:
                    frames.insert(at, frames[rng.randrange(len(frames))])
                case 2:
                    frames[at] = mutations.changed(rng, frames[at], [rng.choice(pool)])
                case _:
                    frames[at] = _changed(rng, frames[at], pool)
        return b"".join(frames)

    @override
    def run(self, content: bytes) -> str:
        (answers, is_ended), held_s = broker_in_process.run(
            lambda loop: self._converse(loop, content), is_timed=self.is_alone
        )
        self.held(held_s)
        # Not on the loop, whose steps are measured.
        return self._check(split(content), answers, is_ended=is_ended)

    async def _converse(self, loop: Loop, content: bytes) -> tuple[list[bytes], bool]:
        """Return the responses, and whether the broker has closed the connection."""

        async def use(broker: Broker) -> tuple[list[bytes], bool]:
            prepare(broker)
            loop.selector.longest_s = 0.0
            transport = Transport(loop)
            count = len(split(content))
            transport.send(content)
            await transport.until(lambda: len(transport.frames) >= count)
            found = [*transport.frames], transport.is_ended
            transport.close()
            return found

        return await broker_in_process.with_broker(Broker(config=self.CONFIG), use)

    def _check(self, frames: Sequence[bytes], answers: Sequence[bytes], *, is_ended: bool) -> str:
        expected: dict[int, set[tuple[int, int]]] = {}
        for frame in frames:
            head = _head(memoryview(frame)[4:])
            if head is None:
                continue
            expected.setdefault(head.correlation_id, set()).add((head.api_key, head.version))
        if any(HANDSHAKE_WITH_BARE_TOKENS in each for each in expected.values()):
            return f"bare tokens {is_ended}"
        for answer in answers:
            known = expected.get(int.from_bytes(answer[:4], "big", signed=True))
            if known is None:
                raise Broken("a response has a correlation id that no request has")
            if not any(_is_response(answer, *each) for each in known):
                raise Broken(f"a response is none to {known}")
        kinds = sorted({key for each in expected.values() for key, _ in each})[-1:]
        codes = [answer[4:8] for answer in answers[-1:]]
        return f"{kinds} {min(len(answers), 2)} {is_ended} {codes}"


class RequestsWithSasl(Requests):
    """The same for a listener that requires authentication. Without it, requests are refused."""

    name = "requests-with-sasl"
    weight = 2
    CONFIG: ClassVar = config(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        oauth_allow_unsecured_tokens=True,
        connections_max_reauth_ms=30_000,
        allow_cleartext_credentials=True,
    )

    @override
    def seeds(self) -> Sequence[bytes]:
        found = []
        for level in range(4):
            sent = [framing.encode_request(ApiVersionsRequest(), 0, 1, "f")]
            tokens = {
                "SCRAM-SHA-256": b"n,,n=alice,r=nonce",
                "PLAIN": b"\0a\0b",
                "OAUTHBEARER": sasl.OAUTHBEARER_TOKEN,
            }
            for number, (mechanism, token) in enumerate(tokens.items()):
                handshake = SaslHandshakeRequest(mechanism=mechanism)
                shake = framing.encode_request(handshake, min(level, 1), 10 + number, "f")
                if level:
                    authenticate = SaslAuthenticateRequest(auth_bytes=token)
                    answer = framing.encode_request(authenticate, level - 1, 20 + number, "f")
                else:
                    answer = sized(token)
                found.append(b"".join([*sent, shake, answer, conversations()[level]]))
        return found


def _head(frame: memoryview) -> framing.RequestFrame | None:
    """Decode a request in all ways, and return its header. None if it is malformed."""
    found = reading.read_request_header(bytes(frame))
    try:
        head = framing.decode_request(frame)
    except KafkaProtocolError:
        if found is not None:
            raise Broken("the header of a request is refused") from None
        return None
    if found is None:
        raise Broken("the header of a request is accepted")
    if (head[:4], len(frame) - len(head.body)) != found:
        raise Broken("the header of a request has other values")
    cls = REQUESTS.get(head.api_key)
    if cls is not None and cls.versions.covers(head.version):
        compare_ways(cls, head.version, head.body)
    return head


def _is_response(answer: bytes, api_key: int, version: int) -> bool:
    cls = REQUESTS.get(api_key)
    if cls is None or not cls.versions.covers(version):
        return api_key == 18  # a refusal
    try:
        framing.response_decoder(cls, version)(memoryview(answer))
    except KafkaProtocolError:
        return False
    return True


def _changed(rng: random.Random, frame: bytes, pool: Sequence[bytes]) -> bytes:
    """Change the message of a frame, and correct its size."""
    try:
        head = framing.decode_request(memoryview(frame)[4:])
    except KafkaProtocolError:
        return mutations.changed(rng, frame, [rng.choice(pool)])
    cls = REQUESTS.get(head.api_key)
    if cls is None or not cls.versions.covers(head.version):
        return mutations.changed(rng, frame, [rng.choice(pool)])
    start = len(frame) - len(head.body)
    version = head.version
    body = bytes(head.body)
    if rng.random() < 0.05:  # another version of the same request
        version = rng.randint(cls.min_version, cls.max_version)
        frame = frame[:6] + struct.pack(">h", version) + frame[8:]
    other = [rng.choice(pool)]
    return sized(frame[4:start] + mutated_body(rng, cls, version, body, other, may_grow=True))
