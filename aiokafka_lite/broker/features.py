"""The features of the cluster: which levels it could use, and which it uses (KIP-584).

Clients ask for some of what they do by these levels rather than by versions of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka_lite.broker.config import BrokerConfig

# Counts the changes of levels in Kafka; here they are settings.
FEATURES_EPOCH: Final = 0
# The first ApiVersions that can say that a feature starts at level 0.
FIRST_WITH_LEVEL_0: Final = 4


class Feature(NamedTuple):
    """A feature; a finalized level of 0 means that it is not used."""

    name: str
    min_level: int
    max_level: int
    finalized_level: int


def features(config: BrokerConfig) -> Sequence[Feature]:
    """Return the features that clients look for."""
    return [
        Feature("group.version", 0, 1, 1),  # KIP-848
        Feature("transaction.version", 0, 2, config.transaction_version),
    ]
