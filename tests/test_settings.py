"""Settings: what a frozen, keyword-only dataclass promises, at less expense."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from aiokafka_lite._settings import Settings


class Oven(Settings):
    secrets = frozenset({"code"})

    degrees: int = 180
    code: str | None = None

    def _check(self) -> None:
        if self.degrees < 0:
            raise ValueError("degrees is not negative")


def test_what_is_not_given_is_the_default() -> None:
    assert (Oven().degrees, Oven(degrees=200).degrees, Oven(degrees=200).code) == (180, 200, None)


def test_settings_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="negative"):
        Oven(degrees=-1)


def test_unknown_settings_are_refused_by_name() -> None:
    given: dict[str, Any] = {"degree": 1}
    with pytest.raises(TypeError, match="Oven has no setting degree"):
        Oven(**given)


@pytest.mark.parametrize("name", ["degrees", "code", "other"])
def test_settings_do_not_change(name: str) -> None:
    oven = Oven(degrees=200, code="1234")
    with pytest.raises(AttributeError, match="is immutable"):
        setattr(oven, name, 1)
    with pytest.raises(AttributeError, match="is immutable"):
        delattr(oven, name)
    assert (oven.degrees, oven.code) == (200, "1234")


def test_repr_shows_what_was_given_but_for_secrets() -> None:
    assert repr(Oven(code="1234", degrees=200)) == "Oven(degrees=200)"
    assert repr(Oven()) == "Oven()"


@pytest.mark.parametrize("copied", [copy.copy, lambda oven: pickle.loads(pickle.dumps(oven))])  # noqa: S301 -- just written
def test_settings_are_copied(copied: Any) -> None:
    oven = copied(Oven(degrees=200))
    assert type(oven) is Oven
    assert (oven.degrees, oven.code) == (200, None)
