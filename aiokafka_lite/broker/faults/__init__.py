"""Faults as methods: a broker that fails where, how and as often as a test needs.

    rules.py        the requests of a rule, how often it applies, its action: `broker.on(...)`
    handling.py     actions on a request, before it is handled or instead
    answering.py    actions on the response, as a message or as bytes
    connections.py  faults of connections, before the first request: `broker.on_connect(...)`

`network/work.py` declares the methods that the network calls (`FaultPort`). Without rules a request
costs one test of an attribute.
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
