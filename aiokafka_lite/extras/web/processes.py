"""The state of all processes of `aiokafka-lite run --processes`, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aiokafka_lite._pages import Answer, problem, refusal
from aiokafka_lite.extras.web.pages import health_answer
from aiokafka_lite.extras.web.scale import Scaling, Target, added

if TYPE_CHECKING:
    from aiokafka_lite.cli.processes import Worker


class ProcessPages:
    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._scalings = [Scaling() for _ in workers]

    async def answer(
        self, method: str, hosts: Sequence[str], path: str, parameters: Mapping[str, str]
    ) -> Answer:
        if (refused := refusal(method, ("localhost",), bool, "")) is not None:
            return refused
        if path in ("", "health"):
            return self._health()
        reports = [(each.number, report) for each in self._workers if (report := each.state()[1])]
        if path == "metrics":
            from aiokafka_lite.extras.web.prometheus import CONTENT_TYPE, labels_of, render

            shown = []
            for number, (health, metrics) in reports:
                labels = {**labels_of(metrics), "process": str(number)}
                shown.append((metrics, str(health["verdict"]), labels))
            return Answer(render(*shown), CONTENT_TYPE)
        if (target := Target.of(path)) is None:
            return problem(404, "there are /health, /metrics and /scale")
        now = asyncio.get_running_loop().time()
        answers = [
            self._scalings[number].answer(report.metrics, target, now)
            for number, report in reports
            if report.health["verdict"] != "dead"
        ]
        if not answers:
            return problem(503, "no process has a consumer that works")
        return Answer(json.dumps(added(answers)).encode())

    def _health(self) -> Answer:
        states = [
            {"process": each.number, "restarts": max(0, each.start_count - 1), **each.state()[0]}
            for each in self._workers
        ]
        verdicts = {str(each["verdict"]) for each in states}
        verdict = min(verdicts) if len(verdicts) == 1 else "degraded"
        return health_answer({"verdict": verdict, "processes": states})
