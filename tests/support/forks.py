"""What a connection leaves to the parent in a forked child, without a fork."""

from __future__ import annotations

import pytest

from aiokafka_lite.client import connection

Left = tuple[int, object]


def left_to_parent(of: connection.Connection) -> Left | None:
    """Return the descriptor and its owner, which are not replaced. None: there is no socket."""
    left: list[Left] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "leave_to_parent", lambda *each: left.append(each))
        of.note_fork()
    return left[0] if left else None
