"""Which items try a change: a plugin that leaves the others out.

    python -m pytest -p tests.mutants.choice

Those with Kafka, Java or Spark are left out, because a change is tried by hundreds of runs. So is
what runs on uvloop and on asyncio's loop alike: hardly a line of the package knows its loop.
"""

from __future__ import annotations

import pytest

from tests.support.required import MARKS

_LOOP = "_asyncio_loop_factory"


def is_tried(item: pytest.Item) -> bool:
    """Return whether an item tries changes."""
    if any(item.get_closest_marker(mark) for mark in MARKS):
        return False
    params = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    from tests.conftest import EVERY_LOOP  # pytest is to import it first

    is_on_uvloop = params.get(_LOOP) is EVERY_LOOP.get("uvloop") is not None
    # Those with a decoder have another one on uvloop.
    return not is_on_uvloop or "decoder" in params


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not is_tried(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_tried(item)]
