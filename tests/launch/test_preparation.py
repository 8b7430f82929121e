"""What `traceml run` reads of this machine before anything starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from traceml_client.protocol.errors import ConfigError
from traceml_client.protocol.token_file import read_token_file
from traceml_launch.commandline.config import LaunchConfig
from traceml_launch.commandline.preparation import new_run_name, prepare
from traceml_launch.commandline.values import is_run_name


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(*words: str) -> LaunchConfig:
    config = prepare(words)
    assert config is not None
    return config


def test_the_environment_and_the_file_of_the_working_directory_count(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "traceml.toml").write_text('logs-dir = "runs"\nsettle-sec = 4\n')
    monkeypatch.setenv("TRACEML_SETTLE_SEC", "2")
    config = launch("--nproc-per-node", "cpu", "train.py")
    assert config.logs_dir == elsewhere / "runs"
    assert config.settle_s == 2
    assert config.num_local_ranks == len(os.sched_getaffinity(0))


def test_generated_names_are_valid_and_differ() -> None:
    names = {new_run_name() for _ in range(50)}
    assert len(names) == 50
    assert all(is_run_name(name) for name in names)


def test_the_token_comes_from_its_file_before_its_variable(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEML_TOKEN", "of the variable")
    assert launch("train.py").token == "of the variable"
    (elsewhere / "token").write_text("of-the-file\n")
    assert launch("--token-file", "token", "train.py").token == "of-the-file"


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), (b"", "is empty"), (b"\xff\xfe", "one line of text")]
)
def test_a_token_that_cannot_be_read_names_its_source(elsewhere: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (elsewhere / "token").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^TRACEML_TOKEN_FILE ") as caught:
        read_token_file(elsewhere / "token", source="TRACEML_TOKEN_FILE")
    assert reason in str(caught.value)


@pytest.mark.parametrize(("has_client", "is_disabled"), [(True, False), (False, True)])
def test_ranks_of_another_interpreter_need_our_client(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, has_client: bool, is_disabled: bool
) -> None:
    other = elsewhere / "python"
    other.write_text(f"#!/bin/sh\nexit {0 if has_client else 1}\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", str(other))
    config = launch("train.py")
    assert config.is_disabled is is_disabled
    assert len(config.notices) == int(is_disabled)


def test_our_own_interpreter_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", sys.executable)
    assert not launch("train.py").is_disabled
