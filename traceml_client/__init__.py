"""Measures a training script from inside each rank. Under `traceml run` a script needs none of these names."""
