"""Which machine the figures come from."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """What one has to know to compare figures with those of another machine."""

    cpu: str
    cores: int
    kernel: str
    python: str
    load_average: float

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.kernel}, Python {self.python}, load "
            f"{self.load_average:.2f} at the start"
        )

    def is_like(self, other: Machine) -> bool:
        """Whether it is the same machine, whatever its load."""
        return replace(self, load_average=other.load_average) == other


def describe_machine() -> Machine:
    """Describe this machine as it is now."""
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 0,
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        load_average=os.getloadavg()[0],
    )


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            name, _, model = line.partition(":")
            if name.strip() in {"model name", "Model"}:
                return model.strip()
    return platform.processor() or platform.machine()
