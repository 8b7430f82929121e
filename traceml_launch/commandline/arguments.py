"""Pure: a command line of `traceml run` -> our options, torchrun's, and what belongs to the script, in order.

Before SCRIPT stand our options and torchrun's, with `-` or `_` between words. Behind SCRIPT only the hyphen spellings
of options that are not extras are ours, and nothing behind `--` or `--args`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline import torchrun_options
from traceml_launch.commandline.config import Target, TargetKind
from traceml_launch.commandline.options import BY_SPELLING, Option, suggestion

SEPARATORS = ("--", "--args")
HELP = ("--help", "-h")
_TARGET_KINDS: dict[str, TargetKind] = {"--module": "module", "-m": "module", "--no-python": "program"}


@dataclass(slots=True, kw_only=True)
class CommandLine:
    """What a command line says, before any value is looked at."""

    given: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Our options: key -> (as it was spelled, value); a flag's value is `true`. The last one wins."""
    torchrun: list[str] = field(default_factory=list)
    """torchrun's options as they were written."""
    torchrun_values: dict[str, str] = field(default_factory=dict)
    """The same by long name with hyphens; a switch's value is `true`."""
    kind: TargetKind = "script"
    script: str | None = None
    script_args: list[str] = field(default_factory=list)
    taken_behind_script: list[str] = field(default_factory=list)
    """The words behind SCRIPT that were ours."""
    is_help_wanted: bool = False

    @property
    def target(self) -> Target:
        """Raises ConfigError where there is none."""
        if self.script is None:
            raise ConfigError("SCRIPT is missing: traceml run [OPTIONS] SCRIPT [ARGS...]")
        return Target(kind=self.kind, name=self.script, args=tuple(self.script_args))


def split(argv: Sequence[str]) -> CommandLine:
    """Read the words behind `traceml run`.

    Raises:
        ConfigError: an option before SCRIPT is unknown, or an option lacks its value; the text names it.
    """
    line, words = CommandLine(), deque(argv)
    while words and line.script is None and not line.is_help_wanted:
        word = words.popleft()
        if word in SEPARATORS:
            line.script = words.popleft() if words else None
            line.script_args.extend(words)
            return line
        if word in HELP:
            line.is_help_wanted = True
        elif word.startswith("-") and word != "-":
            _read_option(line, word, words)
        else:
            line.script = word
    _read_behind_script(line, words)
    return line


def _read_option(line: CommandLine, word: str, rest: deque[str]) -> None:
    """Read one option before SCRIPT, with its value from `rest` where it needs that."""
    written = word.partition("=")[0]
    name = written.replace("_", "-") if written.startswith("--") else written
    option = BY_SPELLING.get(name)
    if option is not None:
        _read_ours(line, option, word, rest)
    else:
        _read_torchruns(line, name, word, rest)


def _read_ours(line: CommandLine, option: Option, word: str, rest: deque[str]) -> list[str]:
    """Return the words that it took."""
    written, has_value, value = word.partition("=")
    taken = [word]
    if option.kind == "flag":
        if has_value:
            raise ConfigError(f"{written} takes no value; leave out ={value}")
        value = "true"
    elif not has_value:
        value = _next_word(word, rest)
        taken.append(value)
    line.given[option.key] = (written, value)
    return taken


def _read_torchruns(line: CommandLine, name: str, word: str, rest: deque[str]) -> None:
    if not name.startswith("--"):  # -r3 is -r 3
        name = name[:2]
    is_valued = torchrun_options.takes_value(name)
    if is_valued is None:
        known = [*BY_SPELLING, *torchrun_options.known_names()]
        nearest = suggestion(name, known) or "; traceml run --help lists all; the script's own stand behind it"
        raise ConfigError(f"unknown option {word.partition('=')[0]}{nearest}")
    if name in _TARGET_KINDS:
        if line.kind not in ("script", _TARGET_KINDS[name]):
            raise ConfigError(f"{word}: --module and --no-python exclude each other")
        line.kind = _TARGET_KINDS[name]
        return
    line.torchrun.append(word)
    value = _attached_value(name, word) if is_valued else "true"
    if value is None:
        value = _next_word(word, rest)
        line.torchrun.append(value)
    line.torchrun_values[torchrun_options.LONG_OF_SHORT.get(name, name)] = value


def _attached_value(name: str, word: str) -> str | None:
    """The value that stands in the same word as the option, if one does."""
    if "=" in word and (name.startswith("--") or word[2] == "="):
        return word.partition("=")[2]
    return word[2:] if not name.startswith("--") and len(word) > 2 else None


def _next_word(option: str, rest: deque[str]) -> str:
    if not rest:
        raise ConfigError(f"{option} lacks its value")
    return rest.popleft()


def _read_behind_script(line: CommandLine, words: deque[str]) -> None:
    while words:
        word = words.popleft()
        if word in SEPARATORS:
            line.script_args.extend(words)
            return
        option = _option_behind_script(word, words)
        if option is None:
            line.script_args.append(word)
        else:
            line.taken_behind_script += _read_ours(line, option, word, words)


def _option_behind_script(word: str, rest: deque[str]) -> Option | None:
    """The option of ours that stands there, if one does; the script has everything else."""
    name, has_value, value = word.partition("=")
    option = BY_SPELLING.get(name)
    if option is None or option.is_extra or (option.kind == "flag" and has_value):
        return None
    if option.key == "mode":
        mode = value if has_value else rest[0] if rest else ""
        return option if mode in option.choices else None
    return option
