"""aiokafka's module path for a topic to be created."""

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.admin.new_topic import NewTopic

__all__ = ["NewTopic"]
__getattr__ = lend(__name__, (*__all__,))
