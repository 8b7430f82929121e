"""What only one rank printed, or not the last good run: examples, their near misses, and where nothing stands out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from tests.harness.facts import Rank, node_report, run_facts
from tests.unit.test_manifest import MANIFEST
from traceml_client.protocol.manifest import write_manifest
from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.report.form import FailureReport
from traceml_daemon.report.write import write_reports
from traceml_daemon.triage.contrast import Contrast, shape_of
from traceml_launch import cli

ODD = "tokenizer: vocabulary is corrupt near entry 41 of /data/v7/vocab.bin"


def contrast_of(*streams: str, good: str | None = None) -> Contrast:
    """One stream a rank."""
    contrast = Contrast()
    for rank, text in enumerate(streams):
        contrast.reader(rank, rank).feed(text.encode() + b"\n")
    if good is not None:
        contrast.good_run_reader().feed(good.encode() + b"\n")
    return contrast


def found(contrast: Contrast) -> list[tuple[int | None, str]]:
    return [(line.rank, line.place.quote) for line in contrast.odd_lines(load_book())]


def test_the_odd_rank_is_found() -> None:
    contrast = contrast_of("step 4", "step 4", f"step 3\n{ODD}", "step 4")
    assert found(contrast) == [(2, ODD)]
    assert contrast.odd_lines(load_book())[0].place.line == 2
    assert contrast.odd_rank(contrast.odd_lines(load_book())) == 2


def test_what_all_ranks_print_of_other_places_is_not_odd() -> None:
    others = ["cuda:0 at 0x7f12ab: read error 5 of /data/a/x.bin", "cuda:1 at 0x8e01cc: read error 6 of /mnt/y/z.bin"]
    assert found(contrast_of(*others)) == []


@pytest.mark.parametrize(
    "streams",
    [
        ("step 4", "step 5"),
        (ODD,),
        (ODD, f"{ODD} again", f"{ODD} again"),
        ("step 4", '  File "/src/error.py", line 4, in fail\n    raise CorruptError("fail")'),
        ("step 4", "The above exception was the direct cause of the following exception:"),
        ("step 4", "RuntimeError: [pair.cc:553] Connection closed by peer [192.0.2.1]:411"),
    ],
    ids=["no error", "one rank", "rank 0 prints alone", "source", "between tracebacks", "a consequence"],
)
def test_nothing_names_a_rank(streams: tuple[str, ...]) -> None:
    contrast = contrast_of(*streams)
    assert contrast.odd_rank(contrast.odd_lines(load_book())) is None


def test_two_ranks_that_stand_out_name_none() -> None:
    contrast = contrast_of("step 4", ODD, "index: invalid offset")
    assert {rank for rank, _ in found(contrast)} == {1, 2}
    assert contrast.odd_rank(contrast.odd_lines(load_book())) is None


def test_what_the_good_run_printed_too_is_no_news() -> None:
    known = "warmup: cache file not found, built anew"
    assert found(contrast_of(f"{known}\n{ODD}", f"{known}\n{ODD}", good=f"{known} ")) == [(None, ODD)]
    assert found(contrast_of("step 4", known)) == [(1, known)]
    assert found(contrast_of("step 4", known, good=known)) == []


def test_exceptions_come_first_and_rank_0_last() -> None:
    streams = ("reader failed", "index: invalid offset\nIndexError: offset", "step 4")
    assert [rank for rank, _ in found(contrast_of(*streams))] == [1, 1, 0]
    assert found(contrast_of(*streams))[0] == (1, "IndexError: offset")


def test_shapes_fold_what_varies() -> None:
    assert shape_of("rank 3: read error 5 at 10.0.0.7:2913") == shape_of("rank 11: read error 77 at 10.0.0.81:40")
    assert shape_of("job 8d1f-44 of id 7fe0aa12bc failed") == shape_of("job 8d2f-45 of id 91ffcd0e34 failed")
    assert shape_of("reader failed") != shape_of("writer failed")


# --- the commands -----------------------------------------------------------------------------------------------------


def test_a_bare_log_without_a_known_cause_names_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        f"[rank0]: step 4\n[rank1]: step 4\n[rank2]: {ODD}\nepoch\r20%\n[rank2]: offset invalid\n[rank2]: no: failed\n"
    )
    monkeypatch.setattr(sys, "argv", ["traceml", "diagnose", "--json", str(log)])
    assert cli.main() == 3
    answer = json.loads(capsys.readouterr().out)
    assert (answer["confidence"], answer["initiating_rank"]) == ("unknown", None)
    quotes = [(one["contrast"], one["line"], one["text"]) for one in answer["evidence"] if "contrast" in one]
    only = "Only rank 2 printed"
    assert quotes == [(only, 3, f"[rank2]: {ODD}"), (only, None, "[rank2]: offset invalid")]
    assert answer["summary"].endswith("look first at rank 2, whose errors stand out")
    monkeypatch.setattr(sys, "argv", ["traceml", "diagnose", str(log)])
    assert cli.main() == 3
    assert ODD in capsys.readouterr().out


def write_run(folder: Path, script: str, texts: list[str], *, status: str, day: int, world_size: int = 2) -> Path:
    for rank, text in enumerate(texts):
        attempt = folder / f"nodes/node_0/ranks/rank_{rank}/attempt_0"
        attempt.mkdir(parents=True)
        (attempt / "stderr.log").write_text(text + "\n")
    report = msgspec.structs.replace(node_report([Rank(rank=0)]), script=script)
    (folder / "nodes/node_0/node.json").write_bytes(msgspec.json.encode(report))
    topology = msgspec.structs.replace(MANIFEST.topology, world_size=world_size)
    changes = {"status": status, "topology": topology, "created_at": f"2026-01-{day:02}T00:00:00.000000Z"}
    write_manifest(folder, msgspec.structs.replace(MANIFEST, **changes))
    return folder


def report_of(run: Path) -> tuple[FailureReport, str]:
    ranks = [Rank(rank=0, exit_code=7, died_ms=900.0, state="lost"), Rank(rank=1, exit_code=0)]
    write_reports(run, run_facts(ranks), has_history=False)
    document = (run / "failure_report.json").read_bytes()
    return msgspec.json.decode(document, type=FailureReport), (run / "failure_report.txt").read_text()


def test_a_run_is_compared_with_the_last_good_one_of_its_script(tmp_path: Path) -> None:
    known = "cache not found"
    write_run(tmp_path / "old", "train.py", ["fine", "fine"], status="completed", day=1)
    write_run(tmp_path / "good", "train.py", [known, known], status="completed", day=2)
    write_run(tmp_path / "bad", "train.py", [ODD, ODD], status="failed", day=3)
    write_run(tmp_path / "other", "eval.py", [ODD, ODD], status="completed", day=4)
    write_run(tmp_path / "larger", "train.py", [ODD, ODD], status="completed", day=4, world_size=4)
    run = write_run(tmp_path / "now", "train.py", [f"{known}\n{ODD}"] * 2, status="failed", day=5)
    write_run(tmp_path / "later", "train.py", [ODD, ODD], status="completed", day=6)
    report, text = report_of(run)
    place = "nodes/node_0/ranks/rank_0/attempt_0/stderr.log"
    assert [(one.file, one.line, one.text) for one in report.evidence if one.contrast] == [(place, 2, ODD)]
    assert f"Not in the last good run (good): {ODD} ({place}:2)\n" in text


def test_the_last_attempts_of_a_run_are_compared_without_a_good_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "now", "train.py", ["lookup failed", "lookup failed"], status="failed", day=5)
    attempt = run / "nodes/node_0/ranks/rank_1/attempt_10"
    attempt.mkdir()
    (attempt / "stderr.log").write_text(f"{ODD}\nlookup failed\n")
    report, text = report_of(run)
    assert [one.text for one in report.evidence if one.contrast] == [ODD]
    assert "Only rank 1 printed: tokenizer" in text


def test_an_identified_cause_stays(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "a", "train.py", ["step 4", "step 4"], status="failed", day=5)
    odd = write_run(tmp_path / "b", "train.py", ["step 4", ODD], status="failed", day=5)
    (before, _), (after, _) = report_of(plain), report_of(odd)
    assert before.initiating_rank == 0
    assert [one.text for one in after.evidence][-1] == ODD
    same = ("category", "confidence", "initiating_rank", "summary")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
