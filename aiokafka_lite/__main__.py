"""`python -m aiokafka_lite`: the command line."""

from __future__ import annotations

import sys

from aiokafka_lite.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
