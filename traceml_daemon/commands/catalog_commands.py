"""`traceml explain` and `traceml verify`: the failure catalogue in the terminal or as a page, and a run's check."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from traceml_client.protocol.artifacts import FAILURE_FILE
from traceml_client.protocol.errors import ConfigError, StoreError
from traceml_client.protocol.manifest import FILE_NAME as MANIFEST_FILE
from traceml_client.protocol.manifest import read_manifest
from traceml_daemon.commands import explaining
from traceml_daemon.log_files import catalog
from traceml_daemon.report.catalog_text import Line, ending_lines, entry_lines, listing_lines
from traceml_daemon.triage.entry import CatalogEntry

EXIT_NOT_CHECKABLE: Final = 3
_EXIT_CODES: Final = {"gone": 0, "still there": 1, "cannot be checked here": EXIT_NOT_CHECKABLE}
PAGE_FILE: Final = "traceml-failures.html"
_MAX_WIDTH: Final = 100
_STYLES: Final = {"title": "bold", "heading": "bold cyan", "text": "", "command": "green", "muted": "dim"}


def explain(words: Sequence[str]) -> None:
    """Print the answer: coloured in a terminal, plain in a pipe or with NO_COLOR.

    Raises:
        ConfigError: see `explaining.explain`.
    """
    answer = explaining.explain(words, catalog.load_catalog(), catalog.load_endings())
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for line in _lines(answer, min(console.width, _MAX_WIDTH)):
        console.print(Text(line.text, style=_STYLES[line.style]))


def write_page(words: Sequence[str]) -> Path:
    """The whole catalogue as one file.

    Raises:
        ConfigError: not one path, or it cannot be written.
    """
    if len(words) > 1 or set(words) & set(catalog.categories()):
        raise ConfigError("--html writes the whole catalogue: give one PATH, or none")
    from traceml_daemon.report.catalog_text import catalog_html

    path = Path(words[0] if words else PAGE_FILE).expanduser()
    try:
        path.write_text(catalog_html(list(catalog.load_catalog().values()), catalog.load_endings()), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html: cannot write {path}: {error.strerror}") from None
    return path


def _lines(answer: explaining.Answer, width: int) -> Iterable[Line]:
    if isinstance(answer, CatalogEntry):
        return entry_lines(answer, width)
    if isinstance(answer, explaining.Listing):
        return listing_lines(answer.title, answer.entries, width)
    return ending_lines(answer.title, answer.meaning, answer.causes, width)


def verify(run_dir: Path, environ: Mapping[str, str], *, is_here_enough: bool) -> int:
    """Check on this machine whether the diagnosed cause is still there; print one line; return the exit code.

    Raises:
        StoreError: the run has no diagnosis that can be read.
    """
    from traceml_daemon.report.saved import read_failure
    from traceml_daemon.verify import checks
    from traceml_daemon.verify.case import printable

    is_told = (run_dir / FAILURE_FILE).exists() or not (run_dir / MANIFEST_FILE).exists()
    if not is_told and (status := read_manifest(run_dir).status) != "failed":
        raise StoreError(f"run {run_dir.name} is {status}: there is no failure to verify")
    report = read_failure(run_dir)
    entry = catalog.load_catalog().get(report.category)
    result = checks.verify(run_dir, report, entry, environ, is_here_enough=is_here_enough)
    category = printable(report.category)
    code = _EXIT_CODES[result.state]
    by_hand = (
        f"; by hand: {printable(report.verify_command)}" if code == EXIT_NOT_CHECKABLE and report.verify_command else ""
    )
    print(f"{category}: {result.state}: {result.why}{by_hand}")
    return code
