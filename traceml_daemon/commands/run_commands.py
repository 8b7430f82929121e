"""The commands of `traceml` about runs that are there: their options, and what their outcome is as an exit code.

What a command does is imported when it is asked for: each of them is short, and so should its start be.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from traceml_client.protocol import environ
from traceml_client.protocol.errors import ConfigError
from traceml_daemon.run import run_lookup

EXIT_BAD_RUN: Final = 1
"""`status`: the run failed, was interrupted or abandoned, or stalls."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_LogsDir = Annotated[
    str | None, typer.Option("--logs-dir", metavar="DIR", help="where run folders live [default: logs]")
]
_RUN_HELP: Final = "a run folder, its manifest.json or final_summary.json, or a name below --logs-dir"
_Run = Annotated[str, typer.Argument(metavar="RUN", help=_RUN_HELP)]


def run_folder(run: str | None, logs_dir: str | None) -> Path:
    """Raises ConfigError where there is no such run."""
    return run_lookup.find_run(run, logs_folder(logs_dir))


def logs_folder(logs_dir: str | None) -> Path:
    """Raises ConfigError."""
    return run_lookup.logs_dir(logs_dir, environ.snapshot(), folder=Path.cwd())


@app.callback()
def _root() -> None: ...


@app.command()
def status(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help=f"{_RUN_HELP} [default: the newest]")] = None,
    logs_dir: _LogsDir = None,
    is_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> int:
    """The state of a live or past run: ranks, last step, who is missing, telemetry health.

    Exit code 0: alive and well, or completed; 1: failed, interrupted, stalled or abandoned; 2: no such run.
    """
    from traceml_client.protocol.manifest import encode_json
    from traceml_daemon.commands.view import status_text
    from traceml_daemon.run import run_status

    found = run_status.read_status(run_folder(run, logs_dir), now_ns=time.time_ns())
    sys.stdout.write(encode_json(found).decode() if is_json else status_text(found))
    return 0 if found.is_healthy else EXIT_BAD_RUN


@app.command()
def view(
    run: _Run,
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="with --html: the page [default: in the run's folder]")
    ] = None,
    logs_dir: _LogsDir = None,
    is_html: Annotated[bool, typer.Option("--html", help="write the report as one HTML page instead")] = False,
) -> None:
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


@app.command("compare")
def compare_command(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help=f"{_RUN_HELP}; or, alone, a folder of runs")],
    run_b: Annotated[str | None, typer.Argument(metavar="[RUN_B]", help="the run that is judged against RUN_A")] = None,
    logs_dir: _LogsDir = None,
    is_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
    fail_on_regression: Annotated[
        float | None,
        typer.Option(metavar="PCT", min=0.1, help="exit 4 if B is slower by PCT % or more, 3 if that cannot be told"),
    ] = None,
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


@app.command("diagnose")
def diagnose_command(
    what: Annotated[
        list[str], typer.Argument(metavar="RUN|LOG...|-", help=f"log files, one or more for each node; or {_RUN_HELP}")
    ],
    logs_dir: _LogsDir = None,
    is_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
    is_sarif: Annotated[bool, typer.Option("--sarif", help="SARIF, for editors and code hosts")] = False,
    is_redacted: Annotated[
        bool, typer.Option("--redact", help="replace users, hosts, paths, addresses and tokens, for a ticket")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="FILE", help="also write one redacted archive (.tar.gz)")
    ] = None,
) -> int:
    """Which rank failed first, and why: of a run, or of the log files of any torchrun job.

    Exit code 0: the cause was found, or nothing failed; 3: the confidence is unknown; 2: what was given is no log.
    """
    from traceml_daemon.commands import diagnosing

    if is_json and is_sarif:
        raise ConfigError("--json, --sarif: give one of them")
    run_dir = _run_among(what, logs_dir)
    form: Literal["text", "json", "sarif"] = "json" if is_json else "sarif" if is_sarif else "text"
    is_redacted = is_redacted or bundle is not None
    return diagnosing.diagnose(what, run_dir, form=form, is_redacted=is_redacted, bundle=bundle)


def _run_among(what: list[str], logs_dir: str | None) -> Path | None:
    """The folder of the run that is meant; null: these are logs. Raises ConfigError."""
    for name in what:
        path = Path(name).expanduser()
        if name == "-" or (path.exists() and not path.is_dir() and path.name not in run_lookup.RUN_FILES):
            continue
        try:
            folder = run_folder(name, logs_dir)
        except ConfigError as error:
            streams = run_lookup.find_nodes_folder(name, logs_folder(logs_dir))
            if streams is None and path.is_dir():
                raise ConfigError(f"{name} is a folder without a run; name its log files, as in {name}/*.log") from None
            if streams is None:
                raise ConfigError(f"{name}: no such log file, and {error}") from None
            folder = streams
        if len(what) > 1:
            raise ConfigError(f"{name} is a run: give one run alone, or log files")
        return folder
    return None


@app.command()
def prune(
    logs_dir: _LogsDir = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", min=0, help="keep the N newest")] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="D", help="only what ended that long ago: 30d, 12h")
    ] = None,
) -> None:
    """Remove old run folders, never a live one."""
    from traceml_daemon.commands import pruning

    if (keep is None) == (older_than is None):
        raise ConfigError("give one of --keep N and --older-than D")
    age = None if older_than is None else pruning.parse_age(older_than)
    for path in pruning.old_runs(logs_folder(logs_dir), keep=keep, older_than=age, now_ns=time.time_ns()):
        pruning.remove(path)
        print(f"removed {path}")


@app.command("explain", context_settings={"ignore_unknown_options": True})
def explain_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CATEGORY | exit CODE | signal NAME | MESSAGE", help="what to explain [default: all]"),
    ] = None,
    is_html: Annotated[
        bool, typer.Option("--html", help="write the whole catalogue as one page: --html [PATH]")
    ] = False,
) -> None:
    """Look up a cause of failure, an exit code, a signal or a line of a log: what it means and what to do."""
    from traceml_daemon.commands import catalog_commands

    if is_html:
        print(catalog_commands.write_page(words or []))
    else:
        catalog_commands.explain(words or [])


@app.command("verify")
def verify_command(
    run: _Run,
    logs_dir: _LogsDir = None,
    is_here_enough: Annotated[
        bool, typer.Option("--here", help="check this host also where the run failed on another one")
    ] = False,
) -> int:
    """Check on this host whether the diagnosed cause is still there (exit 0 gone, 1 still there, 3 cannot tell)."""
    from traceml_daemon.commands import catalog_commands

    return catalog_commands.verify(run_folder(run, logs_dir), environ.snapshot(), is_here_enough=is_here_enough)
