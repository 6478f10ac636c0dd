"""`python -m demos`: the demos `flights` and `pipeline`."""

from __future__ import annotations

import sys

from demos.main import main

if __name__ == "__main__":
    sys.exit(main())
