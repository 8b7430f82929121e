"""Prints its argument's number of MiB and then says, in the file named second, that it got there."""

import sys
from pathlib import Path

line = "f" * 1023 + "\n"
for _ in range(1024 * int(sys.argv[1])):
    sys.stdout.write(line)
sys.stdout.flush()
Path(sys.argv[2]).write_text("done")
