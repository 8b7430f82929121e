"""The commands of `traceml` about runs that are there: their options, and what their outcome is as an exit code.

What a command does is imported when it is asked for: each of them is short, and so should its start be.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from traceml_client.protocol import environ
from traceml_client.protocol.command_line import Command, option
from traceml_client.protocol.errors import ConfigError
from traceml_daemon.run import run_lookup

EXIT_BAD_RUN: Final = 1
"""`status`: the run failed, was interrupted or abandoned, or stalls."""


def run_folder(run: str | None, logs_dir: str | None) -> Path:
    """Raises ConfigError where there is no such run."""
    return run_lookup.find_run(run, logs_folder(logs_dir))


def logs_folder(logs_dir: str | None) -> Path:
    """Raises ConfigError."""
    return run_lookup.logs_dir(logs_dir, environ.snapshot(), folder=Path.cwd())


def status(run: str | None, logs_dir: str | None, is_json: bool) -> int:
    """The state of a live or past run: ranks, last step, who is missing, telemetry health."""
    from traceml_client.protocol.manifest import encode_json
    from traceml_daemon.commands import status_text
    from traceml_daemon.run import run_status

    found = run_status.read_status(run_folder(run, logs_dir), now_ns=time.time_ns())
    sys.stdout.write(encode_json(found).decode() if is_json else status_text.status_text(found))
    return 0 if found.is_healthy else EXIT_BAD_RUN


def view(run: str, path: Path | None, logs_dir: str | None, is_html: bool) -> None:
    """Print a run's report again, or draw it as a page; make it first where nobody did."""
    from traceml_daemon.commands.view import report_text, write_html

    folder = run_folder(run, logs_dir)
    if is_html:
        page = path or folder / "final_summary.html"
        write_html(folder, page)
        print(page)
    elif path is not None:
        raise ConfigError(f"{path}: a PATH goes with --html")
    else:
        sys.stdout.write(report_text(folder))


def compare(
    run_a: str, run_b: str | None, logs_dir: str | None, is_json: bool, fail_on_regression: float | None
) -> int:
    """What changed from one run to another, and whether that is more than noise; of a folder of runs a table."""
    from traceml_daemon.commands import comparing

    if run_b is not None:
        dir_a, dir_b = run_folder(run_a, logs_dir), run_folder(run_b, logs_dir)
        text, code = comparing.compare_two(dir_a, dir_b, is_json=is_json, limit_pct=fail_on_regression)
    elif fail_on_regression is None:
        text, code = comparing.table(Path(run_a).expanduser(), is_json=is_json), 0
    else:
        raise ConfigError("--fail-on-regression: give RUN_A and RUN_B")
    sys.stdout.write(text)
    return code


def diagnose(
    what: Sequence[str],
    logs_dir: str | None,
    is_json: bool,
    is_sarif: bool,
    is_redacted: bool,
    bundle: Path | None,
) -> int:
    """Which rank failed first, and why: of a run, or of the log files of any torchrun job."""
    from traceml_daemon.commands import diagnosing

    if is_json and is_sarif:
        raise ConfigError("--json, --sarif: give one of them")
    run_dir = None
    if len(what) == 1 and what[0] != diagnosing.STDIN and not Path(what[0]).is_file():
        run_dir = run_folder(what[0], logs_dir)
    form: Literal["text", "json", "sarif"] = "json" if is_json else "sarif" if is_sarif else "text"
    return diagnosing.diagnose(
        what, run_dir, diagnosing.Output(form=form, is_redacted=is_redacted or bundle is not None, bundle=bundle)
    )


def prune(logs_dir: str | None, keep: int | None, older_than: str | None) -> None:
    """Remove old run folders, never a live one."""
    from traceml_daemon.commands import pruning

    if (keep is None) == (older_than is None):
        raise ConfigError("give one of --keep N and --older-than D")
    age = None if older_than is None else pruning.parse_age(older_than)
    for path in pruning.old_runs(logs_folder(logs_dir), keep=keep, older_than=age, now_ns=time.time_ns()):
        pruning.remove(path)
        print(f"removed {path}")


