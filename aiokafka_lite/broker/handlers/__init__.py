"""One module per API, each headed by its versions and what they changed."""

from __future__ import annotations

import importlib
from typing import Final, TypeAlias

from aiokafka_lite._arguments import expected, is_int
from aiokafka_lite._nearest import nearest
from aiokafka_lite.broker.handlers.registry import HANDLERS
from aiokafka_lite.protocol.registry import API_KEYS, API_NAMES
from aiokafka_lite.protocol.schema import Request, Response

Api: TypeAlias = type[Request[Response]] | str | int | None
"""A request's class, the API's name ("Fetch"), or its key; None is every API."""

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
    """Import every handler, which fills the registry."""
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}")


def api_key_of(api: Api) -> int | None:
    """Return the key of an API that the broker has, or None for all APIs.

    Raises:
        ValueError: The broker has no such API. The message lists its APIs.
        TypeError: It is neither a class, nor a name, nor a number.
    """
    if api is None:
        return None
    if not isinstance(api, type | str) and not is_int(api):
        raise TypeError(expected("api", "a request class, an API name or an API key", api))
    if isinstance(api, type):
        key: int | None = getattr(api, "api_key", None)
    else:
        key = API_KEYS.get(api.removesuffix("Request")) if isinstance(api, str) else api
    load()
    if key is None or key not in HANDLERS:
        said = api.__name__ if isinstance(api, type) else repr(api)
        names = sorted(API_NAMES[each] for each in HANDLERS)
        raise ValueError(
            f"{said} is not an API of this broker, so no request would ever "
            f"match{nearest(str(api), names)}. The APIs are {', '.join(names)}"
        )
    return key
