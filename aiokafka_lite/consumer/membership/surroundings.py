"""The parts of a consumer that a membership is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.heartbeat_thread import OpenCluster
from aiokafka_lite.consumer.membership.protocol import Membership

if TYPE_CHECKING:
    from aiokafka_lite.consumer.commits.commits import Commits


class Surroundings(NamedTuple):
    core: Core
    cluster: Cluster
    coordinator: Coordinator
    commits: Commits
    scope: TaskScope
    # Puts another membership in place of the first one, and starts it.
    replace: Callable[[Membership], None]
    open_cluster: OpenCluster | None = None
