"""`python -m traceml_launch` is `traceml`."""

from __future__ import annotations

import sys

from traceml_launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
