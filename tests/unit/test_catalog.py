"""Every entry of the failure catalogue is complete, consistent with the others, and safe to paste."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from traceml_daemon.log_files import catalog
from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.entry import FAMILIES, BadEntry, CatalogEntry, parse_entry
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.reader import LogReader

TAXONOMY = {
    "memory": "host_oom_kill cuda_oom host_memory_error",
    "signal": "sigkill_unattributed segfault abort bus_error_shm illegal_instruction",
    "external": "preempted_or_cancelled sigterm_unattributed hangup interrupted",
    "communication": "collective_timeout collective_mismatch nccl_system_error network_fabric collateral_only",
    "rendezvous": "rendezvous_failed port_in_use port_not_permitted",
    "gpu": "gpu_hardware invalid_device_ordinal no_gpu gpu_driver_mismatch gpu_unavailable cuda_device_assert"
    " cuda_illegal_access",
    "launch": "bad_cli_args command_not_found import_error wrong_world_size",
    "filesystem": "file_not_found permission_denied disk_full corrupted_file hub_access",
    "limits": "dataloader_worker_killed too_many_open_files thread_limit",
    "code": "shape_or_dtype_error checkpoint_mismatch numerical_failure ddp_unused_parameters ddp_model_mismatch"
    " config_error compile_error python_exception nonzero_exit",
    "stall": "hang",
    "agent": "agent_failure",
    "none": "ok",
    "unknown": "insufficient_evidence",
}
ENTRIES = catalog.load_catalog()
COMMANDS = [
    (entry.category, command)
    for entry in ENTRIES.values()
    for command in (entry.command, entry.verify_command, *(fact.command for fact in entry.missing))
]
each_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.category)
ONLY_READ_TEXT = (
    "cat command coredumpctl curl cut df dmesg echo env free gcc getent grep head ibstat id ip journalctl kubectl last"
    " ldconfig lfs ls lscpu mount namei nc nvidia-smi pip printenv ps pwd py-spy python quota rdma sacct scontrol sinfo"
    " sort srun ss sysctl tail traceml ulimit wc xargs"
)
"""Programs that change nothing in the way in which the catalogue calls them."""
ONLY_READ = frozenset(ONLY_READ_TEXT.split())


def test_the_taxonomy_is_covered_family_by_family() -> None:
    wanted = {category: family for family, names in TAXONOMY.items() for category in names.split()}
    assert {entry.category: entry.family for entry in ENTRIES.values()} == wanted
    assert list(TAXONOMY) == list(FAMILIES)


def test_each_file_has_the_name_of_its_category() -> None:
    assert [name for name in catalog.categories() if catalog.load_entry(name).category != name] == []


@each_entry
def test_no_field_is_empty(entry: CatalogEntry) -> None:
    optional = {"verify", "exit_codes", "signals"}
    empty = [name for name in entry.__struct_fields__ if name not in optional and not getattr(entry, name)]
    assert empty == []
    assert all(fact.fact and fact.command for fact in entry.missing)
    assert entry.signals or entry.exit_codes


@each_entry
def test_what_it_names_exists(entry: CatalogEntry) -> None:
    others = {*entry.related, *entry.mistaken_for}
    assert others - ENTRIES.keys() == set()
    assert entry.category not in others
    assert all(name in signal.Signals.__members__ for name in entry.signals)
    assert all(url.startswith("https://") and " " not in url for url in entry.references)


@each_entry
def test_the_line_to_alert_on_is_in_the_example(entry: CatalogEntry) -> None:
    assert re.search(entry.alert_line, entry.example, re.MULTILINE)
    assert not re.search(entry.alert_line, ""), "would alert on every line"


@each_entry
def test_the_example_is_diagnosed_as_what_it_is_an_example_of(entry: CatalogEntry) -> None:
    seen = Observations()
    reader = LogReader(0, load_book(), seen)
    reader.feed(f"{entry.example}\n".encode())
    reader.finish()
    in_a_bare_log = {"hang": "interrupted"}
    assert judge(seen).category == in_a_bare_log.get(entry.category, entry.category)


@each_entry
def test_the_patterns_of_its_check_compile_and_find_something(entry: CatalogEntry) -> None:
    if entry.verify is not None:
        assert all(re.compile(pattern).groups >= 1 for pattern in entry.verify.find)
        assert entry.verify.when is None or re.compile(entry.verify.when)


def programs(command: str) -> set[str]:
    """The first word of each part of a shell command."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    found, is_first = set(), True
    for word in words:
        if is_first and "=" not in word:
            found.add(word)
        is_first = word in {"|", ";", "&&", "||"} or (is_first and "=" in word)
    return found


@pytest.mark.parametrize(("category", "command"), COMMANDS)
def test_commands_can_be_pasted_and_only_read(category: str, command: str) -> None:
    filled = catalog.fill_command(command, stderr="/logs/stderr.log", run="/logs/run")
    assert not set("{}\n") & set(filled), "only {stderr}, {next_stderr} and {run} are filled in"
    assert programs(filled) - ONLY_READ == set(), category
    assert ">" not in re.sub(r"2>/dev/null|2>&1|'[^']*'|\"[^\"]*\"", "", filled)


def test_commands_are_shell() -> None:
    script = "\n".join(command for _, command in COMMANDS)
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=20, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@each_entry
def test_the_next_step_is_one_sentence_that_fits_the_terminal(entry: CatalogEntry) -> None:
    assert entry.next_step.endswith(".")
    assert len(entry.next_step) <= 200
    assert not re.search(r"[.!?] [A-Z]", entry.next_step)
    assert len(entry.title) <= 80
    assert not entry.title.endswith(".")


def test_an_entry_without_a_field_is_refused_by_the_name_of_the_field() -> None:
    with pytest.raises(BadEntry, match="title"):
        parse_entry('category = "x"\nfamily = "code"\n')
    with pytest.raises(BadEntry):
        parse_entry("category = ")


def test_tables_for_the_log_text_below_an_entry_do_not_disturb() -> None:
    name = "cuda_oom"
    text = (Path(catalog.__file__).parents[1] / "triage" / "catalog" / f"{name}.toml").read_text()
    assert parse_entry(text + '\n[[signs]]\npattern = "x"\n\n[[positive]]\ntext = "y"\n') == ENTRIES[name]


def test_every_signal_and_exit_code_that_entries_name_has_a_meaning() -> None:
    endings = catalog.load_endings()
    explained = {signal.Signals(each.number).name for each in endings.signals}
    assert {name for entry in ENTRIES.values() for name in entry.signals} - explained == set()
    assert all(each.meaning.endswith(".") for each in (*endings.signals, *endings.exit_codes))
