"""Makes ``import aiokafka`` load this package's consumer and producer.

For code that cannot be changed, such as FastStream. In the program's first lines::

    from aiokafka_lite import as_aiokafka

    as_aiokafka.install()

    from faststream.kafka import KafkaBroker

aiokafka has to be installed: its admin client, and other parts that this package does not have,
stay aiokafka's. They use this package's errors and structs. The inner parts of aiokafka's consumer
and producer, which some programs import or patch by name, exist but have no effect.

``aiokafka.AIOKafkaConsumer`` then has aiokafka's defaults for groups: ``group_protocol`` is
"classic", and the assignor is round robin.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

__all__ = ["install", "is_installed"]

# In the order in which packages come before what is in them.
MODULES: Final = (
    "abc",
    "errors",
    "helpers",
    "structs",
    "coordinator",
    "coordinator.protocol",
    "coordinator.assignors",
    "coordinator.assignors.abstract",
    "coordinator.assignors.range",
    "coordinator.assignors.roundrobin",
    "coordinator.assignors.sticky",
    "coordinator.assignors.sticky.sticky_assignor",
    "producer",
    "producer.producer",
)
# With aiokafka's defaults.
CONSUMER: Final = ("consumer", "consumer.consumer")
# Of aiokafka's, beside ours: programs reach them as attributes, too.
INNER_PARTS: Final = (
    "consumer.fetcher",
    "consumer.group_coordinator",
    "consumer.subscription_state",
    "producer.message_accumulator",
    "producer.sender",
    "producer.transaction_manager",
)


def install() -> None:
    """Replace aiokafka's modules with this package's, in the whole process.

    Raises:
        RuntimeError: aiokafka was imported before, so other modules may refer to its classes.
        ImportError: aiokafka is not installed.
    """
    if is_installed():
        return
    if "aiokafka" in sys.modules:
        raise RuntimeError(
            "aiokafka has already been imported: call install() before the first import of "
            "aiokafka. If that is impossible (opentelemetry-instrument imports aiokafka before "
            "the program starts), import AIOKafkaConsumer from aiokafka_lite. Instrumentation of "
            "aiokafka's classes does not cover aiokafka_lite.AIOKafkaConsumer"
        )
    ours = {f"aiokafka.{name}": import_module(f"aiokafka_lite.{name}") for name in MODULES}
    ours |= {f"aiokafka.{name}": import_module(f"{__name__}.{name}") for name in CONSUMER}
    sys.modules.update(ours)
    try:
        aiokafka = import_module("aiokafka")
    except ImportError as error:
        for name in ours:
            del sys.modules[name]
        raise ImportError(
            "aiokafka is not installed: install() needs aiokafka for the parts of its API that "
            "aiokafka_lite lacks, such as the admin client. Run pip install "
            "aiokafka-lite[aiokafka], or pip install aiokafka"
        ) from error
    for name, module in ours.items():
        if name.count(".") == 1:
            setattr(aiokafka, name.rpartition(".")[2], module)
        if hasattr(module, "__path__"):  # what is not found here is aiokafka's own
            folders = [Path(folder, *name.split(".")[1:]) for folder in aiokafka.__path__]
            module.__path__ = [*module.__path__, *map(str, folders)]
    for name in INNER_PARTS:
        import_module(f"aiokafka.{name}")


def is_installed() -> bool:
    """Whether `install` was called."""
    return sys.modules.get("aiokafka.consumer") is sys.modules.get(f"{__name__}.consumer", ...)
