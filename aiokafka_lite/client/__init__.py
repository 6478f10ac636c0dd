"""Access to one cluster. aiokafka's low-level client is lent under this path, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.client import AIOKafkaClient as AIOKafkaClient

__all__: list[str] = []
__getattr__ = lend(__name__, ("AIOKafkaClient", "ConnectionGroup", "CoordinationType"))
