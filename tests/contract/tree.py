"""The tree under test: its files, and how they are named in a complaint."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("traceml_client", "traceml_daemon", "traceml_launch")


@functools.cache
def tracked(pattern: str) -> list[Path]:
    """Files that belong to the tree, committed or about to be; generated and ignored ones do not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({path for line in listing.splitlines() if (path := ROOT / line).is_file()})


def sources() -> list[Path]:
    """Every Python file of the three packages."""
    return [path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] in PACKAGES]


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_test(path: Path) -> bool:
    return path.name.startswith("test_")


def is_demo(path: Path) -> bool:
    """The demo's scripts are training code, shipped as data."""
    return label(path).startswith("traceml_launch/demo/")
