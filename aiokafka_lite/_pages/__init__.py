"""What this package's web pages share: whom they refuse, how they look, what their scripts do.

Imported only where pages are served; needs aiohttp.
"""

from __future__ import annotations

from aiokafka_lite._pages.assets import SHARED, Asset, read_assets
from aiokafka_lite._pages.guard import HEADERS, METHODS, problem, refusal

__all__ = ["HEADERS", "METHODS", "SHARED", "Asset", "problem", "read_assets", "refusal"]
