"""Connections: who may speak, what is taken from whom, and what ranks and launchers have said."""
