"""The source of random numbers and ids of one client or broker."""

from __future__ import annotations

import os
import random
from typing import Final

from aiokafka_lite._compat import override


class Chance(random.Random):
    """Random numbers and ids, which `seed` decides. None: the operating system's entropy."""

    def __init__(self, seed: str | None = None) -> None:
        self.is_seeded = seed is not None
        super().__init__(seed)

    @override
    def __reduce__(self) -> str:
        raise TypeError("a copy would repeat the random numbers and ids of a client")

    def unguessable_bytes(self, count: int) -> bytes:
        """Return bytes for ids and nonces. Only a seed makes them predictable."""
        return self.randbytes(count) if self.is_seeded else os.urandom(count)


# Shared by all clients without a seed, because its state takes 2.5 KiB.
UNSEEDED: Final = Chance()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=UNSEEDED.seed)
