"""What becomes of a partition next: the request or the back-off that it is in, by name.

    assigned, not paused, its position known  =>  in a fetch, or in a back-off that has a name

Nothing that the consumer does should break this; the watchdog looks whether something has. What the
fetcher and its nodes have noted is only read here, as it is between two turns of the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from aiokafka_lite.consumer.assignment.partition import PartitionState
    from aiokafka_lite.consumer.fetching.fetcher import Fetcher
    from aiokafka_lite.consumer.fetching.node_fetcher import NodeFetcher

# How much later than its deadline a request in flight may be before nobody looks after it.
LATE_S: Final = 1.0


class Standing(NamedTuple):
    """What becomes of a partition.

    Attributes:
        text: The request or the back-off, or what is missing.
        is_sound: False: nobody is going to fetch the partition.
        is_brief: It lasts for a turn of the event loop; for longer, it is not sound either.
    """

    text: str
    is_sound: bool = True
    is_brief: bool = False


def standing_of(fetcher: Fetcher, partition: PartitionState, now: float) -> Standing:
    """Say where a partition stands that is to be fetched (`PartitionState.is_fetchable`)."""
    if not fetcher.queue.line.has_room(partition):
        return Standing("buffered records or an error wait to be taken")
    if fetcher.is_left_out(partition):
        return Standing("memory is short, and gets wait for other partitions")
    node_id = fetcher.source(partition)
    if node_id is None:
        has_leader = fetcher.cluster.view.leader(partition.tp) is not None
        return Standing("there is a leader, but it is read from nowhere", not has_leader)
    node = fetcher.node(node_id)
    if node is None or partition not in node.partitions:
        return Standing(f"the task of node {node_id} does not know of it", is_sound=False)
    return _standing_at(node, partition, now)


def _standing_at(node: NodeFetcher, partition: PartitionState, now: float) -> Standing:
    name = f"node {node.node_id}"
    if node._is_closed:
        return Standing(f"the task of {name} is being restarted")
    if node._error is not None:
        return Standing(f"{name} is asked again after {type(node._error).__name__}")
    if node.is_settling or node._fetcher.queue.has_untaken(node.node_id):
        return Standing(f"an answer of {name} waits to be taken")
    exchange = node._exchange
    if exchange is not None and now > exchange.deadline + LATE_S:
        return Standing(f"the request to {name} has missed its deadline", is_sound=False)
    is_in_flight = exchange is not None
    will_look = is_in_flight or node._wake.is_set() or node.is_waiting_to_send
    is_brief = not is_in_flight and not node.is_waiting_to_send
    if partition in node._targets.touched:
        return Standing(f"part of the next request to {name}", will_look, is_brief)
    if partition in node._targets.backing_off:
        # The task sleeps until the first of these ends; after a request it looks anyway.
        is_sound = will_look or (node._retry_at is not None and node._retry_at > now - LATE_S)
        return Standing(f"{name} is asked again after {partition.retry_reason}", is_sound)
    if not node._targets.is_unmoved(partition):
        return Standing(f"not asked of {name} from its position", is_sound=False)
    if is_in_flight:
        return Standing(f"in a fetch from {name}")
    return Standing(f"about to be fetched from {name}", will_look, is_brief)
