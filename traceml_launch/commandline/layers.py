"""Pure: where the value of an option stands. Flag, TRACEML_*, traceml.toml, the job's environment, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from traceml_client.protocol.environ import option_variable
from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline import torchrun_options
from traceml_launch.commandline.arguments import CommandLine
from traceml_launch.commandline.job_environment import JobEnvironment
from traceml_launch.commandline.options import BY_KEY, OPTIONS, Option
from traceml_launch.commandline.values import Value, parse

FILE_NAME = "traceml.toml"
TARGET_SWITCHES = ("--module", "--no-python")
"""They say what SCRIPT is, so no variable and no file can."""

_T = TypeVar("_T")


class Found(NamedTuple):
    source: str
    text: str
    is_derived: bool = False
    """From the job's environment: a guess of ours."""


@dataclass(slots=True, kw_only=True)
class Layers:
    """Everything that was said about the options, and which of the job's values were used."""

    line: CommandLine
    environ: Mapping[str, str]
    file: Mapping[str, str]
    """traceml.toml: key -> text."""
    job: JobEnvironment
    ignored_job_keys: set[str] = field(default_factory=set)
    derived: list[str] = field(default_factory=list)
    """What was taken from the job's environment, in words."""

    def find(self, key: str) -> Found | None:
        """Where the option says something, first layer first; null if nowhere."""
        option = BY_KEY[key]
        if key in self.line.given:
            return Found(*self.line.given[key])
        for spelling in option.spellings:
            if self.environ.get(option_variable(spelling)):
                return Found(option_variable(spelling), self.environ[option_variable(spelling)])
        for spelling in option.spellings:
            if spelling[2:] in self.file:
                return Found(f"{FILE_NAME}: {spelling[2:]}", self.file[spelling[2:]])
        if key in self.job.values and key not in self.ignored_job_keys:
            return Found(*self.job.values[key], True)
        return None

    def get(self, key: str, kind: type[_T]) -> _T | None:
        """The value, or null where nobody said anything.

        Raises:
            ConfigError: it does not parse, or is not in this version; the text names its source.
        """
        found = self.find(key)
        if found is None:
            return None
        value = parse(BY_KEY[key], found.text, source=found.source)
        if found.is_derived:
            self.derived.append(f"--{key} {found.text} ({found.source})")
        if not isinstance(value, kind):
            raise TypeError(f"{key} is parsed as {type(value).__name__}, not as {kind.__name__}")
        return value

    def is_set(self, key: str) -> bool:
        return self.get(key, bool) or False

    def refuse_later(self) -> None:
        """Raises ConfigError for the first option whose value is not in this version."""
        for option in OPTIONS:
            found = self.find(option.key) if option.is_later else None
            if found is not None and _is_beyond(option, parse(option, found.text, source=found.source)):
                value = "" if option.kind == "flag" else f" {found.text}"
                raise ConfigError(f"{found.source}{value} is not in this version of TraceML")

    def torchrun(self, name: str) -> str:
        """What torchrun will see for one of its own options, its PET_* variable included; empty for nothing."""
        key = name.removeprefix("--")
        for text in (
            self.line.torchrun_values.get(name),
            self.environ.get(option_variable(name)),
            self.file.get(key),
            self.environ.get("PET_" + key.replace("-", "_").upper()),
        ):
            if text:
                return "" if name in torchrun_options.SWITCHES and text.lower() in ("0", "false") else text
        return ""

    def torchrun_words(self) -> list[str]:
        """torchrun's own options for its command line: as written, then those of TRACEML_* and the file."""
        words = list(self.line.torchrun)
        for name in sorted(torchrun_options.SWITCHES | torchrun_options.VALUED):
            is_given_elsewhere = self.environ.get(option_variable(name)) or self.file.get(name.removeprefix("--"))
            if not name.startswith("--") or name in TARGET_SWITCHES or name in self.line.torchrun_values:
                continue
            if is_given_elsewhere and self.torchrun(name):
                words += [name] if name in torchrun_options.SWITCHES else [name, self.torchrun(name)]
        return words


def _is_beyond(option: Option, value: Value) -> bool:
    if option.kind == "flag":
        return value is True
    return all(value != parse(option, text, source=option.name) for text in option.accepted)
