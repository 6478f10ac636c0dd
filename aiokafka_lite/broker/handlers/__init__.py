"""One module per API, each headed by its versions and what they changed."""

from __future__ import annotations

import importlib
from typing import Final

MODULES: Final = (
    "api_versions",
    "create_partitions",
    "create_topics",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_cluster",
    "describe_groups",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "init_producer_id",
    "join_group",
    "leave_group",
    "list_groups",
    "list_offsets",
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "produce",
    "sync_group",
)


def load() -> None:
    """Import every handler, which fills the registry; handlers may import the broker's types."""
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}")
