"""Error codes, error messages and authorized operations of responses."""

from __future__ import annotations

from typing import Final

from aiokafka_lite.errors import BrokerResponseError, KafkaError, UnknownError

# Bits of org.apache.kafka.common.acl.AclOperation (KIP-430). Without an authorizer, all operations
# of a resource are allowed.
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
GROUP_OPERATIONS: Final = sum(1 << bit for bit in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED: Final = -(2**31)


def code_of(error: KafkaError) -> int:
    return error.errno if isinstance(error, BrokerResponseError) else UnknownError.errno


def text_of(error: KafkaError) -> str:
    """Return the error's message, without its name and number."""
    if error.args:
        return str(error.args[0])
    return error.description if isinstance(error, BrokerResponseError) else str(error)
