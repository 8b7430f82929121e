"""Real jobs that fail in one known way each, run under `traceml run`, and what must be true of each afterwards."""
