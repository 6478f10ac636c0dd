"""A secret stays one."""

from __future__ import annotations

import copy
import pickle

import pytest

from aiokafka_lite.sasl import Secret


def test_nothing_that_formats_it_shows_a_secret() -> None:
    secret = Secret("hunter2")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{secret:>20}", "%s" % secret]  # noqa: UP031 -- the old way too
    assert all("hunter2" not in text for text in (*shown, repr({"password": secret})))


def test_secret_is_not_pickled_or_copied_by_way_of_it() -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            attempt(Secret("hunter2"))


def test_secret_is_the_same_as_its_text_and_bytes() -> None:
    assert Secret("pä") == Secret("pä".encode())
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert Secret("pä").reveal() == "pä".encode()
    assert Secret.of(Secret("a")) == Secret.of("a")
    assert not Secret("")
    with pytest.raises(TypeError):
        hash(Secret("a"))
