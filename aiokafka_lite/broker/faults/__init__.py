"""Faults for tests, which the broker applies to chosen requests and connections.

builder.py    `broker.on(...)`, `broker.on_connect(...)` and their methods
rules.py      the requests or connections of a rule, how often it applies, its action
handling.py   actions on a request, before it is handled or instead
answering.py  actions on the response, as a message or as bytes
"""

from __future__ import annotations

from aiokafka_lite.broker.faults.answering import FrameFate
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
