"""What recording does in a training step: nothing that grows, and nothing that enters the kernel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.step_path import BEGIN, END

pytestmark = pytest.mark.torch
LOOP = [sys.executable, "-m", "tests.client.step_path"]
MAX_GROWTH_BYTES = 2_000
"""Of 1,000 steps; one number kept a step would be 32,000."""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to see system calls")
def test_a_step_makes_no_system_call_and_keeps_no_memory(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    done = subprocess.run(["strace", "-o", log, *LOOP], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < MAX_GROWTH_BYTES
    calls = log.read_text().splitlines()
    begins = [index for index, call in enumerate(calls) if call.startswith("write(") and BEGIN.decode() in call]
    ends = [index for index, call in enumerate(calls) if call.startswith("write(") and END.decode() in call]
    assert len(begins) == len(ends) == 2
    assert [calls[begin + 1 : end] for begin, end in zip(begins, ends, strict=True)] == [[], []]


@pytest.mark.skipif(shutil.which("strace") is not None, reason="seen together with the system calls")
def test_a_step_keeps_no_memory() -> None:
    done = subprocess.run(LOOP, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < MAX_GROWTH_BYTES
