"""Faults that are known: what is left out of rounds until they are fixed.

Each entry names a way or an event of the table. Take it away with the fix.
"""

from __future__ import annotations

from typing import Final

KNOWN: Final = {
    "batch() in a transaction": "cancellations and rebalances copy records twice",
    "run, letters in transactions": "letters are written twice after cancellations",
    "log truncated": "an offset that is finished again is not committed under its new epoch",
    "assign": "it does not finish what was returned, as unsubscribe() and stop() do",
}
