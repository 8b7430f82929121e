"""Processes, signals, descriptors: what the kernel knows."""
