"""Keeps the topics that metadata were asked for and that have never existed, and reports them once.

A wrong name is no error of the brokers: an answer without the topic may be right in a moment. So
whoever needs the topic waits for it, and the log says what it waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from aiokafka_lite._nearest import nearest

log = logging.getLogger("aiokafka_lite.client.cluster")

# How long brokers may take to create a topic that they were asked to create.
CREATION_S: Final = 1.0


class UnknownTopics:
    """Topics that no answer has contained."""

    def __init__(self) -> None:
        # When an answer first lacked a topic, and what was reported of it since.
        self._since: dict[str, float] = {}
        self._texts: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """The topics that the latest answers about them lacked."""
        return frozenset(self._since)

    def update(self, missing: Collection[str], now: float, *, may_create: bool) -> list[str]:
        """Take over what an answer lacks; return the topics to be reported."""
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
        """Log that a topic does not exist, with the existing topic that its name resembles."""
        self._texts[name] = text = f"topic {name!r} does not exist{nearest(name, existing, repr)}"
        log.warning("%s", text)

    def text(self, topics: Collection[str]) -> str | None:
        """Return what was reported of these topics; None: nothing."""
        texts = [self._texts[name] for name in sorted(topics) if name in self._texts]
        return ", ".join(texts) or None
