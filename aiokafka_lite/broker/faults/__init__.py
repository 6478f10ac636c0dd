"""Faults as methods: a broker that fails where, how and as often as a test says.

    rules.py        which requests a rule is for, how often, and what it does: `broker.on(...)`
    handling.py     actions on a request, before it is handled or instead
    answering.py    actions on the answer, as a message or as bytes
    refusals.py     the answer that refuses a request: an error where that API has its errors
    connections.py  what a connection meets before its first request: `broker.on_connect(...)`

Nothing here costs anything while there is no rule: the reactor tests one attribute.
"""

from __future__ import annotations

from aiokafka_lite.broker.faults.answering import FrameFate
from aiokafka_lite.broker.faults.builder import RuleBuilder
from aiokafka_lite.broker.faults.connections import ConnectionRule, ConnectionRuleBuilder
from aiokafka_lite.broker.faults.rules import Faults, Rule

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
