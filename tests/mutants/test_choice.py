from __future__ import annotations

import asyncio

import pytest

from tests.mutants.choice import is_tried


@pytest.mark.every_loop
async def test_an_item_tries_changes_unless_it_runs_on_uvloop_too(
    request: pytest.FixtureRequest,
) -> None:
    module = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    assert is_tried(request.node) is (module == "asyncio")


@pytest.mark.every_loop
@pytest.mark.parametrize("decoder", ["compiled"])
async def test_an_item_on_uvloop_with_a_decoder_tries_changes(
    request: pytest.FixtureRequest, decoder: str
) -> None:
    assert is_tried(request.node)


@pytest.mark.java
def test_an_item_with_java_tries_none(request: pytest.FixtureRequest) -> None:
    assert not is_tried(request.node)
