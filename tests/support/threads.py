"""Calls that block, made while the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def wait(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what blocks while the loop, and the embedded broker in it, goes on."""
    return await asyncio.to_thread(call, *args, **kwargs)
