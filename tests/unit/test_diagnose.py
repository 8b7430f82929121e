"""`traceml diagnose` as a person meets it: files, folders, standard input, exit codes, one line for what is no log."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from traceml_daemon.commands.redaction import Redactor
from traceml_launch import cli

OUT_OF_MEMORY = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/data/job/train.py", line 7, in <module>
[rank1]:     main()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79 GiB.
[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [192.0.2.1]:411
"""


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["traceml", "diagnose", *words])
    return cli.main()


def test_names_rank_cause_and_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(OUT_OF_MEMORY)
    assert run(monkeypatch, "--json", str(log)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["category"], answer["confidence"], answer["initiating_rank"]) == ("cuda_oom", "confirmed", 1)
    assert answer["evidence"][0]["line"] == 4
    assert answer["evidence"][0]["file"] == str(log)
    assert answer["collateral"] == [{"rank": 0, "reason": "peer_lost"}]
    assert answer["next_step"]
    assert run(monkeypatch, str(log)) == 0
    assert "Rank 1 raised OutOfMemoryError" in capsys.readouterr().out.splitlines()[0]


def test_several_files_are_several_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text(OUT_OF_MEMORY.splitlines()[-1] + "\n")
    (tmp_path / "b.log").write_text("\n".join(OUT_OF_MEMORY.splitlines()[:-1]) + "\n")
    assert run(monkeypatch, "--json", str(tmp_path / "a.log"), str(tmp_path / "b.log")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["initiating_rank"] == 1
    assert answer["evidence"][0]["file"] == str(tmp_path / "b.log")


def test_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OUT_OF_MEMORY.encode())))
    assert run(monkeypatch, "-", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["category"] == "cuda_oom"
    assert not re.search(r" -( |$)", answer["command"]), "a pipe cannot be read again"


def test_the_fix_is_verified_in_the_next_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'x'\n")
    assert run(monkeypatch, "--json", str(log)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert str(log) in answer["command"]
    assert str(log) not in answer["verify_command"], "the old log holds it for ever"


@pytest.mark.parametrize("content", [b"", b"\0\0\0ChildFailedError: \nfailed\n" + b"x" * 100])
def test_a_log_that_does_not_hold_the_cause_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(content)
    assert run(monkeypatch, "--json", str(log)) == 3
    assert json.loads(capsys.readouterr().out)["category"] == "insufficient_evidence"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no such log file, and no run"),
        (b"\x00\x01\x02\x03" * 100, "is no text"),
        (bytes(range(256)) * 100, "is no text"),
        (b"SQLite format 3\x00" + b"failed: Connection closed by peer\n" * 100, "is a database"),
        (b"\x1f\x8b\x08\x00", "is compressed"),
    ],
)
def test_what_is_no_log_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    complaint: str,
) -> None:
    log = tmp_path / "train.log"
    if content is not None:
        log.write_bytes(content)
    assert run(monkeypatch, str(log)) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_missing_file_among_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text(OUT_OF_MEMORY)
    assert run(monkeypatch, str(tmp_path / "a.log"), str(tmp_path / "b.log")) == 2
    assert str(tmp_path / "b.log") in capsys.readouterr().err


def test_a_run_is_found_by_its_files_and_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = tmp_path / "logs" / "r" / "nodes" / "node_0"
    streams.mkdir(parents=True)
    (streams / "training.stderr.log").write_text(OUT_OF_MEMORY)
    manifest = tmp_path / "logs" / "r" / "manifest.json"
    manifest.write_text("{}")
    assert run(monkeypatch, "--json", str(manifest)) == 0
    assert json.loads(capsys.readouterr().out)["category"] == "cuda_oom"
    assert run(monkeypatch, "--logs-dir", str(tmp_path / "logs"), "r", str(streams / "training.stderr.log")) == 2
    assert "r is a run: give one run alone" in capsys.readouterr().err
    assert run(monkeypatch, str(streams)) == 2
    assert f"name its log files, as in {streams}/*.log" in capsys.readouterr().err


def test_reads_a_pipe_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.write(writing, OUT_OF_MEMORY.encode())
    os.close(writing)
    assert run(monkeypatch, "--json", f"/dev/fd/{reading}") == 0
    os.close(reading)
    assert json.loads(capsys.readouterr().out)["category"] == "cuda_oom"


def test_what_a_rank_printed_does_not_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(OUT_OF_MEMORY.replace("CUDA out", "\x1b]0;title\x07\x1b[2J\x9b31mCUDA out"))
    assert run(monkeypatch, str(log)) == 0
    printed = capsys.readouterr().out
    assert "CUDA out of memory" in printed
    assert all(char == "\n" or char.isprintable() for char in printed)


@pytest.mark.parametrize("name", ["manifest.json", "failure_report.json", "final_summary.json"])
@pytest.mark.parametrize("command", ["status", "view", "diagnose", "verify", "compare"])
def test_a_document_of_endless_depth_is_no_traceback(
    tmp_path: Path, name: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text('{"a":' * 100_000)
    (tmp_path / "manifest.json").touch()
    words = [str(tmp_path)] * (2 if command == "compare" else 1)
    monkeypatch.setattr(sys, "argv", ["traceml", command, *words])
    assert cli.main() in (0, 2, 3)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("redirection", "code", "complaint"),
    [(">/dev/full", 2, "standard output"), (">&-", 0, ""), ("<&- 2>&-", 0, "")],
)
def test_output_that_nobody_takes_is_no_traceback(tmp_path: Path, redirection: str, code: int, complaint: str) -> None:
    log = tmp_path / "train.log"
    log.write_text(OUT_OF_MEMORY)
    call = "import sys; from traceml_launch.cli import main; sys.exit(main())"
    words = ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-c", call, "diagnose", str(log)]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1 if complaint else 0), done.stderr
    assert complaint in done.stderr