def explain(words: Sequence[str], is_html: bool) -> None:
    """Look up a cause of failure, an exit code, a signal or a line of a log: what it means and what to do.

    WORDS: CATEGORY, exit CODE, signal NAME, or MESSAGE; without any all causes are listed.
    """
    from traceml_daemon.commands import catalog_commands

    if is_html:
        print(catalog_commands.write_page(words))
    else:
        catalog_commands.explain(words)


def verify(run: str, logs_dir: str | None, is_here_enough: bool) -> int:
    """Check on this host whether the diagnosed cause is still there (exit 0 gone, 1 still there, 3 cannot tell)."""
    from traceml_daemon.commands import catalog_commands

    return catalog_commands.verify(run_folder(run, logs_dir), environ.snapshot(), is_here_enough=is_here_enough)


def _at_least(minimum: float, parse: Callable[[str], float]) -> Callable[[str], float]:
    def parsed(text: str) -> float:
        try:
            if (value := parse(text)) >= minimum:
                return value
        except ValueError:
            pass
        raise ArgumentTypeError(f"{text!r} is no number of {minimum:g} or more")

    return parsed


_RUN_HELP: Final = "a run folder, its manifest.json or final_summary.json, or a name below --logs-dir"
_RUN: Final = option("run", metavar="RUN", help=_RUN_HELP)
_LOGS_DIR: Final = option("--logs-dir", metavar="DIR", help="where run folders live [default: logs]")
_JSON: Final = option("--json", dest="is_json", action="store_true", help="one JSON document")
COMMANDS: Final = {
    "status": Command(
        status, (option("run", nargs="?", metavar="[RUN]", help=f"{_RUN_HELP} [default: the newest]"), _LOGS_DIR, _JSON)
    ),
    "view": Command(
        view,
        (
            _RUN,
            option("path", nargs="?", type=Path, metavar="[PATH]", help="with --html [default: in the run's folder]"),
            _LOGS_DIR,
            option("--html", dest="is_html", action="store_true", help="write the report as one HTML page instead"),
        ),
    ),
    "compare": Command(
        compare,
        (
            option("run_a", metavar="RUN_A", help=f"{_RUN_HELP}; or, alone, a folder of runs"),
            option("run_b", nargs="?", metavar="[RUN_B]", help="the run that is judged against RUN_A"),
            _LOGS_DIR,
            _JSON,
            option(
                "--fail-on-regression",
                type=_at_least(0.1, float),
                metavar="PCT",
                help="exit 4 if B is slower by PCT %% or more, 3 if that cannot be told",
            ),
        ),
    ),
    "diagnose": Command(
        diagnose,
        (
            option(
                "what", nargs="+", metavar="RUN|LOG...|-", help=f"log files, one or more for each node; or {_RUN_HELP}"
            ),
            _LOGS_DIR,
            _JSON,
            option("--sarif", dest="is_sarif", action="store_true", help="SARIF, for editors and code hosts"),
            option(
                "--redact",
                dest="is_redacted",
                action="store_true",
                help="replace users, hosts, paths, addresses and tokens, for a ticket",
            ),
            option("--bundle", type=Path, metavar="FILE", help="also write one redacted archive (.tar.gz)"),
        ),
    ),
    "prune": Command(
        prune,
        (
            _LOGS_DIR,
            option("--keep", type=_at_least(0, int), metavar="N", help="keep the N newest"),
            option("--older-than", metavar="D", help="only what ended that long ago: 30d, 12h"),
        ),
    ),
    "explain": Command(
        explain,
        (option("--html", dest="is_html", action="store_true", help="write all as one page: --html [PATH]"),),
        rest="words",
    ),
    "verify": Command(
        verify,
        (
            _RUN,
            _LOGS_DIR,
            option(
                "--here",
                dest="is_here_enough",
                action="store_true",
                help="check this host also where the run failed on another one",
            ),
        ),
    ),
}
