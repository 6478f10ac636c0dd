"""Record sets, by both decoders and in both forms; compressed payloads by both ways to inflate."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final, TypeAlias

from aiokafka_lite import records
from aiokafka_lite._compat import override
from aiokafka_lite.consumer.buffer.decode import INFLATE_ON_LOOP_S
from aiokafka_lite.errors import (
    CorruptRecordException,
    DecompressionLimitError,
    KafkaError,
    RecordTooLargeError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.compression import compress, inflate, inflate_stream
from tests.fuzz import mutations, record_sets
from tests.fuzz.engine import Broken, Limits, Target, outcome_of
from tests.support import crafted

MIB: Final = 1 << 20
NAMES: Final = tuple(records.DECODERS)
BY_ONE: Final = 0x30
# Plain Python takes up to 9 us for a header of two bytes, so more of them look like a hang.
MOST_COMPARED_BYTES: Final = 100_000

Answer: TypeAlias = (
    "tuple[list[object], KafkaError | None, int | None, int, list[tuple[int, int]], bool]"
)


class RecordSets(Target):
    """What a Fetch brings, and what a producer sends to the embedded broker.

    The first byte chooses how it is read: by both decoders, which have to agree, or by the compiled
    one alone, which takes less than half the time. On an event loop, a thread decompresses what is
    expected to take long, and the rest is measured.
    """

    name = "record-sets"
    # As `RecordSet.take` documents them.
    allowed = (
        CorruptRecordException,
        UnsupportedMagicError,
        UnsupportedCodecError,
        DecompressionLimitError,
        RecordTooLargeError,
    )
    weight = 4
    batch_size = 256

    @override
    def seeds(self) -> Sequence[bytes]:
        return [bytes([way]) + content for content in record_sets.seeds() for way in (0, 1, 6)]

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        return self.variants(rng, content, pool, 1)[0]

    @override
    def variants(
        self, rng: random.Random, content: bytes, pool: Sequence[bytes], count: int
    ) -> list[bytes]:
        base = record_sets.Base(content[1:])
        others = [each[1:] for each in (rng.choice(pool), rng.choice(pool))]
        way = content[0] if content else 0
        found = []
        for _ in range(count):
            luck = rng.random()
            if luck < 0.3:
                way = rng.randrange(256)
            # Bits 4 and 5: one in four is read by both decoders.
            way = way & ~BY_ONE if luck < 0.25 else way | BY_ONE
            if luck > 0.995:
                found.append(bytes((way & ~0x20,)) + record_sets.bombs(rng))
            else:
                found.append(bytes((way,)) + base.mutated(rng, others))
        return found

    @override
    def run(self, content: bytes) -> str:
        way, view = content[0] if content else 0, content[1:]
        answer = _read(NAMES[-1], view, way, self.on_loop)
        if not way & BY_ONE and record_sets.inflated_size(view) <= MOST_COMPARED_BYTES:
            for name in NAMES[:-1]:
                _compare(name, _read(name, view, way), answer)
        taken, error, _, next_offset, epochs, _ = answer
        if error is not None:
            raise error
        is_read_to_end = next_offset < sys.maxsize
        if way & 1 and is_read_to_end and not all(map(_is_sound, record_sets.split(view))):
            raise Broken("a wrong checksum is accepted")
        return f"{min(len(taken), 3)} takes, {min(len(epochs), 2)} epochs, {way & 3}"


def _is_sound(batch: bytes) -> bool:
    """Whether a batch is incomplete, or has the right checksum."""
    return record_sets.is_cut(batch) or record_sets.sealed(batch) == batch


def _compare(name: str, answer: Answer, other: Answer) -> None:
    for part, wanted, got in zip(PARTS, _told(answer), _told(other), strict=True):
        if got != wanted:
            raise Broken(f"{NAMES[-1]} has other {part}: {got!r:.300}, {name} {wanted!r:.300}")


PARTS: Final = ("records", "error", "end offset", "next offset", "epochs", "exhaustion")


def _told(answer: Answer) -> tuple[object, ...]:
    """Replace an error by its type and place: the decoders do not use the same words."""
    taken, error, *others = answer
    if error is None:
        return (taken, None, *others)
    place = (type(error), getattr(error, "tp", None), getattr(error, "offset", None))
    return (taken, place, *others)


def _read(
    name: str,
    content: bytes,
    way: int,
    on_loop: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Answer:
    """Read all that is there; bits of `way` choose how."""
    taken: list[object] = []
    failure: KafkaError | None = None
    may_block = way & BY_ONE > 0x10
    with records.use_decoder(name):
        view = memoryview(content)
        read = crafted.record_set(
            content,
            fetch_offset=(0, 4, 105, 2**62)[way >> 6],
            check_crcs=way & 1 == 1,
            aborted=None if way & 2 else [(11, 6), (2, 3)],
            max_batch_bytes=(16 * MIB if way & BY_ONE else MIB) if way & 4 else 4096,
            may_block=may_block,
        )
        at_a_time = 3 if way & 8 else 1000
        try:
            while not read.is_exhausted:
                if read.inflate_estimate_s > INFLATE_ON_LOOP_S:
                    read.inflate()
                with nullcontext() if may_block else on_loop():
                    more = read.take(at_a_time)
                taken += [more] if more else []
        except KafkaError as error:
            failure = error.with_traceback(None)
        try:
            end = records.end_offset(view)
        except KafkaError as error:
            raise Broken("end_offset raises") from error
        return taken, failure, end, read.next_offset, [*read.epochs], read.is_exhausted


class Rows(Target):
    """The same as columns for pyarrow: they have to be the rows of the records."""

    name = "rows"
    allowed = RecordSets.allowed

    @override
    def seeds(self) -> Sequence[bytes]:
        return record_sets.seeds()

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        return record_sets.mutate(rng, content, [rng.choice(pool)])

    @override
    def run(self, content: bytes) -> str:
        from aiokafka_lite.records.arrow import ArrowColumns

        outcomes = []
        for name in records.DECODERS:
            with records.use_decoder(name):
                arrow, plain = ArrowColumns(), ArrowColumns()
                read = crafted.record_set(content, check_crcs=False, max_batch_bytes=MIB)
                other = crafted.record_set(content, check_crcs=False, max_batch_bytes=MIB)
                outcome = ""
                try:
                    while read.take_columns(arrow.columns, 50):
                        rows = arrow.finish()
                        rows.validate(full=True)
                        taken: list[Any] = []
                        while len(taken) < rows.num_rows:
                            more = other.take(rows.num_rows - len(taken))
                            if not more:
                                raise Broken("there are fewer records than rows")
                            taken += more
                        if rows != plain.from_records(taken):
                            raise Broken(f"{name}: rows differ from the records")
                        outcome += "." if len(outcome) < 3 else ""
                except self.allowed as error:
                    outcome += type(error).__name__
                outcomes.append((outcome, read.next_offset, read.is_exhausted))
        if any(outcome != outcomes[0] for outcome in outcomes):
            raise Broken(f"the decoders differ: {outcomes}")
        return outcomes[0][0]


PACKED: Final = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)


class Payloads(Target):
    """Compressed payloads: as a whole and in pieces they have the same content.

    The first byte is the codec, and whether it is of magic 0.
    """

    name = "payloads"
    allowed = (CorruptRecordException, DecompressionLimitError)
    limits: ClassVar = Limits(memory_bytes=32 * MIB)
    CAP: Final = 4 * MIB

    @override
    def seeds(self) -> Sequence[bytes]:
        texts = (b"", b"a", b"abc" * 50, bytes(2 * MIB), random.Random(1).randbytes(3000))
        found = [(codec, compress(codec, text)) for codec in tuple(Codec)[1:] for text in texts]
        for text in texts[1:4]:
            found += record_sets.odd_framings(text)
        return [bytes([PACKED.index(codec)]) + packed for codec, packed in found]

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        first = content[:1] or b"\0"
        if rng.random() < 0.05:
            first = bytes([rng.randrange(16)])
        packed = content[1:]
        if rng.random() < 0.05:  # several members or frames, one after the other
            packed *= rng.choice((2, 3, 20))
            if rng.random() < 0.5:
                return first + packed
        return first + mutations.changed(rng, packed, [rng.choice(pool)[1:]])

    @override
    def run(self, content: bytes) -> str:
        first, view = content[0] if content else 1, memoryview(content)[1:]
        codec = PACKED[first % len(PACKED)]
        whole: bytes | None = None
        outcome = ""
        try:
            whole = bytes(inflate(codec, view, self.CAP, magic=0 if first & 8 else 2))
        except self.allowed as error:
            outcome = outcome_of(error)
        if whole is not None and len(whole) > self.CAP:
            raise Broken(f"{codec.name}: {len(whole)} bytes are above the limit")
        pieces = self._in_pieces(codec, view) if not first & 8 else None
        if whole is not None and pieces is not None and whole != pieces:
            raise Broken(
                f"{codec.name}: as a whole {len(whole)} bytes, in pieces {len(pieces)} bytes"
            )
        return f"{codec.name} {outcome or whole is not None} {pieces is not None}"

    def _in_pieces(self, codec: Codec, view: memoryview) -> bytes | None:
        found = b""
        try:
            stream = inflate_stream(codec, view)
            for piece in stream or ():
                found += piece
                if len(found) > self.CAP:
                    return None
        except self.allowed:
            return None
        return None if stream is None else found
