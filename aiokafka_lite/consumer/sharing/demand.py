"""How many records a member fetches: only as many as it can begin with soon, without I/O.

The time of a lock begins with the fetch, and other members cannot get the record meanwhile. So the
demand is what the application could take now, and by Little's law what it will take while a fetch
is on its way: the rate at which records are settled, times the duration of a fetch. A member whose
handlers are slow thereby reads nothing ahead, and a fast one keeps all its handlers busy.

Places that wait for records lower that rate, so it alone would never show that more is needed. So
the margin grows while answers find places free and nothing waiting, and shrinks otherwise.

Fetches that lock no more than is asked for return whole batches anyway. So they begin when half of
the places are free, or a while after the first one.

Of several nodes, those whose last fetch was filled share the demand. Others ask for a little, so
that a burst on all nodes at once does not lock a multiple of the demand. They queue: one that
fetches is the last again. Otherwise a node with a backlog could take each place that becomes free.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from aiokafka_lite.consumer.sharing.leases import Leases

# The memory of the rate.
RATE_S: Final = 0.5
# The duration of a fetch before the first, its bounds, and the weight of the latest one.
FIRST_FETCH_S: Final = 0.005
FETCH_RANGE_S: Final = (0.002, 0.02)
FETCH_WEIGHT: Final = 0.2
# How many times as much is read ahead as the average fetch needs: at first, at least, and at most.
MARGINS: Final = (1.5, 1.0, 8.0)
MARGIN_GROWTH: Final = 1.3
MARGIN_DECAY: Final = 0.98
# Whole batches may add what is settled in this time.
EXCESS_S: Final = 0.05
# A few free places wait so long for others.
REFILL_S: Final = 0.02
REFILL_SHARE: Final = 0.5
# A node waits so long for those before it in the queue, which then lose their turn.
TURN_S: Final = 2 * REFILL_S
# The part of the demand that nodes without records share.
PROBE_SHARE: Final = 0.25
# A fetch that brought this share of what it asked for was filled.
FILLED_SHARE: Final = 0.5


class Demand:
    """The demand of one member. Times are loop times.

    Attributes:
        asked: By node, the records that the fetch in flight asks for.
        is_filled: By node, whether the last fetch was.
    """

    def __init__(self, free: Callable[[], int], leases: Leases) -> None:
        self._free = free
        self._leases = leases
        self.asked: dict[int, int] = {}
        self.is_filled: dict[int, bool] = {}
        self._rate = 0.0
        self._rate_at = 0.0
        self._fetch_s = FIRST_FETCH_S
        self._margin = MARGINS[0]
        # The nodes that may fetch: a set in the order of their turns.
        self._queue: dict[int, None] = {}
        # Since when there has been an unmet demand.
        self._since: float | None = None

    def note_settled(self, count: int, now: float) -> None:
        self._rate = self._rate_now(now) + count / RATE_S
        self._rate_at = now

    def read_nothing_ahead(self) -> None:
        """Forget the rate, because the use of records ends."""
        self._rate = 0.0

    def excess(self, now: float) -> float:
        """Return how many records more than wanted do not wait for long."""
        return self._rate_now(now) * EXCESS_S

    def _rate_now(self, now: float) -> float:
        return self._rate * math.exp((self._rate_at - now) / RATE_S)

    def note_fetch(self, node_id: int, count: int) -> None:
        """Note that a fetch asks for so many records."""
        self.asked[node_id] = count
        self._since = None
        turns = list(self._queue)
        self._queue = dict.fromkeys(
            turns[turns.index(node_id) + 1 :] if node_id in turns else turns
        )

    def is_awaited(self, node_id: int) -> bool:
        """Whether the fetch in flight is expected to be filled, so that others leave it places."""
        return self.is_filled.get(node_id, True)

    def note_answer(self, node_id: int, count: int, took_s: float) -> None:
        asked = self.asked.pop(node_id, 1)
        self.is_filled[node_id] = is_filled = count >= asked * FILLED_SHARE
        if count:
            least_s, most_s = FETCH_RANGE_S
            took_s = min(max(took_s, least_s), most_s)
            self._fetch_s += (took_s - self._fetch_s) * FETCH_WEIGHT
        if is_filled and self._rate * self._fetch_s >= 1:
            is_late = self._free() > self._leases.waiting_count - count
            margin = self._margin * (MARGIN_GROWTH if is_late else MARGIN_DECAY)
            self._margin = min(max(margin, MARGINS[1]), MARGINS[2])

    def wanted(self, node_id: int, node_count: int, now: float) -> tuple[int, float]:
        """Return how many records this node's next fetch asks for, and when it may begin.

        The node takes its place in the queue, so it has to be able to fetch now.
        """
        self._queue.setdefault(node_id)
        waiting_count = self._leases.waiting_count
        places = max(0, self._free()) + int(self._rate_now(now) * self._fetch_s * self._margin)
        is_filled = self.is_filled
        coming = sum(n for node, n in self.asked.items() if self.is_awaited(node))
        total = places - waiting_count - coming
        if total <= 0:
            self._since = None
            return 0, math.inf
        if self._since is None:
            self._since = now
        if node_count == 1 or is_filled.get(node_id):
            filled_count = sum(is_filled.values()) or 1
            count = math.ceil(total / filled_count)
        elif node_id not in is_filled:
            count = math.ceil(total / node_count)
        else:
            count = max(1, int(total * PROBE_SHARE / node_count))
        places += self._leases.held_count - waiting_count
        is_enough = total >= places * REFILL_SHARE
        if next(iter(self._queue)) != node_id:
            return count, self._since + TURN_S
        return count, now if is_enough else self._since + REFILL_S
