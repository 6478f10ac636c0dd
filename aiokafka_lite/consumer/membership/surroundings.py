"""The parts of a consumer that a membership is made of."""

from __future__ import annotations

from typing import NamedTuple

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.heartbeat_thread import OpenCluster
from aiokafka_lite.consumer.membership.protocol import LastCommits


class Surroundings(NamedTuple):
    core: Core
    cluster: Cluster
    coordinator: Coordinator
    commits: LastCommits
    scope: TaskScope
    open_cluster: OpenCluster | None = None
