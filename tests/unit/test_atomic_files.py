"""What a killed writer of a file leaves behind is removed by the next one, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from tests.harness.half_written import half_written, hidden_files, leave_half_written
from traceml_client.protocol.atomic_files import remove_leftovers, write_atomically


def test_the_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    write_atomically(tmp_path / "manifest.json", b"old")
    for name in ("manifest.json", "manifest.json", "final_summary.txt"):
        leave_half_written(tmp_path / name)
    assert len(hidden_files(tmp_path)) == 3
    remove_leftovers(tmp_path)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("manifest.json", b"old")]


def test_a_living_writer_keeps_its_own(tmp_path: Path) -> None:
    with half_written(tmp_path / "manifest.json") as writer:
        remove_leftovers(tmp_path)
        writer.communicate(b"")
        assert writer.returncode == 0
    assert (tmp_path / "manifest.json").read_bytes() == b"new"
    assert hidden_files(tmp_path) == []


def test_hidden_files_of_others_stay(tmp_path: Path) -> None:
    names = [".manifest.json.swp", ".nfs000000000001", ".manifest.json.12-notes.txt", ".reserve"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ".manifest.json.1-1.abcdefgh").mkdir()
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path / "nowhere")
    assert hidden_files(tmp_path) == sorted([*names, ".manifest.json.1-1.abcdefgh"])
