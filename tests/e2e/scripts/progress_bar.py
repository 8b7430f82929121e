"""Draws a bar that never ends its line, and goes on only when the file named by its argument is there."""

import sys
import time
from pathlib import Path

sys.stdout.write("\r 10% [#         ]")
sys.stdout.flush()
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
sys.stdout.write("\r100% [##########]\n")
