"""Faults for tests, which the broker applies to chosen requests and connections."""

from __future__ import annotations

from aiokafka_lite.broker.faults.actions import FrameFate
from aiokafka_lite.broker.faults.builder import ConnectionRuleBuilder, RuleBuilder
from aiokafka_lite.broker.faults.rules import ConnectionRule, Faults, Rule

CLOSE = FrameFate.CLOSE
DROP = FrameFate.DROP

__all__ = [
    "CLOSE",
    "DROP",
    "ConnectionRule",
    "ConnectionRuleBuilder",
    "Faults",
    "FrameFate",
    "Rule",
    "RuleBuilder",
]
