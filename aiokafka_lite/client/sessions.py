"""When a session that a broker will end is renewed (KIP-368)."""

from __future__ import annotations

import random
from typing import Final

# Part of a session's lifetime after which it is renewed: between these, drawn each time.
RENEWED_AT: Final = (0.80, 0.90)
# Brokers take an authentication within a second of the last one for a mistake.
LEAST_RENEWAL_S: Final = 1.05


def renewal_delay_s(lifetime_s: float, rng: random.Random) -> float:
    """Return how long after an authentication the next one is due."""
    return max(lifetime_s * rng.uniform(*RENEWED_AT), LEAST_RENEWAL_S)
