"""The faults of the campaign: those of the package, which tests of applications have as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from aiokafka_lite.simulation.faults import FAULTS, Carry, FaultRunner


class Faults(FaultRunner):
    """Carries out faults. One that only these tests need is a method here, and in the table."""

    table: ClassVar[Mapping[str, Carry]] = {**FAULTS}
