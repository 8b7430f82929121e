"""What telemetry costs, beside the peer in the same session. `python -m benchmarks` prints the table of goals.

Every benchmark checks its own result first: a fast daemon that lost a record has no time worth printing.
"""
