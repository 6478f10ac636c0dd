"""While it runs: partitions that nothing comes of or nobody has, and calls that do not return."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from aiokafka_lite.structs import TopicPartition
from tests.model.clusters import ModelCluster
from tests.model.ledger import Violation
from tests.model.member import Member

LOOK_EVERY_S: Final = 0.25


class Liveness:
    """Looks again and again.

    Args:
        silent_s: How long nothing may come of a partition with records that somebody gets.
        ownerless_s: How long a partition may be nobody's, after the last that happened to members.
    """

    def __init__(
        self,
        cluster: ModelCluster,
        members: Sequence[Member],
        groups: Iterable[str],
        *,
        silent_s: float,
        ownerless_s: float,
    ) -> None:
        self._cluster = cluster
        self._members = members
        self._groups = tuple(groups)
        self._silent_s = silent_s
        self._ownerless_s = ownerless_s
        self._undisturbed_since = dict.fromkeys(self._groups, 0.0)
        self._lagging_since: dict[tuple[str, TopicPartition], float] = {}
        self._entry_count = 0
        self._troubled_until = 0.0

    def disturb(self, group: str | None = None) -> None:
        """Note that something happens to a group's members, or to all."""
        now = self._cluster.world.now()
        for each in self._groups if group is None else (group,):
            self._undisturbed_since[each] = now

    def trouble(self, until: float) -> None:
        """Note that a fault may have effects until then."""
        self._troubled_until = max(self._troubled_until, until)

    async def watch(self) -> None:
        """Look, until it is cancelled."""
        now = self._cluster.world.now
        while True:
            began = now()
            await asyncio.sleep(LOOK_EVERY_S)
            self._allow_for(now() - began - LOOK_EVERY_S)
            self.look()

    def _allow_for(self, late_s: float) -> None:
        """Give calls as much longer as this process stood still itself, on a busy machine."""
        for member in self._members if late_s > LOOK_EVERY_S else ():
            for call in member.standing.calls:
                call.due_at += late_s

    def look(self) -> None:
        """Look once."""
        now = self._cluster.world.now()
        members = [m for m in self._members if m.actor is not None and not m.actor.is_done]
        for member in members:
            actor = member.actor
            assert actor is not None
            if actor.is_blocked:
                member.standing.blocked_at = now
            if actor.is_killed or actor.is_blocked:
                continue
            for call in tuple(member.standing.calls):
                if call.due_at < now:
                    call.due_at = float("inf")
                    member.violate("a call does not return", f"{call.name}; {self._words(member)}")
        for group in self._groups:
            mine = [m for m in members if m.around.group == group and m.standing.is_running]
            self._look_for_owners(group, mine, now)
            for member in mine:
                self._look_for_silence(member, now)

    @staticmethod
    def _words(member: Member) -> str:
        standing = member.standing
        return f"{standing.verdict}; has {sorted(standing.owned)}"

    def _look_for_silence(self, member: Member, now: float) -> None:
        standing, group = member.standing, member.around.group
        since = standing.getting_since
        for tp in standing.owned:
            position = standing.next.get(tp)
            end = self._cluster.acknowledged.get(tp, 0)
            if end == 0 or (position is not None and position >= end):
                self._lagging_since[group, tp] = now
                continue
            if since is None or tp in standing.paused or tp.topic not in standing.topics:
                continue
            if standing.getting is not None and tp not in standing.getting:
                continue
            if position is None and self._is_committed(group, tp, end):
                continue
            began = max(
                since,
                self._lagging_since.get((group, tp), 0.0),
                standing.stirred_at.get(tp, 0.0),
                standing.blocked_at,
                self._troubled_until,
            )
            if now - began > self._silent_s:
                standing.stirred_at[tp] = now
                words = (
                    f"nothing for {now - began:.1f} s at {position} of {end}; "
                    f"{standing.words.get(tp)}; health {standing.verdict}; "
                    f"gets {standing.getting or 'all'}"
                )
                member.violate("a silent partition", words, tp)

    def _is_committed(self, group: str, tp: TopicPartition, end: int) -> bool:
        """Whether an assignment begins at the end, as far as is known."""
        return self._cluster.committed(group, tp) in (None, end)

    def _look_for_owners(self, group: str, members: Sequence[Member], now: float) -> None:
        settled_at = max(self._undisturbed_since[group], self._troubled_until)
        if now - settled_at < self._ownerless_s:
            return
        owned = {tp for member in members for tp in member.standing.owned}
        topics = {topic for member in members for topic in member.standing.topics}
        for topic in topics:
            for index in range(self._cluster.partitions[topic]):
                tp = TopicPartition(topic, index)
                if tp not in owned:
                    self.disturb(group)
                    words = "; ".join(f"{m.name}: {self._words(m)}" for m in members)
                    words = f"for {now - settled_at:.1f} s at {now:.1f}; {words}"
                    order = self._cluster.ledger.next_order()
                    violation = Violation("nobody has it", words, group, tp, order=order)
                    self._cluster.ledger.violate(violation)
                    return
