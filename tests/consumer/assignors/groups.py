"""Draws groups: members, their subscriptions, and the topics that there are."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

TOPIC_NAMES = ["a", "b", "c", "d", "unknown"]


class Topics:
    """Partition counts by topic, asked as a cluster is asked."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.counts[topic])) if topic in self.counts else None


topic_counts = st.dictionaries(st.sampled_from(TOPIC_NAMES[:4]), st.integers(1, 9))


member_ids = st.text("abcxyz-012", min_size=1, max_size=6)


group_subscriptions = st.dictionaries(
    member_ids, st.lists(st.sampled_from(TOPIC_NAMES), unique=True), min_size=1, max_size=7
)
