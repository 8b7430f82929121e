"""`python -m tests.faults`: run faults for real, one after the other, and judge them.

    python -m tests.faults [--shared DIR] [--repeat N] [--repeat-racy N] [--readme FILE] [--keep DIR] [NAME ...]

With --shared it runs that folder's whole matrix, its scripts unmodified, else our own table. A repetition fails on
another rank and at another step, where the truth is known for that. Exit code 1 if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.faults.catalogue import Case, own_cases, shared_cases, why_not_here
from tests.faults.checks import complaints, exit_lag_s, is_torch_restart_race
from tests.faults.naming import Naming, naming
from tests.faults.runner import Outcome, run_case
from tests.faults.table import CaseResult, RunResult, render, write_into
from tests.faults.variants import variant
from tests.harness.processes import hear_signals_again

MAX_VOID_RUNS = 8
"""Torch's restart race makes some runs prove nothing; they are run again, but not for ever."""


def main() -> int:
    options = _parse()
    hear_signals_again()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends what is running, by `with`
    cases = shared_cases(options.shared) if options.shared else own_cases()
    wanted = set(options.names)
    unknown = wanted - {case.fault.name for case in cases} - {case.id for case in cases}
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    results = []
    for case in cases:
        if not wanted or case.fault.name in wanted or case.id in wanted:
            results.append(_judge(case, options.repeat_racy if case.fault.racy else options.repeat, options.keep))
            _print(results[-1])
    table = render(results)
    print(f"\n{table}")
    if options.readme and not wanted:  # the tables there are of the whole
        write_into(options.readme, results)
    num_bad = sum(1 for result in results if any(result.complaints()))
    num_ran = sum(1 for result in results if result.runs)
    print(f"{num_ran - num_bad} passed, {num_bad} failed, {len(results) - num_ran} skipped")
    return 1 if num_bad else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults or cases; default: all")
    parser.add_argument("--shared", type=Path, help="a folder with faults/manifest.toml and cases/lab")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each case")
    parser.add_argument("--repeat-racy", type=int, default=1, help="runs of a case whose order of deaths is a race")
    parser.add_argument("--readme", type=Path, help="the file whose tables a run of all replaces")
    parser.add_argument("--keep", type=Path, help="keep the work folders here")
    return parser.parse_args()


def _judge(case: Case, num_runs: int, keep: Path | None) -> CaseResult:
    lacking = why_not_here(case.fault)
    if lacking:
        return CaseResult(case=case, skipped=lacking)
    runs: list[RunResult] = []
    num_void = 0
    while len(runs) < num_runs:
        one = msgspec.structs.replace(case, fault=variant(case.fault, len(runs)))
        result = _run_once(one, keep, len(runs) + num_void)
        if result is None and num_void < MAX_VOID_RUNS:
            num_void += 1
            continue
        if result is None and runs:
            break  # the others are what there is to judge
        runs.append(result or _unusable("torch's restart race in every run"))
    return CaseResult(case=case, runs=tuple(runs))


def _run_once(case: Case, keep: Path | None, index: int) -> RunResult | None:
    work = Path(tempfile.mkdtemp(prefix="fault_")) if keep is None else keep / f"{case.id}.{index}"
    work.mkdir(parents=True, exist_ok=True)
    try:
        outcome = run_case(case, work)
        return None if is_torch_restart_race(outcome) else _result(outcome)
    except (TimeoutError, LookupError, AssertionError) as error:
        return _unusable(str(error).splitlines()[0])
    finally:
        if keep is None:
            shutil.rmtree(work, ignore_errors=True)


def _result(outcome: Outcome) -> RunResult:
    found = complaints(outcome)
    has_manifest = (outcome.folder.path / "manifest.json").exists()
    return RunResult(
        exit_codes=tuple(launcher.exit_code for launcher in outcome.launchers),
        status=outcome.folder.manifest()["status"] if has_manifest else "-",
        exit_lag_s=exit_lag_s(outcome),
        naming=naming(outcome),
        complaints=tuple(found),
    )


def _named(found: Naming | None) -> str:
    if found is None:
        return "no failure"
    return f"rank {found.rank} {found.category} {found.confidence}, torchrun {found.torchrun_rank}"


def _unusable(why: str) -> RunResult:
    return RunResult(exit_codes=(), status="-", exit_lag_s=None, naming=None, complaints=(why,))


def _print(result: CaseResult) -> None:
    if result.skipped:
        print(f"{result.case.id}: skipped, {result.skipped}", flush=True)
        return
    for run in result.runs:
        lag = "-" if run.exit_lag_s is None else f"{run.exit_lag_s:.2f} s"
        print(f"{result.case.id}: exit {list(run.exit_codes)}, {run.status}, {lag}, {_named(run.naming)}", flush=True)
    for complaint in result.complaints():
        print(f"    {complaint}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
