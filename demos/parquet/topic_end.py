"""The topic's end, for the lag of the tables, and the group that gets their offsets.

The driver asks brokers itself, so that the lag does not depend on the source.
"""

from __future__ import annotations

import logging
from types import TracebackType

from aiokafka_lite._compat import Self
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.spark.micro_batches import GroupCommits
from aiokafka_lite.spark.options import parse_options
from aiokafka_lite.spark.planner import Planner
from demos.parquet.options import PipelineOptions

log = logging.getLogger("aiokafka_lite.spark")


class TopicEnd:
    """Looks up the topic's end, and commits to the group, inside of a `with`."""

    def __init__(self, options: PipelineOptions) -> None:
        source = parse_options(options.source_options(), is_streaming=True)
        self._cluster = BlockingCluster(source.client, mechanism=source.mechanism)
        self._planner = Planner(source, self._cluster)
        self._group = None if options.group is None else GroupCommits(options.group, self._cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cluster.close()

    def behind(self, offsets: Offsets) -> int | None:
        """Return the number of offsets after these. None if Kafka does not respond."""
        try:
            latest = self._planner.latest(offsets)
        except KafkaError as error:
            # A missing metric must not fail a batch that is almost finished.
            log.warning(
                "cannot look up the topic's latest offsets, so the metrics of this batch contain "
                "no lag: %s",
                error,
            )
            return None
        return sum(max(0, end - offsets.get(tp, 0)) for tp, end in latest.items())

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets to the group, if there is one. Failures are only logged."""
        if self._group is not None:
            self._group.commit(offsets)
