"""Tests. `tests.harness` is importable by whoever has the repository's root on the path."""
