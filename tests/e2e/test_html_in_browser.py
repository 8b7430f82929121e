"""The HTML report in a real browser: nothing overflows, overlaps, is missing or hard to read."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import reports
from traceml_daemon.report.form import FinalSummary
from traceml_daemon.report.html import summary_html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
CHECKS = (Path(__file__).parent / "browser" / "check_page.js").read_text()
CHARTS = ["timeline", "shares", "step-time", "heat-map", "phases", "rss"]
FRAME = """<!doctype html><body style="margin: 0"><iframe style="width: {width}px; height: 900px; border: 0"
 srcdoc="{page}"></iframe><script>
onload = () => document.body.append(frames[0].document.getElementById("result"))</script>"""
"""A window is at least 500 pixels wide; a frame in it may be as narrow as a phone."""
DARK = "--blink-settings=preferredColorScheme=0"
PAGES: dict[str, Callable[[Path], FinalSummary]] = {
    "healthy": reports.healthy,
    "failed": reports.failed,
    "wide": reports.wide,
}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine"),
]


def browse(folder: Path, page: Path, *arguments: str) -> str:
    """Standard output of one headless browser."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", *arguments, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (1280, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_whole_and_readable(name: str, width: int, scheme: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    checked = summary_html(PAGES[name](tmp_path)) + f"<script>{CHECKS}</script>"
    page.write_text(FRAME.format(width=width, page=html.escape(checked)))
    dark = [DARK] if scheme == "dark" else []
    found = result(browse(tmp_path, page, "--window-size=1400,1000", "--dump-dom", *dark))
    assert found["problems"] == []
    assert found["charts"] == CHARTS
    assert found["width"] == width
    assert found["lowest"] >= 4.5
    assert (int(re.findall(r"\d+", found["page"])[0]) < 100) == (scheme == "dark")


def test_the_page_can_be_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(summary_html(reports.failed(tmp_path)))
    browse(tmp_path, page, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer", DARK)
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 6


def result(dom: str) -> dict[str, Any]:
    text = re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)
    assert text is not None, dom[-500:]
    found: dict[str, Any] = json.loads(html.unescape(text[1]))
    return found
