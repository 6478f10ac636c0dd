"""The topics that metadata has to cover. Adding one has constant cost."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from aiokafka_lite._settings import nearest

log = logging.getLogger("aiokafka_lite.client.cluster")

# How long brokers may take to create a topic that they were asked to create.
CREATION_S: Final = 1.0


class WatchedTopics:
    """The topics of all owners (None: every topic), and the `missing` ones of a view."""

    def __init__(self) -> None:
        # By owner; None: every topic.
        self._wanted: dict[object, set[str] | None] = {}
        # The topics that the view was requested for; None: every topic.
        self._asked: set[str] | None = set()
        self.topics: set[str] | None = set()
        self.missing: set[str] = set()

    @property
    def are_covered(self) -> bool:
        return self._asked is None or (self.topics is not None and not self.missing)

    # --- What is wanted -------------------------------------------------------------------
    def set(self, owner: object, topics: Iterable[str] | None) -> None:
        """Replace an owner's topics."""
        wanted = None if topics is None else set(topics)
        if wanted is None or wanted:
            self._wanted[owner] = wanted
        else:
            self._wanted.pop(owner, None)
        each = self._wanted.values()
        self.topics = (
            None if None in each else set[str]().union(*(w for w in each if w is not None))
        )
        self._look()

    def add(self, owner: object, topic: str) -> None:
        wanted = self._wanted.setdefault(owner, set())
        if wanted is not None:
            wanted.add(topic)
        if self.topics is not None:
            self.topics.add(topic)
            if self._asked is not None and topic not in self._asked:
                self.missing.add(topic)

    def remove(self, owner: object, topic: str) -> None:
        wanted = self._wanted.get(owner)
        if wanted is None:
            return
        wanted.discard(topic)
        if self.topics is not None and not any(topic in w for w in self._wanted.values() if w):
            self.topics.discard(topic)
            self.missing.discard(topic)

    # --- What was asked for ---------------------------------------------------------------
    def were_asked(self, topics: Iterable[str] | None) -> None:
        self._asked = None if topics is None else set(topics)
        self._look()

    def were_added(self, topics: Iterable[str]) -> None:
        if self._asked is not None:
            self._asked.update(topics)
        self.missing.difference_update(topics)

    def _look(self) -> None:
        is_all = self.topics is None or self._asked is None
        self.missing = set() if is_all else (self.topics or set()) - (self._asked or set())


class UnknownTopics:
    """Watched topics that have never existed: logged once, because brokers may create them."""

    def __init__(self) -> None:
        # When a response first lacked a topic, and its report.
        self._since: dict[str, float] = {}
        self._texts: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._since)

    def update(self, missing: Collection[str], now: float, *, may_create: bool) -> list[str]:
        """Apply the topics that a response lacks. Return those to report."""
        for name in sorted(self._since.keys() - missing):
            del self._since[name]
            if self._texts.pop(name, None) is not None:
                log.info("topic %r exists now", name)
        for name in missing:
            self._since.setdefault(name, now)
        patience_s = CREATION_S if may_create else 0.0
        return sorted(
            name
            for name, since in self._since.items()
            if name not in self._texts and now - since >= patience_s
        )

    def report(self, name: str, existing: Collection[str]) -> None:
        self._texts[name] = text = f"topic {name!r} does not exist{nearest(name, existing, repr)}"
        log.warning("%s", text)

    def text(self, topics: Collection[str]) -> str | None:
        texts = [self._texts[name] for name in sorted(topics) if name in self._texts]
        return ", ".join(texts) or None
