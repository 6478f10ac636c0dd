"""The consumer with aiokafka's defaults: takes the place of ``aiokafka.consumer.consumer``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite._compat import KT, VT
from aiokafka_lite._settings import takes_arguments_of, with_defaults
from aiokafka_lite.consumer import consumer
from aiokafka_lite.consumer.assignors import RoundRobinPartitionAssignor
from aiokafka_lite.consumer.config import ConsumerConfig

__all__ = ["AIOKafkaConsumer"]


class AiokafkasConfig(ConsumerConfig[KT, VT]):
    if not TYPE_CHECKING:
        __init__ = with_defaults(
            ConsumerConfig.__init__,
            group_protocol="classic",
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        )


class AIOKafkaConsumer(consumer.AIOKafkaConsumer[KT, VT]):
    """This package's consumer with aiokafka's defaults: "classic" groups and round robin."""

    @takes_arguments_of(AiokafkasConfig)
    def __init__(self, config: AiokafkasConfig[KT, VT]) -> None:
        self._configure(config)
