"""The calls of Spark's readers in the driver's processes: look up offsets, plan tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.errors import OptionError
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.planning.group_commits import GroupCommits
from aiokafka_lite.spark.planning.micro_batches import Admission, MicroBatches
from aiokafka_lite.spark.planning.planner import Planner
from aiokafka_lite.spark.planning.splitting import Task
from aiokafka_lite.spark.process import settle

log = logging.getLogger("aiokafka_lite.spark")


def batch_tasks(raw: Mapping[str, str]) -> list[Task]:
    settle()
    options = worker.options_of(raw, is_streaming=False)
    _warn(options)
    # Spark also reuses processes that plan: the next query finds open connections.
    with worker.borrowed_cluster(options) as cluster:
        planner = Planner(options, cluster)
        return planner.tasks(planner.batch_ranges())


class StreamPlanning:
    """The parts that plan one streaming query."""

    def __init__(self, raw: Mapping[str, str], *, has_admission_control: bool = True) -> None:
        self.options = options = worker.options_of(raw, is_streaming=True)
        if not has_admission_control:
            _refuse_limit(options)
        _warn(options)
        self._cluster = worker.new_cluster(options)
        self._planner = Planner(options, self._cluster)
        admission = Admission(
            max_offsets=options.max_offsets_per_trigger,
            min_offsets=options.min_offsets_per_trigger,
            max_delay_s=options.max_trigger_delay_s,
        )
        self.batches = MicroBatches(options, self._planner, admission)
        self._commits = (
            None
            if options.commit_group is None
            else GroupCommits(options.commit_group, self._cluster)
        )

    def tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        return self._planner.tasks(self.batches.ranges(start, end))

    def processed(self, offsets: Offsets) -> None:
        if self._commits is not None:
            self._commits.commit(offsets)

    def close(self) -> None:
        self._cluster.close()


def _refuse_limit(options: SourceOptions) -> None:
    """Refuse a limit with which PySpark 4.0 and 4.1 would end a query too early.

    The trigger availableNow asks such a source only once for the end.
    """
    if options.max_offsets_per_trigger is not None and options.admission_control == "engine":
        raise OptionError(
            f"option maxOffsetsPerTrigger={options.max_offsets_per_trigger} needs PySpark 4.2 or "
            "newer, because earlier versions do not pass the trigger to a source. Upgrade PySpark, "
            "or leave maxOffsetsPerTrigger out (availableNow then reads all records in one batch). "
            "With the trigger processingTime, you can set the option admissionControl to source "
            "instead"
        )


def _warn(options: SourceOptions) -> None:
    for warning in options.warnings:
        log.warning("%s", warning)
