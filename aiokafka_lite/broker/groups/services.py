"""What the group coordinator needs of the cluster that it belongs to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.groups.coordinator_log import OffsetsLog
from aiokafka_lite.broker.groups.kip848.topic_hash import Topics
from aiokafka_lite.broker.groups.kip848.values import ConsumerGroupSettings
from aiokafka_lite.broker.groups.values import GroupSettings


class CoordinatorServices(Protocol):
    """Settings, time, topics and logs."""

    @property
    def clock(self) -> Callable[[], int]: ...
    @property
    def rng(self) -> random.Random: ...
    @property
    def scope(self) -> TaskScope: ...
    @property
    def group_settings(self) -> GroupSettings: ...
    @property
    def group_topics(self) -> Topics: ...
    @property
    def offsets_topic_partitions(self) -> int: ...

    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings: ...
    def partition(self, topic: str, index: int) -> OffsetsLog: ...
