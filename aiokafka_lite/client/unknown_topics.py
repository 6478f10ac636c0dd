"""Topics in metadata requests that have never existed; each is logged once.

It is not an error, because brokers may create the topic soon, and callers wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from aiokafka_lite._arguments import nearest

log = logging.getLogger("aiokafka_lite.client.cluster")

# How long brokers may take to create a topic that they were asked to create.
CREATION_S: Final = 1.0


class UnknownTopics:
    def __init__(self) -> None:
        # When an answer first lacked a topic, and what was reported of it since.
        self._since: dict[str, float] = {}
        self._texts: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._since)

    def update(self, missing: Collection[str], now: float, *, may_create: bool) -> list[str]:
        """Apply the topics that a response lacks; return those to report."""
        for name in self._since.keys() - missing:
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
        """Log that a topic does not exist, with an existing topic that has a similar name."""
        self._texts[name] = text = f"topic {name!r} does not exist{nearest(name, existing, repr)}"
        log.warning("%s", text)

    def text(self, topics: Collection[str]) -> str | None:
        texts = [self._texts[name] for name in sorted(topics) if name in self._texts]
        return ", ".join(texts) or None
