"""Shared by this package's web pages: access checks, styles, scripts.

Only `aiohttp_answers` needs aiohttp.
"""

from __future__ import annotations

from aiokafka_lite._pages.answers import Answer, problem
from aiokafka_lite._pages.assets import SHARED, read_assets
from aiokafka_lite._pages.guard import refusal

__all__ = ["SHARED", "Answer", "problem", "read_assets", "refusal"]
