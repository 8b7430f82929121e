"""`traceml explain`: every category, exit code and signal, a pasted message, the page, and what is not known."""

from __future__ import annotations

import html.parser
import re
import signal
from pathlib import Path

import pytest

from tests.daemon.test_run_commands import Shown
from traceml_daemon.cli import look_at_runs
from traceml_daemon.commands import explaining
from traceml_daemon.commands.explaining import ExplainedEnding
from traceml_daemon.log_files import catalog
from traceml_launch import cli as front_door

ENTRIES = catalog.load_catalog()


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]):
    def run(*words: str) -> Shown:
        capsys.readouterr()
        code = look_at_runs(["explain", *words])
        return Shown(code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("category", ENTRIES)
def test_every_category_is_shown_in_full(explain, category: str) -> None:
    shown = explain(category)
    entry = ENTRIES[category]
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"{category}: {entry.title}\n")
    as_one_line = " ".join(shown.out.split())
    for text in (*entry.symptoms, entry.cause, entry.naive_reading, entry.next_step, entry.prevention):
        assert text in as_one_line
    for command in (entry.command, entry.verify_command, *(fact.command for fact in entry.missing)):
        filled = catalog.fill_command(command)
        assert f"  $ {filled}\n" in shown.out, "a command is never broken"
    assert "\x1b" not in shown.out


def test_without_a_name_all_are_listed_by_family(explain) -> None:
    shown = explain()
    assert shown.code == 0
    assert [name for name in ENTRIES if not re.search(rf"^  {name} ", shown.out, re.MULTILINE)] == []
    assert shown.out.index("Memory\n") < shown.out.index("GPU\n") < shown.out.index("Code and configuration\n")


def ending(*words: str) -> ExplainedEnding:
    answer = explaining.explain(words, ENTRIES, catalog.load_endings())
    assert isinstance(answer, ExplainedEnding)
    return answer


@pytest.mark.parametrize("code", [*range(-31, 0), *range(256)])
def test_every_exit_code_is_explained(code: int) -> None:
    answer = ending("exit", str(code))
    assert answer.title.startswith(f"Exit code {code}")
    assert answer.meaning
    assert ending(str(code)) == answer


@pytest.mark.parametrize("sent", [s for s in signal.Signals if s < signal.SIGRTMIN], ids=lambda s: s.name)
def test_every_signal_is_explained_by_name_and_by_number(sent: signal.Signals) -> None:
    answer = ending("signal", str(sent.value))
    assert answer.title == f"{sent.name} (signal {sent.value})"
    assert {entry.category for entry in answer.causes} == {
        e.category for e in ENTRIES.values() if sent.name in e.signals
    }
    assert ending("signal", sent.name) == ending("signal", sent.name.removeprefix("SIG").lower()) == answer


@pytest.mark.parametrize(
    ("words", "title", "category"),
    [
        ("exit -9", "Exit code -9: SIGKILL (signal 9), as torchrun", "host_oom_kill"),
        ("exit 137", "Exit code 137: SIGKILL (signal 9), as a shell", "sigkill_unattributed"),
        ("exit 3221225477", "Exit code 3221225477: an access violation (0xC0000005) on Windows", "segfault"),
        ("exit -1073740791", "Exit code -1073740791: a fast failure, which is what abort does (0xC0000409)", "abort"),
        ("exit 2", "Exit code 2", "bad_cli_args"),
        ("exit 42", "Exit code 42", "nonzero_exit"),
        ("signal 7", "SIGBUS (signal 7)", "bus_error_shm"),
        ("signal SIGBUS", "SIGBUS (signal 7)", "bus_error_shm"),
        ("SIGSEGV", "SIGSEGV (signal 11)", "segfault"),
        ("cuda oom", "cuda_oom:", "cuda_oom"),
        ("CUDA-OOM", "cuda_oom:", "cuda_oom"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", "cuda_oom:", "cuda_oom"),
    ],
)
def test_what_people_ask(explain, words: str, title: str, category: str) -> None:
    shown = explain(*words.split())
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(title)
    assert category in shown.out


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("hello world foo", "traceml explain lists all"),
        ("cuda_oon", "did you mean cuda_oom?"),
        ("oom", "did you mean cuda_oom or host_oom_kill?"),
        ("signal SIGKIL", "did you mean SIGKILL?"),
        ("signal 99", "no such signal"),
        ("exit nine", "an exit code is a number"),
        ("exit 300", "0 to 255"),
        ("exit -99", "no signal 99"),
        ("exit", "give a code"),
        ("zzzzzzzz", "traceml explain lists all"),
    ],
)
def test_what_is_not_known_is_one_line_with_the_nearest(explain, words: str, nearest: str) -> None:
    shown = explain(*words.split())
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.count("\n") == 1
    assert nearest in shown.err


def test_colour_in_a_terminal_only_and_not_with_no_color(explain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1m" in explain("cuda_oom").out
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in explain("cuda_oom").out


class PageReader(html.parser.HTMLParser):
    """Collects ids, links inside the page, and whatever the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name == "href" and value and value.startswith("#"):
                self.links.append(value[1:])
            if name in ("src", "srcset") or tag == "link":
                self.loads.append(f"{tag} {value}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("[rank3]: RuntimeError: CUDA error: out of memory", "cuda_oom"),
        ("OSError: [Errno 24] Too many open files: '/data/x'", "too_many_open_files"),
        ("KeyError: 'image'", "python_exception"),
    ],
)
def test_a_line_that_a_diagnosis_knows_is_explained(explain, line: str, category: str) -> None:
    assert explain(line).out.startswith(f"{category}: ")


def test_the_page_holds_everything_and_loads_nothing(explain, tmp_path: Path) -> None:
    path = tmp_path / "failures.html"
    shown = explain("--html", str(path))
    assert (shown.code, shown.out) == (0, f"{path}\n")
    page = PageReader()
    page.feed(path.read_text())
    assert page.ids.count("search") == 1
    assert ENTRIES.keys() - set(page.ids) == set()
    assert len(page.ids) == len(set(page.ids))
    assert set(page.links) - set(page.ids) == set()
    assert page.loads == []
    assert "@import" not in path.read_text()
    assert "url(" not in path.read_text()
    text = "".join(page.text)
    for entry in ENTRIES.values():
        assert entry.example in text
        assert entry.alert_line in text
        assert entry.naive_reading in text


def test_the_page_has_a_default_name_and_refuses_what_is_no_path(
    explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert explain("--html").out == "traceml-failures.html\n"
    assert (tmp_path / "traceml-failures.html").is_file()
    assert explain("--html", "cuda_oom").code == 2
    refused = explain("--html", str(tmp_path / "nowhere" / "x.html"))
    assert refused.code == 2
    assert "nowhere" in refused.err


def test_the_front_door_mounts_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["traceml", "explain", "exit", "-9"])
    assert front_door.main() == 0
    assert capsys.readouterr().out.startswith("Exit code -9: SIGKILL")
