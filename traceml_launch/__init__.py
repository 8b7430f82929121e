"""Supervises torchrun on one node: captures its streams, holds its ranks' recorders, reports its end."""
