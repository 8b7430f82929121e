"""Prints what a log has to survive: both streams, half lines, long lines, carriage returns, bytes that are no text."""

import os
import sys

rank = os.environ["RANK"]
for number in range(200):
    print(f"rank {rank} line {number} " + "x" * (number % 50))
    print(f"rank {rank} complaint {number}", file=sys.stderr)
print("y" * 60_000)
sys.stdout.write(f"\rbar {rank} 50%\rbar {rank} 100%\n")
sys.stdout.flush()
sys.stdout.buffer.write(b"\x00\xff\xfe not text \x80\n")
sys.stdout.buffer.flush()
os.write(1, b"straight to the descriptor\n")
os.write(2, b"and to the other one\n")
sys.stdout.write(f"rank {rank} ends without a newline")
