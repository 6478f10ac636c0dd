"""Targets with a fault each, so that every rule is seen to fail."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from aiokafka_lite._compat import override
from aiokafka_lite.broker.slices import LoopSlices
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.decoding import DecoderSource
from aiokafka_lite.protocol.wire import Field
from tests.fuzz import broker_in_process
from tests.fuzz.engine import MIB, Broken, Limits, Target


class Planted(Target):
    """Decodes bytes whose first one is not 0xFF, in the right way."""

    allowed = (KafkaProtocolError,)
    limits: ClassVar = Limits(cpu_s=0.1, memory_bytes=16 * MIB)

    @override
    def seeds(self) -> Sequence[bytes]:
        return [b"\0abc"]

    @override
    def run(self, content: bytes) -> str:
        if not content:
            raise KafkaProtocolError("the message is empty")
        if content[0] >= 0x80:
            self.fail(content)
        return str(content[0] // 64)

    def fail(self, content: bytes) -> None:
        raise NotImplementedError


class Nothing(Planted):
    name = "planted:Nothing"

    @override
    def fail(self, content: bytes) -> None:
        pass


class Untyped(Planted):
    name = "planted:Untyped"

    @override
    def fail(self, content: bytes) -> None:
        raise IndexError("past the end")


class Hang(Planted):
    name = "planted:Hang"

    @override
    def fail(self, content: bytes) -> None:
        while True:
            pass


class Hungry(Planted):
    name = "planted:Hungry"

    @override
    def fail(self, content: bytes) -> None:
        assert bytearray(b"x") * (40 * MIB)


class Holding(Planted):
    name = "planted:Holding"

    @override
    def fail(self, content: bytes) -> None:
        with self.on_loop():
            ends_at = time.thread_time() + 0.08
            while time.thread_time() < ends_at:
                pass


class Sliced(Planted):
    """Works for long, but in slices of its loop's clock."""

    name = "planted:Sliced"
    # Its loop starts and ends within it, which takes long on a busy machine.
    limits: ClassVar = Limits(cpu_s=1.0, memory_bytes=16 * MIB)

    @override
    def fail(self, content: bytes) -> None:
        _, held_s = broker_in_process.run(self._work, is_timed=self.is_alone)
        self.held(held_s)

    async def _work(self, loop: broker_in_process.Loop) -> None:
        slices, ends_at = LoopSlices(), time.thread_time() + 0.06
        while time.thread_time() < ends_at:
            if slices.is_over:
                await slices.rest()


class Wrong(Planted):
    name = "planted:Wrong"

    @override
    def fail(self, content: bytes) -> None:
        raise Broken("the twins differ")


class Crash(Planted):
    name = "planted:Crash"

    @override
    def fail(self, content: bytes) -> None:
        ctypes.string_at(1)


class Deaf(Planted):
    """Hangs in C, where no signal's handler runs."""

    name = "planted:Deaf"

    @override
    def fail(self, content: bytes) -> None:
        sum(range(1 << 62))


# --- Decoders that are wrong, each in another way ------------------------------------------------
class AlwaysSet(DecoderSource):
    """Ignores flags."""

    @override
    def read_fixed(self, code: str, target: str) -> None:
        super().read_fixed(code, target)
        if code == "?":
            self.flush()
            self.line(f"{target} = True")


class Nullable(DecoderSource):
    """Takes a null for every length."""

    @override
    @contextmanager
    def length_read(
        self, code: str, limit: str, target: str, path: str, nullable: bool
    ) -> Iterator[None]:
        with super().length_read(code, limit, target, path, True):
            yield


class OtherInSteps(DecoderSource):
    """Has other defaults if it decodes in steps."""

    @override
    def set_default(self, field: Field, target: str) -> None:
        if self.in_steps and field.default == -1:
            self.line(f"{target}.{field.slot} = 0")
        else:
            super().set_default(field, target)
