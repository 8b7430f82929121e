"""Runs one script of `loops/` as a rank's worker would: a ring in a file, the hooks set before torch is imported."""

from __future__ import annotations

import mmap
import runpy
import sys
from pathlib import Path

from traceml_client import steps, torch_hooks
from traceml_client.protocol import ring
from traceml_client.recorder import Recorder


def main() -> None:
    ring_path, script, *arguments = sys.argv[1:]
    with Path(ring_path).open("r+b") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0))
    ring.initialize(memory)
    torch_hooks.install_when_imported(Recorder(memory), report_fault)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
    steps.finish(has_error=False)


def report_fault(kind: str, error: BaseException) -> None:
    """A hook that fails is a failed test, whatever the loop does."""
    print(f"fault in {kind}: {error!r}", file=sys.stderr)


if __name__ == "__main__":
    main()
