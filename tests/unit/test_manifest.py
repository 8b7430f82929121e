"""`manifest.json`: its times, and a writer that leaves the old file or the new one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from traceml_client.protocol import manifest
from traceml_client.protocol.atomic_files import write_atomically
from traceml_client.protocol.errors import StoreError
from traceml_client.protocol.manifest import Lifecycle, Manifest, TelemetryFacts, Topology, TrainingOutcome

MANIFEST = Manifest(
    schema_version=1,
    run_name="a run",
    run_id="id",
    created_at="2026-01-02T03:04:05.000006Z",
    updated_at="2026-01-02T03:04:05.000006Z",
    status="running",
    lifecycle=Lifecycle(started_at="2026-01-02T03:04:05.000006Z"),
    training=TrainingOutcome(),
    topology=Topology(nnodes=1, nproc_per_node=2, world_size=2),
    telemetry_status="pending",
    telemetry_reason=None,
    telemetry=TelemetryFacts(status="pending", reason=None, ranks_expected=2),
)


@pytest.mark.parametrize(
    ("wall_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_767_323_045_000_006_999, "2026-01-02T03:04:05.000006Z"),
        (1_767_323_045_999_999_999, "2026-01-02T03:04:05.999999Z"),
    ],
)
def test_times_are_utc_with_microseconds_and_never_rounded_up(wall_ns: int, text: str) -> None:
    assert manifest.rfc3339(wall_ns) == text


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest.write_manifest(tmp_path, MANIFEST)

    assert manifest.read_manifest(tmp_path) == MANIFEST
    assert stat.S_IMODE((tmp_path / "manifest.json").stat().st_mode) == 0o600
    assert (tmp_path / "manifest.json").read_bytes().endswith(b"}\n")


def test_a_field_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    document = msgspec.json.decode(msgspec.json.encode(MANIFEST)) | {"of_the_future": 1}
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(document))

    assert manifest.read_manifest(tmp_path) == MANIFEST


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"schema_version": 1', b"\0" * 100, b"[1]", b"\xff\xfe"])
def test_a_damaged_manifest_is_one_line_that_names_the_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "manifest.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(StoreError) as error:
        manifest.read_manifest(tmp_path)

    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    path.unlink()
    path.mkdir()

    with pytest.raises(OSError, match="file"):
        write_atomically(path, b"new")

    assert os.listdir(tmp_path) == ["file"]


def test_a_reader_sees_the_old_file_or_the_new_one_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    """A child rewrites the file without end and is killed in the middle of it."""
    code = (
        "import sys; from pathlib import Path; from traceml_client.protocol.atomic_files import write_atomically\n"
        "path = Path(sys.argv[1]); number = 0\n"
        "while True:\n"
        "    write_atomically(path, b'%d' % number * 20_000)\n"
        "    print(number, flush=True); number = (number + 1) % 10\n"
    )
    path = tmp_path / "file"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(300):
            content = path.read_bytes()
            assert (len(content), len(set(content))) == (20_000, 1)
    finally:
        child.kill()
        child.communicate()
    content = path.read_bytes()
    assert (len(content), len(set(content))) == (20_000, 1)


def test_a_pipe_in_the_manifests_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(StoreError, match="not a regular file"):
        manifest.read_manifest(tmp_path)
