"""`traceml demo`: the whole thing in seconds, on a job that is in the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from traceml_client.protocol import environ
from traceml_launch import cli
from traceml_launch.commandline.options import suggestion
from traceml_launch.commandline.preparation import new_run_name

FAULTS = ("crash", "kill")
LATER_FAULTS = ("hang",)
NUM_RANKS = 2
REPORTS = ("final_summary.txt", "failure_report.txt")


def run(*, fault: str, logs_dir: str, is_quiet: bool) -> int:
    """Train the packaged job, healthy or with a fault; print its report. Returns training's exit code, or 2."""
    refusal = _refusal(fault)
    if refusal:
        print(f"traceml demo: {refusal}", file=sys.stderr)
        return cli.EXIT_USAGE
    run_name = f"demo-{new_run_name()}"
    environ.set_default("GLOO_SOCKET_IFNAME", "lo")  # a laptop's host name often has no address that gloo can use
    words = ["--nnodes", "1", "--nproc-per-node", str(NUM_RANKS), "--run-name", run_name, "--logs-dir", logs_dir]
    words += ["--quiet"] if is_quiet else []
    code = cli.run_command([*words, "--", str(_script()), "--fault", fault or "none"])
    _print_report(Path(logs_dir) / run_name)
    return code


def _refusal(fault: str) -> str:
    if fault in LATER_FAULTS:
        return f"--fault {fault} is not in this version of TraceML"
    if fault and fault not in FAULTS:
        return f"--fault {fault} is not one of {', '.join(FAULTS)}{suggestion(fault, FAULTS)}"
    if importlib.util.find_spec("torch") is None:
        return "the demo trains with torch, which is not installed: pip install torch"
    return ""


def _script() -> Path:
    return Path(__file__).parent / "demo" / "train.py"


def _print_report(run_dir: Path) -> None:
    """The summary, which begins with the failure if there was one; the failure alone where no summary was written."""
    for path in (run_dir / name for name in REPORTS):
        if path.is_file():
            print(f"\n{path}\n\n{path.read_text(encoding='utf-8', errors='replace').rstrip()}", flush=True)
            return
