"""Definition of a setting: name, type, allowed values, default.

Kafka: org.apache.kafka.common.config.ConfigDef, with its error messages, which users search for.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from aiokafka_lite.errors import InvalidConfigurationError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

Value: TypeAlias = "int | float | bool | str | list[str]"


class ConfigType(enum.IntEnum):
    """The type of a setting, as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class ConfigSource(enum.IntEnum):
    """The source of a value (DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    NODE = 2  # set for one node at run time
    CLUSTER = 3  # set for all nodes at run time
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


Check: TypeAlias = Callable[[str, Value], None]
"""Takes a setting's name and value. Raises InvalidConfigurationError."""


def in_range(lowest: float, highest: float = math.inf, also: int | None = None) -> Check:
    """Allow numbers from `lowest` to `highest`, and `also`."""

    def check(name: str, value: Value) -> None:
        number = cast("float", value)
        is_low = number < lowest
        if number == also or not (is_low or number > highest):
            return
        legal = f"at least {lowest}" if is_low else f"no more than {highest}"
        if also is not None:
            legal = f"between {lowest} and {highest} or equal to {also}"
        raise invalid(name, value, f"Value must be {legal}")

    return check


def one_of(*words: str) -> Check:
    def check(name: str, value: Value) -> None:
        for item in value if isinstance(value, list) else [value]:
            if item not in words:
                raise invalid(name, item, f"String must be one of: {', '.join(words)}")

    return check


@dataclass(frozen=True)
class ConfigDef:
    """One setting.

    Attributes:
        broker_name: The broker's setting that is the default of a topic's or group's, or "".
        is_dynamic: May change while brokers run.
    """

    name: str
    kind: ConfigType
    default: str | None
    check: Check | None = None
    documentation: str = ""
    broker_name: str = ""
    is_dynamic: bool = True

    @property
    def is_sensitive(self) -> bool:
        """The value is never returned."""
        return self.kind is ConfigType.PASSWORD

    def parse(self, text: str) -> Value:
        """Return the parsed value, or raise InvalidConfigurationError."""
        value = _parsed(self.name, self.kind, text.strip())
        if self.check is not None:
            self.check(self.name, value)
        return value


def by_name(defs: Iterable[ConfigDef]) -> Mapping[str, ConfigDef]:
    return {each.name: each for each in sorted(defs, key=lambda each: each.name)}


def split_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _parsed(name: str, kind: ConfigType, text: str) -> Value:
    match kind:
        case ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise invalid(name, text, "Expected value to be either true or false")
            return text.lower() == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            bits = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}[kind]
            try:
                number: int | None = int(text)
            except ValueError:
                number = None
            if number is None or not -(1 << bits) <= number < 1 << bits or "_" in text:
                raise invalid(name, text, f"Not a number of type {kind.name}")
            return number
        case ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise invalid(name, text, f"Not a number of type {kind.name}") from None
        case ConfigType.LIST:
            return split_list(text)
        case _:
            return text


def invalid(name: str, value: Value, complaint: str) -> InvalidConfigurationError:
    shown = f"[{', '.join(value)}]" if isinstance(value, list) else value
    return InvalidConfigurationError(f"Invalid value {shown} for configuration {name}: {complaint}")
