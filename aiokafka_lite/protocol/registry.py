"""Request classes by Kafka's API key. A key's module is imported when it is first looked up."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Final, cast

from aiokafka_lite.protocol.schema import Request, Response

_APIS: Final[Mapping[int, tuple[str, str]]] = {
    0: ("Produce", "produce"),
    1: ("Fetch", "fetch"),
    2: ("ListOffsets", "offsets"),
    3: ("Metadata", "metadata"),
    8: ("OffsetCommit", "offsets"),
    9: ("OffsetFetch", "offsets"),
    10: ("FindCoordinator", "metadata"),
    11: ("JoinGroup", "group_members"),
    12: ("Heartbeat", "group_members"),
    13: ("LeaveGroup", "group_members"),
    14: ("SyncGroup", "group_members"),
    15: ("DescribeGroups", "groups"),
    16: ("ListGroups", "groups"),
    17: ("SaslHandshake", "sasl"),
    18: ("ApiVersions", "metadata"),
    19: ("CreateTopics", "topics"),
    20: ("DeleteTopics", "topics"),
    21: ("DeleteRecords", "topics"),
    22: ("InitProducerId", "transactions"),
    23: ("OffsetForLeaderEpoch", "offsets"),
    24: ("AddPartitionsToTxn", "transactions"),
    25: ("AddOffsetsToTxn", "transactions"),
    26: ("EndTxn", "transactions"),
    27: ("WriteTxnMarkers", "transactions"),
    28: ("TxnOffsetCommit", "transactions"),
    32: ("DescribeConfigs", "configs"),
    33: ("AlterConfigs", "alter_configs"),
    35: ("DescribeLogDirs", "cluster"),
    36: ("SaslAuthenticate", "sasl"),
    37: ("CreatePartitions", "topics"),
    42: ("DeleteGroups", "groups"),
    44: ("IncrementalAlterConfigs", "configs"),
    47: ("OffsetDelete", "offsets"),
    50: ("DescribeUserScramCredentials", "sasl"),
    51: ("AlterUserScramCredentials", "sasl"),
    60: ("DescribeCluster", "cluster"),
    61: ("DescribeProducers", "transactions"),
    65: ("DescribeTransactions", "transactions"),
    66: ("ListTransactions", "list_transactions"),
    68: ("ConsumerGroupHeartbeat", "group_members"),
    69: ("ConsumerGroupDescribe", "consumer_group_describe"),
    75: ("DescribeTopicPartitions", "cluster"),
    76: ("ShareGroupHeartbeat", "share"),
    77: ("ShareGroupDescribe", "share_groups"),
    78: ("ShareFetch", "share"),
    79: ("ShareAcknowledge", "share_acknowledge"),
    90: ("DescribeShareGroupOffsets", "share_groups"),
    91: ("AlterShareGroupOffsets", "share_groups"),
    92: ("DeleteShareGroupOffsets", "share_groups"),
}
"""Kafka's name of each API by its key, and the module in `messages` that declares it."""

API_NAMES: Final[Mapping[int, str]] = {k: n for k, (n, _) in _APIS.items()}
API_KEYS: Final[Mapping[str, int]] = {n: k for k, n in API_NAMES.items()}


@functools.cache
def _load(api_key: int) -> type[Request[Response]]:
    name, module_name = _APIS[api_key]
    module = importlib.import_module(f"aiokafka_lite.protocol.messages.{module_name}")
    return cast("type[Request[Response]]", getattr(module, f"{name}Request"))


class _Requests(Mapping[int, type[Request[Response]]]):
    def __getitem__(self, api_key: int) -> type[Request[Response]]:
        return _load(api_key)

    def __iter__(self) -> Iterator[int]:
        return iter(_APIS)

    def __len__(self) -> int:
        return len(_APIS)


REQUESTS: Final = _Requests()
