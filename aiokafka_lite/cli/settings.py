"""Settings of topics and groups: `topics config` and `share config` show and change them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from aiokafka_lite._settings import nearest
from aiokafka_lite.cli.arguments import AS_JSON
from aiokafka_lite.cli.asking import look_until, reason_of
from aiokafka_lite.cli.output import Row, columns, print_rows
from aiokafka_lite.cli.problems import UsageError, raise_if_any
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
)

SET: Final = 0
UNSET: Final = 1
# The sources of settings (KIP-226, KIP-848).
DEFAULT: Final = 5
OWN: Final = (1, 8)
_SOURCES: Final = {
    1: "topic", 2: "broker", 3: "cluster", 4: "server.properties", DEFAULT: "default", 8: "group",
}  # fmt: skip
# How long other brokers may take to learn of a change that the controller has made.
SPREAD_TIMEOUT_S: Final = 2.0


class Resource(NamedTuple):
    """A kind of resources, by the number of Kafka's `ConfigResource.Type`."""

    type: int
    noun: str
    #: The beginning of the names of its settings here. The others are neither shown nor changed.
    prefix: str = ""


CONFIG_OPTIONS: Final = f"""\
--set NAME=VALUE ...  a setting to change (repeatable)
--unset NAME ...  a setting to remove, so that the cluster's value applies (repeatable)
--every  also show settings that have their default values
{AS_JSON}"""

TOPICS: Final = Resource(2, "topic")
SHARE_GROUPS: Final = Resource(32, "group", "share.")


def show_or_change(
    cluster: BlockingCluster,
    resource: Resource,
    names: Sequence[str],
    options: argparse.Namespace,
) -> None:
    """Change the settings that the options of `CONFIG_OPTIONS` name, and print the settings."""
    before = read_settings(cluster, resource, names)
    if options.set or options.unset:
        _change(cluster, resource, options, before)
        before = _changed_settings(cluster, resource, names, options)
    rows = [
        _row(resource, result.resource_name, each)
        for result in before
        for each in result.configs
        if options.every or _differs(each)
    ]
    shown = columns(f"{resource.noun}, name: setting, value, source: set in, default")
    print_rows(rows, shown, as_json=options.json)
    if not rows and not options.json:
        print("all settings have their default values", file=sys.stderr)


def read_settings(
    cluster: BlockingCluster, resource: Resource, names: Iterable[str]
) -> list[DescribeConfigsResult]:
    resources = [
        DescribeConfigsResource(
            resource_type=resource.type, resource_name=name, configuration_keys=None
        )
        for name in names
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
    results = cluster.request_any(request).results
    raise_if_any(
        [
            f"settings of {each.resource_name} cannot be read: {reason_of(each.error_code)}"
            for each in results
            if each.error_code
        ]
    )
    for each in results:
        each.configs = [one for one in each.configs if one.name.startswith(resource.prefix)]
    return results


def _changed_settings(
    cluster: BlockingCluster,
    resource: Resource,
    names: Sequence[str],
    options: argparse.Namespace,
) -> list[DescribeConfigsResult]:
    """Return the settings once the broker that is asked has the changes, or after some seconds.

    Kafka's controller responds before other brokers have them.
    """
    wanted = {*options.set, *((name, None) for name in options.unset)}
    wanted_names = {name for name, _ in wanted}

    def is_changed(results: Sequence[DescribeConfigsResult]) -> bool:
        return all(
            (each.name, each.value if each.config_source in OWN else None) in wanted
            for result in results
            for each in result.configs
            if each.name in wanted_names
        )

    return look_until(lambda: read_settings(cluster, resource, names), is_changed, SPREAD_TIMEOUT_S)


def _differs(setting: DescribeConfigsResourceResult) -> bool:
    """Whether a setting is the resource's own, or the cluster's with a non-default value."""
    if setting.config_source in (*OWN, DEFAULT) or not setting.synonyms:
        return setting.config_source != DEFAULT
    first, last = setting.synonyms[0], setting.synonyms[-1]
    return (first.name, first.value) != (last.name, last.value)


def _row(resource: Resource, name: str, setting: DescribeConfigsResourceResult) -> Row:
    default = next((each for each in setting.synonyms if each.source == DEFAULT), None)
    text = None if default is None else default.value
    if default is not None and default.name != setting.name:  # the broker's, in its own unit
        text = f"{default.name}={default.value}"
    return {
        resource.noun: name,
        "name": setting.name,
        "value": setting.value,
        "source": _SOURCES.get(setting.config_source, "unknown"),
        "default": text,
    }


def _change(
    cluster: BlockingCluster,
    resource: Resource,
    options: argparse.Namespace,
    before: Sequence[DescribeConfigsResult],
) -> None:
    named = [*(name for name, _ in options.set), *options.unset]
    known = {each.name for result in before for each in result.configs}
    for name in named:
        if name not in known:
            raise UsageError(f"{resource.noun}s have no setting {name}{nearest(name, known)}")
        if named.count(name) > 1:
            raise UsageError(f"{name} is named twice")
    changes = [
        *[AlterableConfig(name=n, config_operation=SET, value=v) for n, v in options.set],
        *[AlterableConfig(name=n, config_operation=UNSET, value=None) for n in options.unset],
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=resource.type, resource_name=each.resource_name, configs=changes
            )
            for each in before
        ]
    )
    raise_if_any(
        [
            f"{each.resource_name} was not changed: "
            f"{reason_of(each.error_code, each.error_message)}"
            for each in cluster.request_any(request).responses
            if each.error_code
        ]
    )
