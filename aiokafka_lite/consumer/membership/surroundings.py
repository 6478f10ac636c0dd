"""The parts of a consumer that a membership is made of."""

from __future__ import annotations

import random
from typing import NamedTuple

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.assignment.finished import Finished
from aiokafka_lite.consumer.assignment.observers import Observers
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.events import Events
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.heartbeat_thread import OpenCluster
from aiokafka_lite.consumer.membership.protocol import LastCommits


class Surroundings(NamedTuple):
    config: ConsumerConfig
    state: SubscriptionState
    reads: Reads
    works: Works
    finished: Finished
    gate: Gate
    events: Events
    observers: Observers
    cluster: Cluster
    coordinator: Coordinator
    commits: LastCommits
    scope: TaskScope
    rng: random.Random
    open_cluster: OpenCluster | None = None
