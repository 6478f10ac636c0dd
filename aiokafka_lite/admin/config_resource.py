"""aiokafka's module path for what its admin client configures."""

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

__all__ = ["ConfigResource", "ConfigResourceType"]
__getattr__ = lend(__name__, (*__all__,))
