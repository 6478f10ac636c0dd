"""What answers have in common."""

from __future__ import annotations

from typing import Final

from aiokafka_lite.errors import BrokerResponseError, KafkaError, UnknownError

# Bits of org.apache.kafka.common.acl.AclOperation: without an authorizer everyone may do all
# that a resource of the kind knows (KIP-430).
TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED: Final = -(2**31)


def code_of(error: KafkaError) -> int:
    """Return the code that tells a client of an error."""
    return error.errno if isinstance(error, BrokerResponseError) else UnknownError.errno


def text_of(error: KafkaError) -> str:
    """Return what an error says, without its name and number."""
    if error.args:
        return str(error.args[0])
    return error.description if isinstance(error, BrokerResponseError) else str(error)
