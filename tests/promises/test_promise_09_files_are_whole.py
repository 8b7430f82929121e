"""A reader sees only an old or a new manifest and summary while both are replaced and the writer is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from traceml_client.protocol.manifest import read_manifest

NUM_REWRITES = 1000
NUM_KILLS = 10
WRITER = """
import sys
from pathlib import Path
import msgspec
from traceml_client.protocol import manifest
from traceml_daemon.run.run_files import write_json

folder, first, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
kept = manifest.read_manifest(folder)
for number in range(first, end):
    padding = {f"artifact_{n}": "x" * (number * 37 % 4000) for n in range(3)}
    manifest.write_manifest(folder, msgspec.structs.replace(kept, run_id=str(number), artifacts=padding))
    summary = {"number": number, "padding": "y" * (number * 91 % 60_000), "end": number}
    write_json(folder / "final_summary.json", summary)
    print(number, flush=True)
"""
FIRST = """
import sys
from pathlib import Path
from traceml_daemon.config import RunConfig
from traceml_daemon.run.run_files import write_json
from traceml_client.protocol.artifacts import write_with_artifacts
from traceml_daemon.run.run_manifest import first_manifest

folder = Path(sys.argv[1])
write_with_artifacts(folder, first_manifest(RunConfig(run_name="r", run_id="0", run_dir=folder), is_authenticated=True))
write_json(folder / "final_summary.json", {"number": 0, "padding": "", "end": 0})
"""


class Reader:
    """Reads both files again and again; every number it sees is at least as new as the one before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.num_reads = 0
        self.seen = [0, 0]

    def look(self) -> None:
        found = read_manifest(self._folder)
        summary = json.loads((self._folder / "final_summary.json").read_bytes())
        assert summary["number"] == summary["end"]
        numbers = [int(found.run_id), summary["number"]]
        assert all(now >= before for now, before in zip(numbers, self.seen, strict=True)), "an older file came back"
        self.seen = numbers
        self.num_reads += 1


def write(folder: Path, first: int, end: int, reader: Reader, *, kill_at: int | None) -> int:
    """Let a process rewrite both files from `first` on, and look all the time; return the last number it told."""
    argv = [sys.executable, "-c", WRITER, str(folder), str(first), str(end)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        while writer.poll() is None:
            reader.look()
            if kill_at is not None and reader.seen[0] >= kill_at:
                writer.kill()
        assert writer.stdout is not None
        told = writer.stdout.read().split()
        assert kill_at is not None or writer.returncode == 0
    reader.look()
    return int(told[-1]) if told else first - 1


def test_a_reader_in_a_tight_loop_sees_whole_files_only(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FIRST, str(tmp_path)], check=True, timeout=30)
    reader = Reader(tmp_path)
    done, started_s = 0, time.monotonic()
    for kill in range(NUM_KILLS):
        done = write(tmp_path, done + 1, NUM_REWRITES + 1, reader, kill_at=(kill + 1) * NUM_REWRITES // (NUM_KILLS + 1))
    done = write(tmp_path, done + 1, NUM_REWRITES + 1, reader, kill_at=None)
    assert (done, reader.seen) == (NUM_REWRITES, [NUM_REWRITES, NUM_REWRITES])
    assert reader.num_reads > NUM_REWRITES / 10, f"{reader.num_reads} reads in {time.monotonic() - started_s:.0f} s"
