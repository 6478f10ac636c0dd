"""The steps of every record of `run`: it is queued, begins and is finished; compiled, if built."""

from __future__ import annotations

try:
    from aiokafka_lite.consumer.processing._steps import Calls, Steps
except ModuleNotFoundError:  # the extension is not built: the same in plain Python
    from aiokafka_lite.consumer.processing._steps_py import Calls, Steps

__all__ = ["Calls", "Steps"]