SECRETS = """\
srun: error: gpu-node17: task 0: Exited with exit code 1
[rank1]: Traceback (most recent call last):
[rank1]:   File "/data/jsmith/proj/train.py", line 7, in <module>
[rank1]:     load("/data/jsmith/proj/data.bin")
[rank1]:   File "/data/jsmith/env/lib/python3.11/site-packages/torch/serialization.py", line 9, in load
[rank1]:     raise
[rank1]: ValueError: 10.1.2.3 refused token=abcdef123456 of jsmith@example.com on gpu-node17
"""


HOMES = "/" + "home"  # apart, since no path of a person is in this tree
LEAKS = (  # a line, and what must not be left of it
    (f"HOME={HOMES}/carla", "carla"),
    (f"open {HOMES}/carla/x.bin for carla", "carla"),
    ("PATH=/bin:/opt/carla/tools/bin", "carla"),
    ("at file:///srv/carla/x.py, /data/day=3/carla/x.bin", "carla"),
    ("s3://hidden/ckpt/x.pt", "hidden"),
    ("bound to fe80::1ff:fe23:4567:890a", "4567"),
    ("bound to [2001:db8:1::7]:29500", "2001"),
    ("bound to 2001:db8::192.0.2.33", "192.0"),
    ("link aa:bb:cc:dd:ee:0f", "ee:0f"),
    ("hostname: nodeabc\nconnect to nodeabc", "nodeabc"),
    ("connect to [nodeabc]:29500", "nodeabc"),
    ("tcp://nodeabc:29500", "nodeabc"),
    ("https://carla:hunter2@git.corp/x", "hunter2"),
    ("https://carla:hunter2@git.corp/x", "carla"),
    ("https://carla:hunter2@git.corp/x", "git.corp"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalr"),
    ("aws_access_key_id = ASIAIOSFODNN7EXAMPLE", "ASIA"),
    ("Authorization: Bearer 0a1b2c3d4e5f6g7h", "0a1b"),
    ("Authorization: Basic Y2FybGE6aHVudGVyMg==", "Y2Fy"),
    ('{"password": "two words", "x": 1}', "two words"),
    ("PASSWORD=abc12", "abc12"),
    ("passphrase: correct-horse", "correct"),
    ("AccountKey=Zm9vYmFyYmF6cXV4==;", "Zm9v"),
    ("?X-Amz-Signature=abcdef0123456789&x=1", "abcdef"),
    ("wandb key 0123456789abcdef0123456789abcdef01234567", "0123456789"),
    ("ghs_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefgh"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END RSA PRIVATE KEY-----", "MIIE"),
)
KEPT = (
    "at 12:30:45 x[100:200] std::vector ::1 127.0.0.1",
    "https://pytorch.org/docs/stable/elastic/errors.html",
    "torch/distributed/run.py",
    "localhost:29500 [localhost]:29500",
)


@pytest.mark.parametrize(("line", "secret"), LEAKS)
def test_redaction_takes_out(line: str, secret: str) -> None:
    assert secret not in Redactor().text(line)


@pytest.mark.parametrize("line", KEPT)
def test_redaction_leaves(line: str) -> None:
    assert Redactor().text(line) == line


def test_redacted_output_names_nobody_and_stays_consistent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, bundle = tmp_path / "train.log", tmp_path / "ticket.tar.gz"
    log.write_text(SECRETS)
    assert run(monkeypatch, "--json", "--redact", "--bundle", str(bundle), str(log)) == 0
    printed = capsys.readouterr().out
    with tarfile.open(bundle) as archive:
        texts = [file.read().decode() for name in archive.getnames() if (file := archive.extractfile(name))]
    for text in [printed, *texts]:
        assert not any(word in text for word in ("jsmith", "10.1.2.3", "abcdef123456", "gpu-node17", "example.com"))
    assert json.loads(printed)["category"] == "python_exception"
    assert run(monkeypatch, "--sarif", "--redact", str(log)) == 0
    document = capsys.readouterr().out
    assert "jsmith" not in document
    assert "https://json.schemastore.org/" in document
    tail = texts[-1]
    assert "site-packages/torch/serialization.py" in tail
    folder = re.findall(r"<path\d+>(?=/train\.py)", tail)
    assert folder
    assert f"{folder[0]}/data.bin" in tail


def test_sarif_points_at_the_users_own_line_and_at_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(SECRETS)
    assert run(monkeypatch, "--sarif", str(log)) == 0
    document = json.loads(capsys.readouterr().out)
    (result,) = document["runs"][0]["results"]
    assert document["version"] == "2.1.0"
    assert result["ruleId"] == document["runs"][0]["tool"]["driver"]["rules"][0]["id"] == "python_exception"
    own = result["locations"][0]["physicalLocation"]
    assert own["artifactLocation"]["uri"].endswith("/proj/train.py")
    assert own["region"]["startLine"] == 7
    assert 7 in [one["physicalLocation"]["region"]["startLine"] for one in result["relatedLocations"]]
    assert run(monkeypatch, "--sarif", "--json", str(log)) == 2


def test_a_bundle_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(SECRETS)
    assert run(monkeypatch, "--bundle", str(tmp_path / "no" / "x.tar.gz"), str(log)) == 2
    assert "--bundle" in capsys.readouterr().err
