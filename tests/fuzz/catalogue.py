"""The targets by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tests.fuzz.engine import Target

TARGETS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "record-sets": "tests.fuzz.targets.record_sets:RecordSets",
        "rows": "tests.fuzz.targets.record_sets:Rows",
        "payloads": "tests.fuzz.targets.record_sets:Payloads",
        "responses": "tests.fuzz.targets.messages:Responses",
        "small-answers": "tests.fuzz.targets.small_answers:SmallAnswers",
        "consumer-protocol": "tests.fuzz.targets.messages:ConsumerProtocol",
        "requests": "tests.fuzz.targets.requests:Requests",
        "requests-with-sasl": "tests.fuzz.targets.requests:RequestsWithSasl",
        "sasl-server": "tests.fuzz.targets.sasl:SaslServers",
        "sasl-client": "tests.fuzz.targets.sasl:SaslClients",
        "coordinator-records": "tests.fuzz.targets.logs:CoordinatorRecords",
        "data-directory": "tests.fuzz.targets.logs:Directories",
        "spark-options": "tests.fuzz.targets.spark:Options",
        "spark-checkpoints": "tests.fuzz.targets.spark:Checkpoints",
    }
)
"""Where each target is. A module is imported in the process that fuzzes it."""

PLANTED: Final = "tests.fuzz.planted"


def missing(name: str) -> str:
    """Return what a target needs and is not here; "" if it can run."""
    if name == "rows" and importlib.util.find_spec("pyarrow") is None:
        return "rows are for pyarrow: pip install pyarrow"
    if name == "small-answers":
        # Late: `guided.py` instruments what is imported after this module.
        from aiokafka_lite.records import COMPILED

        if not COMPILED:
            return "small answers are for compiled modules, which are not used"
    return ""


def make(name: str) -> Target:
    """Return a target: one of the list, or one that breaks a rule (`planted:Crash`)."""
    module, _, attribute = name.replace("planted:", f"{PLANTED}:").rpartition(":")
    if not module:
        module, _, attribute = TARGETS[name].partition(":")
    target = getattr(importlib.import_module(module), attribute)()
    assert isinstance(target, Target)
    return target
