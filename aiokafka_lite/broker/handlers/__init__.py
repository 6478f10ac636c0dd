"""One module per API, each headed by its versions and what they changed."""

from __future__ import annotations

import importlib
from typing import Final

MODULES: Final = (
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "alter_configs",
    "alter_user_scram_credentials",
    "api_versions",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "create_partitions",
    "create_topics",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_producers",
    "describe_topic_partitions",
    "describe_transactions",
    "describe_user_scram_credentials",
    "end_txn",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "incremental_alter_configs",
    "init_producer_id",
    "join_group",
    "leave_group",
    "list_groups",
    "list_offsets",
    "list_transactions",
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "sasl_authenticate",
    "sasl_handshake",
    "sync_group",
    "txn_offset_commit",
    "write_txn_markers",
)


def load() -> None:
    """Import every handler, which fills the registry; handlers may import the broker's types."""
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}")
