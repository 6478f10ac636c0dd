"""The requests that are spoken, by Kafka's API key.

A message's module is imported when its key is first looked up: a consumer needs half of them.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, cast

from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.schema import Request, Response

API_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "Produce",
        1: "Fetch",
        2: "ListOffsets",
        3: "Metadata",
        8: "OffsetCommit",
        9: "OffsetFetch",
        10: "FindCoordinator",
        11: "JoinGroup",
        12: "Heartbeat",
        13: "LeaveGroup",
        14: "SyncGroup",
        15: "DescribeGroups",
        16: "ListGroups",
        17: "SaslHandshake",
        18: "ApiVersions",
        19: "CreateTopics",
        20: "DeleteTopics",
        21: "DeleteRecords",
        22: "InitProducerId",
        23: "OffsetForLeaderEpoch",
        24: "AddPartitionsToTxn",
        25: "AddOffsetsToTxn",
        26: "EndTxn",
        27: "WriteTxnMarkers",
        28: "TxnOffsetCommit",
        32: "DescribeConfigs",
        33: "AlterConfigs",
        35: "DescribeLogDirs",
        36: "SaslAuthenticate",
        37: "CreatePartitions",
        42: "DeleteGroups",
        44: "IncrementalAlterConfigs",
        47: "OffsetDelete",
        50: "DescribeUserScramCredentials",
        51: "AlterUserScramCredentials",
        60: "DescribeCluster",
        61: "DescribeProducers",
        65: "DescribeTransactions",
        66: "ListTransactions",
        68: "ConsumerGroupHeartbeat",
        69: "ConsumerGroupDescribe",
        75: "DescribeTopicPartitions",
    }
)
"""Kafka's name of each API by its key."""

API_KEYS: Final[Mapping[str, int]] = MappingProxyType({n: k for k, n in API_NAMES.items()})
"""Kafka's key of each API by its name."""


@functools.cache
def request_class(api_key: int) -> type[Request[Response]]:
    """Return the request of an API key.

    Raises:
        UnsupportedVersionError: The API is not spoken.
    """
    name = API_NAMES.get(api_key)
    if name is None:
        raise UnsupportedVersionError(f"aiokafka_lite does not support API key {api_key}")
    snake_case = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    module = importlib.import_module(f"aiokafka_lite.protocol.messages.{snake_case}")
    return cast("type[Request[Response]]", getattr(module, f"{name}Request"))


class _Requests(Mapping[int, type[Request[Response]]]):
    """The request classes by API key, imported as they are asked for."""

    def __getitem__(self, api_key: int) -> type[Request[Response]]:
        if api_key not in API_NAMES:
            raise KeyError(api_key)
        return request_class(api_key)

    def __iter__(self) -> Iterator[int]:
        return iter(API_NAMES)

    def __len__(self) -> int:
        return len(API_NAMES)


REQUESTS: Final = _Requests()
