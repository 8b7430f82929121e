"""`traceml verify`: each check against real ports, files, limits and modules, and nothing of a log is executed."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import socket
import tempfile
import time
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from traceml_client.protocol.node import NODE_SCHEMA_VERSION, NodeReport
from traceml_daemon.cli import look_at_runs
from traceml_daemon.log_files import catalog
from traceml_daemon.report.form import Evidence, FailureReport, TorchrunView
from traceml_daemon.triage.entry import CatalogEntry, CheckKind
from traceml_daemon.verify import ports
from traceml_daemon.verify.case import CheckResult
from traceml_daemon.verify.checks import CHECKS, verify

ENTRIES = catalog.load_catalog()
NOBODY = 65534


def report_of(category: str, *evidence: str, summary: str = "Rank 0 failed") -> FailureReport:
    return FailureReport(
        category=category,
        family=ENTRIES[category].family if category in ENTRIES else "code",
        confidence="confirmed",
        initiating_rank=0,
        node_rank=0,
        attempt=0,
        step=None,
        phase=None,
        exit_code=1,
        signal=None,
        summary=summary,
        evidence=tuple(Evidence("train.log", number, text) for number, text in enumerate(evidence, 1)),
        collateral=(),
        torchrun=TorchrunView(None, None, None),
        next_step="Look.",
        command=None,
        verify_command="df -h",
        missing=(),
    )


def check(run_dir: Path, category: str, *evidence: str, environ: dict[str, str] | None = None, **changes: int):
    """The check of `category` in a run with that evidence; `changes` are other thresholds."""
    entry = ENTRIES[category]
    if changes:
        entry = msgspec.structs.replace(entry, verify=msgspec.structs.replace(entry.verify, **changes))
    report = report_of(category, *evidence)
    return verify(run_dir, report, entry, environ if environ is not None else dict(os.environ), is_here_enough=False)


def as_nobody(look: Callable[[], CheckResult]) -> CheckResult:
    """The result for a user without rights, in a child; as it is where we have none ourselves."""
    if os.geteuid() != 0:
        return look()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, msgspec.json.encode(look()))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(answer, type=CheckResult)


def write_node(run_dir: Path, *, host: str) -> None:
    place = run_dir / "nodes" / "node_0"
    place.mkdir(parents=True)
    report = NodeReport(NODE_SCHEMA_VERSION, "x", "id", 0, host, 1, 0, None, None, 1, None, None)
    (place / "node.json").write_bytes(msgspec.json.encode(report))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


PORT_LINES = [
    "The server socket has failed to listen on any local network address. port: {port}, useIpv6: false, code: -98,"
    " name: EADDRINUSE, message: address already in use",
    "The server socket has failed to bind to [::]:{port} (errno: 98 - Address already in use).",
    "The server socket has failed to bind to 0.0.0.0:{port} (errno: 98 - Address already in use).",
    "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use",
    '    server.bind(("0.0.0.0", {port}))',
]


@pytest.mark.parametrize("line", PORT_LINES)
def test_port_is_taken_until_its_holder_lets_go(line: str, tmp_path: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    taken = check(tmp_path, "port_in_use", line.format(port=port))
    assert taken.state == "still there"
    assert f"port {port} is taken" in taken.why
    listener.close()
    assert check(tmp_path, "port_in_use", line.format(port=port)).state == "gone"


def test_port_that_is_not_named(tmp_path: Path) -> None:
    result = check(tmp_path, "port_in_use", "[Errno 98] Address already in use")
    assert (result.state, result.why) == ("cannot be checked here", "the evidence names no port")


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A folder below which other users may look, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_port_that_may_not_be_bound(public_dir: Path) -> None:
    line = "failed to listen on any local network address. port: 1, useIpv6: false, code: -13, name: EACCES"
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 1:
        pytest.skip("every user may bind every port here")
    assert as_nobody(lambda: check(public_dir, "port_not_permitted", line)).state == "still there"
    allowed = line.replace("port: 1,", f"port: {free_port()},")
    assert as_nobody(lambda: check(public_dir, "port_not_permitted", allowed)).state == "gone"


def test_rendezvous_is_asked_on_this_host_only(tmp_path: Path, listener: socket.socket) -> None:
    line = "The client socket has timed out after 60s while trying to connect to ({host}, {port})."
    port = listener.getsockname()[1]
    assert check(tmp_path, "rendezvous_failed", line.format(host="127.0.0.1", port=port)).state == "gone"
    started = time.monotonic()
    for host in ("192.0.2.7", "node-a", "training.example.org"):
        other = check(tmp_path, "rendezvous_failed", line.format(host=host, port=port))
        assert other.state == "cannot be checked here"
        assert f"{host}, {port} is another machine" in other.why
    assert time.monotonic() - started < ports._CONNECT_TIMEOUT_S, "nobody was waited for"
    listener.close()
    silent = check(tmp_path, "rendezvous_failed", line.format(host="localhost", port=port))
    assert silent.state == "cannot be checked here"
    assert "nothing answers" in silent.why


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '{path}'",
        "/opt/env/bin/python: can't open file '{path}': [Errno 2] No such file or directory",
        "cat: {path}: No such file or directory\n/etc/passwd",
    ],
)
def test_missing_file_until_it_is_there(line: str, tmp_path: Path) -> None:
    path = tmp_path / "shard-7.bin"
    line = line.replace("{path}", str(path))
    assert check(tmp_path, "file_not_found", line).state == "still there"
    path.touch()
    assert check(tmp_path, "file_not_found", line).state == "gone"


def test_relative_path_cannot_be_checked(tmp_path: Path) -> None:
    line = "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'"
    assert check(tmp_path, "file_not_found", line).state == "cannot be checked here"


def test_hub_id_that_was_a_local_path(tmp_path: Path) -> None:
    line = f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{tmp_path}/base'. Use `repo_type`."
    assert check(tmp_path, "hub_access", line).state == "still there"
    (tmp_path / "base").mkdir()
    assert check(tmp_path, "hub_access", line).state == "gone"
    assert check(tmp_path, "hub_access", "401 Client Error: Unauthorized").state == "cannot be checked here"


def test_forbidden_path_until_its_mode_is_right(public_dir: Path) -> None:
    def state() -> str:
        return as_nobody(lambda: check(public_dir, "permission_denied", line)).state

    path = public_dir / "ckpt" / "step.pt"
    path.parent.mkdir(mode=0o755)
    line = f"PermissionError: [Errno 13] Permission denied: '{path}'"
    for mode, expected in ((0o000, "still there"), (0o444, "cannot be checked here"), (0o666, "gone")):
        path.touch()
        path.chmod(mode)
        assert state() == expected, oct(mode)
    path.unlink()
    if os.geteuid() == 0:
        assert state() == "still there", "its folder may not be written"
    path.parent.chmod(0o777)
    assert state() == "gone"


def test_free_space_of_the_volume_that_was_written_to(tmp_path: Path) -> None:
    line = f"OSError: [Errno 28] No space left on device: '{tmp_path}/not/yet/there/step.pt'"
    assert check(tmp_path, "disk_full", line, at_least_mib=1).state == "gone"
    full = check(tmp_path, "disk_full", line, at_least_mib=10**9)
    assert full.state == "still there"
    assert str(tmp_path) in full.why
    assert check(tmp_path, "disk_full", "unexpected pos 1 vs 2", at_least_mib=1).state == "cannot be checked here"


def test_limit_on_the_size_of_a_file(tmp_path: Path) -> None:
    line = "OSError: [Errno 27] File too large"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        pytest.skip("this shell limits files already")
    assert check(tmp_path, "disk_full", line).state == "gone"
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, hard))
    try:
        assert check(tmp_path, "disk_full", line).state == "still there"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def whole_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data/0", bytes(range(256)) * 64)
        archive.writestr("archive/version", "3")


def with_wrong_byte(path: Path) -> None:
    whole_zip(path)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def without_its_end(path: Path) -> None:
    whole_zip(path)
    path.write_bytes(path.read_bytes()[:-40])


def safetensors(path: Path, *, missing: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}, "__metadata__": {"a": "b"}})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(64 - missing))


FILES: list[tuple[str, Callable[[Path], object], str]] = [
    ("a.pt", whole_zip, "gone"),
    ("a.pt", with_wrong_byte, "still there"),
    ("a.pt", without_its_end, "still there"),
    ("a.pt", lambda path: path.write_bytes(b""), "still there"),
    ("a.bin", lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "still there"),
    ("a.pt", lambda path: path.write_bytes(b"\x80\x02}q\x00."), "cannot be checked here"),
    ("a.safetensors", safetensors, "gone"),
    ("a.safetensors", lambda path: safetensors(path, missing=1), "still there"),
    ("a.safetensors", lambda path: path.write_bytes(b"\xff" * 40), "still there"),
    ("a.gz", lambda path: path.write_bytes(gzip.compress(bytes(5000))), "gone"),
    ("a.gz", lambda path: path.write_bytes(gzip.compress(bytes(range(256)) * 50)[:-9]), "still there"),
    ("a.ckpt", lambda path: path.write_text("something else"), "cannot be checked here"),
    ("a.pt", lambda path: os.mkfifo(path), "cannot be checked here"),
    ("a.pt", lambda path: None, "cannot be checked here"),
]


@pytest.mark.parametrize(("name", "write", "state"), FILES)
def test_damaged_file(name: str, write: Callable[[Path], object], state: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path)
    assert check(tmp_path, "corrupted_file", f'    state = torch.load("{path}")').state == state
    assert check(tmp_path, "corrupted_file", f"RuntimeError: while reading {path}: unexpected EOF").state == state


@contextlib.contextmanager
def open_file_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_limit_on_open_files(tmp_path: Path) -> None:
    with open_file_limit(512):
        low = check(tmp_path, "too_many_open_files", "OSError: [Errno 24] Too many open files")
        assert low.state == "still there"
        assert "512" in low.why
        assert check(tmp_path, "too_many_open_files", "x", at_least=512).state == "gone"


def test_limit_on_processes(tmp_path: Path) -> None:
    assert check(tmp_path, "thread_limit", "can't start new thread", at_least=1).state == "gone"
    assert check(tmp_path, "thread_limit", "can't start new thread", at_least=10**9).state == "still there"


def test_shared_memory(tmp_path: Path) -> None:
    assert check(tmp_path, "bus_error_shm", "insufficient shared memory (shm)", at_least_mib=1).state == "gone"
    assert check(tmp_path, "bus_error_shm", "Bus error", at_least_mib=1).state == "cannot be checked here"
    small = check(tmp_path, "bus_error_shm", "Bus error", at_least_mib=10**9)
    assert small.state == "still there"
    assert "/dev/shm" in small.why
    unrelated = check(tmp_path, "dataloader_worker_killed", "DataLoader worker (pid 7) is killed by signal: Killed.")
    assert unrelated.state == "cannot be checked here"


def test_module_is_found_and_not_imported(tmp_path: Path) -> None:
    trap = tmp_path / "imported"
    frame = f'  File "{tmp_path}/train.py", line 3, in <module>\n'
    line = frame + "ModuleNotFoundError: No module named 'neighbour_of_script'"
    assert check(tmp_path, "import_error", line).state == "still there"
    (tmp_path / "neighbour_of_script.py").write_text(f"open({str(trap)!r}, 'w')")
    assert check(tmp_path, "import_error", line).state == "gone"
    assert not trap.exists()


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("ModuleNotFoundError: No module named 'json.tool'", "gone"),
        ("ModuleNotFoundError: No module named 'json.no_such_part'", "still there"),
        ("ModuleNotFoundError: No module named 'sys'", "gone"),
        ("ImportError: cannot import name 'x' from 'json'", "cannot be checked here"),
        ("No module named 'json'\nfailed (exitcode: 1) local_rank: 0 of binary: /opt/env/bin/python", "cannot be"),
    ],
)
def test_modules(line: str, state: str, tmp_path: Path) -> None:
    assert check(tmp_path, "import_error", line).state.startswith(state)


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("job.sh: line 3: torchrun-of-nobody: command not found", "still there"),
        ("job.sh: line 3: sh: command not found", "gone"),
        ("slurmstepd: error: execve(): no-such-launcher: No such file or directory", "still there"),
        ("python: can't open file '/nowhere/train.py': [Errno 2] No such file or directory", "still there"),
        ("python: can't open file 'train.py': [Errno 2] No such file or directory", "cannot be checked here"),
    ],
)
def test_commands(line: str, state: str, tmp_path: Path) -> None:
    assert check(tmp_path, "command_not_found", line).state == state


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """A program of that name that answers queries from a table; there is no GPU where tests run."""

    def install(answers: dict[str, str]) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        cases = "\n".join(f'"{query}") printf "{answer}" ;;' for query, answer in answers.items())
        program = folder / "nvidia-smi"
        program.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\n*) exit 9 ;;\nesac\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    return install


INDEX, MODE, APPS = "--query-gpu=index", "--query-gpu=index,compute_mode", "--query-compute-apps=pid"
ECC = "--query-gpu=index,ecc.errors.uncorrected.volatile.total"


@pytest.mark.parametrize(
    ("category", "answers", "visible", "state"),
    [
        ("gpu_unavailable", {MODE: "0, Default\\n", APPS: "77\\n"}, None, "gone"),
        ("gpu_unavailable", {MODE: "0, Exclusive_Process\\n", APPS: "77\\n"}, None, "still there"),
        ("gpu_unavailable", {MODE: "0, Exclusive_Process\\n", APPS: ""}, None, "gone"),
        ("gpu_unavailable", {MODE: "0, Prohibited\\n"}, None, "still there"),
        ("gpu_unavailable", {}, None, "cannot be checked here"),
        ("gpu_hardware", {ECC: "0, 0\\n1, 3\\n"}, None, "still there"),
        ("gpu_hardware", {ECC: "0, 0\\n1, [N/A]\\n"}, None, "cannot be checked here"),
        ("invalid_device_ordinal", {INDEX: "0\\n1\\n"}, None, "cannot be checked here"),
    ],
)
def test_gpus(
    category: str, answers: dict[str, str], visible: str | None, state: str, tmp_path: Path, nvidia_smi: Callable
) -> None:
    nvidia_smi(answers)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert check(tmp_path, category, "CUDA error", environ=environ).state == state


def test_another_host_is_not_this_one(tmp_path: Path) -> None:
    write_node(tmp_path, host="node-of-somebody")
    report = report_of("file_not_found", "No such file or directory: '/'")
    entry = ENTRIES["file_not_found"]
    elsewhere = verify(tmp_path, report, entry, {}, is_here_enough=False)
    assert elsewhere.state == "cannot be checked here"
    assert "node-of-somebody" in elsewhere.why
    assert verify(tmp_path, report, entry, {}, is_here_enough=True).state == "gone"


def test_of_an_uncertain_cause_nothing_is_claimed(tmp_path: Path) -> None:
    report = msgspec.structs.replace(
        report_of("file_not_found", "No such file or directory: '/'"), confidence="unknown"
    )
    result = verify(tmp_path, report, ENTRIES["file_not_found"], {}, is_here_enough=False)
    assert (result.state, result.why) == (
        "cannot be checked here",
        "the cause is not certain; / is on this host",
    )


def test_what_the_evidence_leaves_out_is_read_from_the_stream(tmp_path: Path) -> None:
    write_node(tmp_path, host=socket.gethostname())
    stream = tmp_path / "nodes" / "node_0" / "training.stderr.log"
    stream.write_text(f"FileNotFoundError: [Errno 2] No such file or directory: '{stream}'\n")
    assert check(tmp_path, "file_not_found").state == "gone"


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.category)
def test_every_category_has_an_answer_also_without_evidence(entry: CatalogEntry, tmp_path: Path) -> None:
    result = verify(tmp_path, report_of(entry.category), entry, {}, is_here_enough=False)
    assert result.why
    if entry.category == "ok":
        assert result.state == "gone"
    elif entry.verify is None or entry.verify.find:
        assert result.state == "cannot be checked here"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["/", "a", "/a.", "'/", '"/', "port ", "open(", "[c10d] [", ": /", "connect to (a"])
def test_no_line_of_a_log_keeps_a_check_busy(text: str, tmp_path: Path) -> None:
    """The timeout is what this test is about: a pattern must not try every start against every end."""
    for category, entry in ENTRIES.items():
        if entry.verify is not None:
            check(tmp_path, category, text * (2**16 // len(text)))


def test_each_kind_of_check_is_made_by_somebody() -> None:
    assert set(CHECKS) == set(typing.get_args(CheckKind))
    assert {entry.verify.kind for entry in ENTRIES.values() if entry.verify is not None} == set(CHECKS)


def write_run(run_dir: Path, report: FailureReport) -> Path:
    run_dir.mkdir()
    (run_dir / "telemetry.sqlite").touch()
    (run_dir / "failure_report.json").write_bytes(msgspec.json.encode(report))
    return run_dir


def test_the_command_says_one_line_and_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "data.bin"
    line = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    run_dir = write_run(tmp_path / "run", report_of("file_not_found", line))
    assert look_at_runs(["verify", str(run_dir)]) == 1
    assert capsys.readouterr().out == f"file_not_found: still there: {path} is not on this host\n"
    path.touch()
    assert look_at_runs(["verify", "run", "--logs-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"file_not_found: gone: {path} is on this host\n"
    other = write_run(tmp_path / "other", report_of("python_exception", "ValueError"))
    assert look_at_runs(["verify", str(other)]) == 3
    shown = capsys.readouterr().out
    assert shown == "python_exception: cannot be checked here: no check of this machine could tell; by hand: df -h\n"


def test_a_run_that_cannot_be_verified_is_a_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write_run(tmp_path / "run", report_of("ok"))
    assert look_at_runs(["verify", str(run_dir)]) == 0
    (run_dir / "failure_report.json").write_bytes(b"\xff{")
    assert look_at_runs(["verify", str(run_dir)]) == 2
    (run_dir / "failure_report.json").unlink()
    assert look_at_runs(["verify", str(run_dir)]) == 2
    assert look_at_runs(["verify", str(tmp_path / "nowhere")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert "is damaged" in errors[0]
    assert "is missing" in errors[1]


def test_nothing_of_a_report_is_executed_or_reaches_the_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trap = tmp_path / "executed"
    evil = f"/x\x1b[2J; touch {trap}; $(touch {trap})"
    for category in ENTRIES:
        entry = ENTRIES[category]
        for line in (*PORT_LINES, f"No such file or directory: '{evil}'", f"No module named '{trap}'", evil):
            report = report_of(category, line.replace("{port}", "99999"), summary=evil)
            verify(tmp_path, report, entry, dict(os.environ), is_here_enough=True)
    run_dir = write_run(tmp_path / "run", report_of("file_not_found", f"No such file or directory: '{evil}'"))
    look_at_runs(["verify", str(run_dir)])
    assert not trap.exists()
    assert "\x1b" not in capsys.readouterr().out
