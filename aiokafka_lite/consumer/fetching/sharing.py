"""Computes over how many fetch sessions the partitions of one broker are spread.

For each answer with records a broker walks all partitions of the session, some 3 us each. Smaller
sessions reduce that, but each idle session is answered every `fetch_max_wait_ms`. With P
partitions, s sessions, r answers with records a second, and a long poll of w seconds, both sides'
processors take

    for the walks           r * P / s * WALK_S          a second
    for the idle sessions   s / w * IDLE_ANSWER_S       a second

which is least for s = sqrt(r * P * w * WALK_S / IDLE_ANSWER_S).

Moving partitions costs as well. So a broker begins with few sessions, gets more as soon as half as
many again are worth it, and fewer once half of them have been enough for a while.
"""

from __future__ import annotations

import math
from typing import Final

# A broker's time for one partition of a session, per answer with records of the session.
WALK_S: Final = 3e-6
# Both sides' time for the answer and the next request of an idle session.
IDLE_ANSWER_S: Final = 110e-6
# Of one session: more only if all have as many. Smaller ones are not worth it.
MOST_PARTITIONS: Final = 1_000
FEWEST_PARTITIONS: Final = 100
# Partitions of a topic are neighbours, and often have records together.
TOGETHER: Final = 50
# How far back the rate remembers: one record in a while is not often.
MEMORY_S: Final = 5.0
# The number of sessions grows at least by this factor.
GROWTH: Final = 1.5
# Fewer are taken when half as many have been enough for so long.
CALM_S: Final = 30.0


class Sharing:
    """Decides how many sessions read the partitions of one broker."""

    __slots__ = ("_answers", "_calm_since", "_looked_at", "_max_wait_s", "_most", "_rate", "count")

    def __init__(self, most: int, max_wait_s: float) -> None:
        self.count = 1
        self._most = most
        self._max_wait_s = max_wait_s
        # Answers with records until the latest look, and its loop time.
        self._answers = 0
        self._looked_at: float | None = None
        # Such answers a second, lately.
        self._rate = 0.0
        # Loop time since when half as many would have been enough.
        self._calm_since: float | None = None

    def share(self, partitions: int) -> int:
        """Return how many of a broker's partitions each session may have."""
        count = max(self.count, self._least(partitions))
        share = math.ceil(partitions / count / TOGETHER) * TOGETHER
        return max(FEWEST_PARTITIONS, share)

    def look(self, now: float, answers: int, partitions: int) -> bool:
        """Decide again by the total of answers with records. Return whether `count` has changed."""
        before, looked_at = self.count, self._looked_at
        came, self._answers, self._looked_at = answers - self._answers, answers, now
        if looked_at is None or now <= looked_at:
            return False
        passed_s = now - looked_at
        self._rate += (came / passed_s - self._rate) * -math.expm1(-passed_s / MEMORY_S)
        best = self._best(partitions)
        if best >= before * GROWTH or before < self._least(partitions):
            self.count, self._calm_since = best, None
        elif best * 2 > before:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        elif now - self._calm_since >= CALM_S:
            self.count, self._calm_since = best, None
        return self.count != before

    def _least(self, partitions: int) -> int:
        return min(self._most, max(1, math.ceil(partitions / MOST_PARTITIONS)))

    def _best(self, partitions: int) -> int:
        most = min(self._most, max(1, math.ceil(partitions / FEWEST_PARTITIONS)))
        cheapest = math.sqrt(self._rate * partitions * self._max_wait_s * WALK_S / IDLE_ANSWER_S)
        return max(self._least(partitions), min(most, math.ceil(cheapest)))
