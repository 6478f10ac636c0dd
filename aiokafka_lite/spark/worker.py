"""State of a Python worker that later tasks reuse.

With connections, metadata and record sizes of earlier tasks, a task's first request is its first
Fetch. Every reader borrows a cluster of its own. A forked child begins without this state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Final, TypeAlias

from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.spark.options import SourceOptions, parse_options

_Key: TypeAlias = frozenset[tuple[str, str]]

# The number of options and clusters that are kept: the most recently used ones.
MOST_KEPT: Final = 8
MOST_TOPICS: Final = 10_000


class _Kept:
    """All of the state in one object, so that a fork can drop it."""

    def __init__(self) -> None:
        self.options: dict[tuple[bool, _Key], SourceOptions] = {}
        self.cluster_keys: dict[int, _Key] = {}  # by id of options that are kept
        self.clusters: dict[_Key, list[BlockingCluster]] = {}
        self.record_bytes: dict[str, float] = {}


_kept = _Kept()


def _forget() -> None:
    global _kept
    _kept = _Kept()  # the parent's clusters stay open, because only the parent may close them


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def options_of(raw: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Return the parsed options: the same object for the same text, so that clusters are shared."""
    lowered = frozenset((name.lower(), value) for name, value in raw.items())
    key = (is_streaming, lowered)
    options = _kept.options.pop(key, None)
    if options is None:
        options = parse_options(raw, is_streaming=is_streaming)
        cluster_key = frozenset(item for item in lowered if item[0].startswith("kafka."))
        _kept.cluster_keys[id(options)] = cluster_key
        while len(_kept.options) >= MOST_KEPT:
            oldest = _kept.options.pop(next(iter(_kept.options)))
            del _kept.cluster_keys[id(oldest)]
    _kept.options[key] = options  # after those that were not used since
    return options


@contextmanager
def borrowed_cluster(options: SourceOptions) -> Iterator[BlockingCluster]:
    """Lend a cluster, possibly with open connections and metadata, to the with block."""
    kept = _kept
    key = kept.cluster_keys.get(id(options))
    idle = [] if key is None else kept.clusters.pop(key, [])
    cluster = idle.pop() if idle else new_cluster(options)
    if key is not None and idle:
        kept.clusters[key] = idle
    try:
        yield cluster
    finally:
        if key is None or kept is not _kept:
            cluster.close()
        else:
            cluster.settle()
            kept.clusters.setdefault(key, []).append(cluster)
            while sum(map(len, kept.clusters.values())) > MOST_KEPT:
                oldest, clusters = next(iter(kept.clusters.items()))
                clusters.pop(0).close()
                if not clusters:
                    del kept.clusters[oldest]


def new_cluster(options: SourceOptions) -> BlockingCluster:
    size = options.receive_buffer_bytes
    return BlockingCluster(
        options.client,
        mechanism=options.mechanism,
        receive_buffer_bytes=size if size > 0 else None,
    )


def record_sizes() -> MutableMapping[str, float]:
    if len(_kept.record_bytes) > MOST_TOPICS:
        _kept.record_bytes.clear()
    return _kept.record_bytes


def close_all() -> None:
    """Close and forget everything, such as after a test."""
    kept = _kept
    _forget()
    for clusters in kept.clusters.values():
        for cluster in clusters:
            cluster.close()
