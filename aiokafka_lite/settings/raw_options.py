"""Options as text, by the rules of Java and Spark. Names are case-insensitive.

References: Java's `Integer.parseInt`, Scala's `toBoolean`, Spark's `JavaUtils.timeStringAs`,
Kafka's `ConfigDef.parseType`, and Jackson for JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from aiokafka_lite.client.config import rule_of_text
from aiokafka_lite.errors import OptionError
from aiokafka_lite.structs import TopicPartition

MAX_INT: Final = (1 << 31) - 1
MAX_LONG: Final = (1 << 63) - 1
MAX_SHOWN_CHARACTERS: Final = 200

_SPACE: Final = "".join(map(chr, range(33)))  # Java's trim()
_INTEGER: Final = re.compile(r"[+-]?\d+")
_DURATION: Final = re.compile(r"(-?[0-9]{1,40})([a-z]*)")
_UNITS_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_MAY_HAVE_SPACES: Final = re.compile(r"^kafka\.|Timestamp$")
# The path of a file of secrets is not secret.
_SECRET: Final = re.compile(r"^(?!.*\.location$).*(password|jaas|secret|token|certificate|\.key$)")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def trimmed(text: str) -> str:
    """Strip as Java's `trim()` does."""
    return text.strip(_SPACE)


class RawOptions:
    """The options of a query as text. `warnings` are messages for the user that are not errors.

    Only Kafka's own numbers and booleans, and timestamps, may have spaces around them. An
    OptionError names the option, its value, and the rule.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options: Final = {name.lower(): value for name, value in options.items()}
        self.warnings: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._options

    def names(self) -> Iterable[str]:
        """Return all given names, in lower case."""
        return self._options.keys()

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def sent_text(self, name: str) -> str | None:
        """Return a text that requests contain."""
        text = self.text(name)
        if text is not None and (rule := rule_of_text(text)) is not None:
            raise self.refusal(name, f"the value {rule}")
        return text

    def refusal(self, name: str, rule: str) -> OptionError:
        """Return the error that names an option and, unless it may be secret, shows its value."""
        if _SECRET.search(name):
            return OptionError(f"option {name} (value hidden): {rule}")
        value = self._options[name.lower()]
        shown = repr(value[:MAX_SHOWN_CHARACTERS])
        if len(value) > MAX_SHOWN_CHARACTERS:
            shown += f" and {len(value) - MAX_SHOWN_CHARACTERS} more characters"
        return OptionError(f"option {name} is {shown}: {rule}")

    def _word(self, name: str) -> str | None:
        text = self._options.get(name.lower())
        return trimmed(text) if text is not None and _MAY_HAVE_SPACES.search(name) else text

    def integer(self, name: str, *, at_least: int, at_most: int = MAX_LONG) -> int | None:
        """Return a whole number, if it was given."""
        text = self._word(name)
        if text is None:
            return None
        number = _integer(text)
        if number is None or not at_least <= number <= at_most:
            limit = f"at least {at_least}" if number is None or number < at_least else ""
            raise self.refusal(
                name, f"the value must be a whole number, {limit or f'at most {at_most}'}"
            )
        return number

    def number(self, name: str, default: int, *, at_least: int, at_most: int = MAX_LONG) -> int:
        number = self.integer(name, at_least=at_least, at_most=at_most)
        return default if number is None else number

    def seconds(
        self, name: str, default_s: float, *, at_least: int = 0, at_most: int = MAX_LONG
    ) -> float:
        """Return a whole number of milliseconds in seconds, or a default."""
        number_ms = self.integer(name, at_least=at_least, at_most=at_most)
        return default_s if number_ms is None else number_ms / 1000

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return whether an option is "true", in any case."""
        text = self._word(name)
        if text is None:
            return default
        word = text.lower()
        if word not in ("true", "false"):
            raise self.refusal(name, "the value must be true or false")
        return word == "true"

    def duration_s(self, name: str, default_s: float) -> float:
        """Return a duration such as "15m", "1h" or "500" (milliseconds) in seconds."""
        text = self._options.get(name.lower())
        if text is None:
            return default_s
        match = _DURATION.fullmatch(trimmed(text.lower()))
        unit_ms = _UNITS_MS.get(match[2]) if match else None
        if match is None or unit_ms is None or abs(int(match[1])) > MAX_LONG:
            raise self.refusal(
                name,
                "the value must be a number with a unit (us, ms, s, m or min, h, d), such as '15m'",
            )
        return int(int(match[1]) * unit_ms) / 1000

    def partitions(self, name: str) -> tuple[TopicPartition, ...]:
        """Return the partitions in JSON such as ``{"flights": [0, 1]}``."""
        form = 'JSON like {"flights":[0,1]}'
        found: dict[TopicPartition, None] = {}
        for topic, numbers in self._json(name, form).items():
            if not isinstance(numbers, list):
                raise self.refusal(
                    name, f"the value must be {form}, but the entry for {topic!r} is not a list"
                )
            for number in numbers:
                found[self._partition(name, topic, number, form)] = None
        if not found:
            raise self.refusal(name, f"the value contains no partitions, but must be {form}")
        return tuple(found)

    def by_partition(self, name: str, form: str, *, at_least: int) -> dict[TopicPartition, int]:
        """Return the numbers in JSON such as ``{"flights": {"0": 23, "1": 345}}``."""
        found: dict[TopicPartition, int] = {}
        for topic, numbers in self._json(name, form).items():
            if not isinstance(numbers, dict):
                raise self.refusal(
                    name,
                    f"the value must be {form}, but the entry for {topic!r} is not a JSON object",
                )
            for partition, number in numbers.items():
                tp = self._partition(name, topic, _integer(partition), form)
                value = _json_integer(number)
                if value is None or not at_least <= value <= MAX_LONG:
                    raise self.refusal(
                        name,
                        f"the number for partition {tp.partition} of topic {topic!r} is "
                        f"{number!r}, but must be a whole number, at least {at_least}",
                    )
                found[tp] = value
        return found

    def _json(self, name: str, form: str) -> dict[str, object]:
        text = self._options[name.lower()]
        try:
            read: object = json.loads(trimmed(text), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise self.refusal(name, f"the value must be {form} ({error})") from error
        if not isinstance(read, dict):
            raise self.refusal(name, f"the value must be {form}")
        return read

    def _partition(self, name: str, topic: str, number: object, form: str) -> TopicPartition:
        if not is_topic_name(topic):
            raise self.refusal(name, f"{topic!r} is not a valid topic name")
        partition = _json_integer(number)
        if partition is None or not 0 <= partition <= MAX_INT:
            raise self.refusal(
                name, f"topic {topic!r} has an invalid partition number: the value must be {form}"
            )
        return TopicPartition(topic, partition)


def is_topic_name(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def _integer(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) and len(text) < 40 else None


def _json_integer(value: object) -> int | None:
    """Return a whole number of JSON, which may end in ".0"."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid in JSON")
