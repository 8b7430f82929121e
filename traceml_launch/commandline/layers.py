"""Where the value of an option stands. Flag, TRACEML_*, traceml.toml, the job's environment, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from traceml_client.protocol.environ import option_variable
from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline import torchrun_options
from traceml_launch.commandline.arguments import CommandLine
from traceml_launch.commandline.job_environment import JobEnvironment
from traceml_launch.commandline.options import BY_KEY, BY_SPELLING, OPTIONS, suggestion
from traceml_launch.commandline.values import parse

FILE_NAME = "traceml.toml"


class Found(NamedTuple):
    source: str
    text: str
    is_derived: bool = False
    """From the job's environment: a guess of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Everything that was said about the options."""

    line: CommandLine
    environ: Mapping[str, str]
    file: Mapping[str, str]
    """traceml.toml: key -> text."""
    job: JobEnvironment
    folder: Path
    """The working directory, absolute: where relative paths begin."""

    def find(self, key: str) -> Found | None:
        """Where the option says something, first layer first; null if nowhere."""
        if key in self.line.given:
            return Found(*self.line.given[key])
        spellings = BY_KEY[key].spellings
        for variable in map(option_variable, spellings):
            if self.environ.get(variable):
                return Found(variable, self.environ[variable])
        for name in (spelling[2:] for spelling in spellings):
            if name in self.file:
                return Found(f"{FILE_NAME}: {name}", self.file[name])
        return Found(*self.job.values[key], True) if key in self.job.values else None

    def get(self, key: str) -> Any:
        """The value, of its kind's type, paths absolute; null where nobody said anything.

        Raises:
            ConfigError: it does not parse; the text names its source.
        """
        found = self.find(key)
        value = None if found is None else parse(BY_KEY[key], found.text, source=found.source)
        return self.folder / value if isinstance(value, Path) else value

    def refuse_later(self) -> None:
        """Raises ConfigError for the first option whose value is not in this version."""
        for option in OPTIONS:
            found = self.find(option.key) if option.is_later else None
            accepted = [parse(option, text, source=option.name) for text in option.accepted]
            if found is not None and self.get(option.key) not in accepted:
                raise ConfigError(f"{found.source} {found.text} is not in this version of TraceML")

    def derived(self) -> dict[str, Found]:
        """Option keys whose value is the job's."""
        found = {option.key: self.find(option.key) for option in OPTIONS}
        return {key: each for key, each in found.items() if each is not None and each.is_derived}

    def torchrun(self, name: str) -> str:
        """What torchrun will see for one of its own options, its PET_* variable included; empty for nothing."""
        for text in (
            self.line.torchrun_values.get(name),
            self._elsewhere(name),
            self.environ.get("PET_" + name.removeprefix("--").replace("-", "_").upper()),
        ):
            if text:
                return "" if name in torchrun_options.SWITCHES and text.lower() in ("0", "false") else text
        return ""

    def torchrun_words(self) -> list[str]:
        """torchrun's own options for its command line: as written, then those of TRACEML_* and the file."""
        words = list(self.line.torchrun)
        for name in torchrun_options.PASSED_ON:
            if name not in self.line.torchrun_values and self._elsewhere(name) and self.torchrun(name):
                words += [name] if name in torchrun_options.SWITCHES else [name, self.torchrun(name)]
        return words

    def _elsewhere(self, name: str) -> str | None:
        """What our variable or the file says of an option of torchrun's."""
        return self.environ.get(option_variable(name)) or self.file.get(name.removeprefix("--"))


def read_file(folder: Path) -> dict[str, str]:
    """`traceml.toml`, options at its top level: key with hyphens -> text of its value; empty if it is not there.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has a key or a value that is no option's.
    """
    try:
        data = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{FILE_NAME} cannot be read: {error.strerror}") from None
    import tomllib  # 30 ms that only those pay who have such a file

    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{FILE_NAME} is no TOML: {error}") from None
    return {_key(written): _text(written, value) for written, value in document.items()}


def _key(written: str) -> str:
    name = "--" + written.replace("_", "-")
    known = [*BY_SPELLING, *torchrun_options.PASSED_ON]
    if name in known:
        return name.removeprefix("--")
    raise ConfigError(f"{FILE_NAME}: {written} is no option{suggestion(name, known).replace('--', '')}")


def _text(written: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{FILE_NAME}: {written} must be a string, a number, true or false")
