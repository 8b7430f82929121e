"""Pure: a command line of `traceml run` -> our options, torchrun's, and what belongs to the script, in order.

Before SCRIPT stand our options and torchrun's, with `-` or `_` between words. Behind SCRIPT only the hyphen spellings
of options that are not extras are ours, and nothing behind `--` or `--args`.
"""

from __future__ import annotations

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
    line = CommandLine()
    index = 0
    while index < len(argv) and line.script is None and not line.is_help_wanted:
        word = argv[index]
        if word in SEPARATORS:
            line.script = argv[index + 1] if index + 1 < len(argv) else None
            line.script_args.extend(argv[index + 2 :])
            return line
        if word in HELP:
            line.is_help_wanted = True
        elif word.startswith("-") and word != "-":
            index += _read_option(line, argv, index)
            continue
        else:
            line.script = word
        index += 1
    _read_behind_script(line, argv[index:])
    return line


def _read_option(line: CommandLine, argv: Sequence[str], index: int) -> int:
    """Read one option before SCRIPT; return how many words it took."""
    written, _, _ = argv[index].partition("=")
    name = written.replace("_", "-") if written.startswith("--") else written
    option = BY_SPELLING.get(name)
    if option is not None:
        return _read_ours(line, option, argv, index)
    return _read_torchruns(line, name, argv, index)


def _read_ours(line: CommandLine, option: Option, argv: Sequence[str], index: int) -> int:
    written, has_value, value = argv[index].partition("=")
    if option.kind == "flag":
        if has_value:
            raise ConfigError(f"{written} takes no value; leave out ={value}")
        line.given[option.key] = (written, "true")
        return 1
    if has_value:
        line.given[option.key] = (written, value)
        return 1
    line.given[option.key] = (written, _next_word(argv, index))
    return 2


def _read_torchruns(line: CommandLine, name: str, argv: Sequence[str], index: int) -> int:
    word = argv[index]
    if not name.startswith("--") and len(name) > 2:  # -r3 is -r 3
        name = name[:2]
    is_valued = torchrun_options.takes_value(name)
    if is_valued is None:
        known = [*BY_SPELLING, *torchrun_options.known_names()]
        nearest = suggestion(name, known) or "; traceml run --help lists all; the script's own stand behind it"
        raise ConfigError(f"unknown option {word.partition('=')[0]}{nearest}")
    long_name = torchrun_options.LONG_OF_SHORT.get(name, name)
    if name in _TARGET_KINDS:
        line.kind = _target_kind(line, _TARGET_KINDS[name], word)
        return 1
    if not is_valued:
        line.torchrun_values[long_name] = "true"
        line.torchrun.append(word)
        return 1
    attached = _attached_value(name, word)
    words = [word] if attached is not None else [word, _next_word(argv, index)]
    line.torchrun_values[long_name] = words[-1] if attached is None else attached
    line.torchrun.extend(words)
    return len(words)


def _target_kind(line: CommandLine, kind: TargetKind, word: str) -> TargetKind:
    if line.kind not in ("script", kind):
        raise ConfigError(f"{word}: --module and --no-python exclude each other")
    return kind


def _attached_value(name: str, word: str) -> str | None:
    """The value that stands in the same word as the option, if one does."""
    if "=" in word and (name.startswith("--") or word[2] == "="):
        return word.partition("=")[2]
    return word[2:] if not name.startswith("--") and len(word) > 2 else None


def _next_word(argv: Sequence[str], index: int) -> str:
    if index + 1 >= len(argv):
        raise ConfigError(f"{argv[index]} lacks its value")
    return argv[index + 1]


def _read_behind_script(line: CommandLine, words: Sequence[str]) -> None:
    index = 0
    while index < len(words):
        if words[index] in SEPARATORS:
            line.script_args.extend(words[index + 1 :])
            return
        option = _option_behind_script(words, index)
        if option is None:
            line.script_args.append(words[index])
            index += 1
            continue
        num_words = _read_ours(line, option, words, index)
        line.taken_behind_script.extend(words[index : index + num_words])
        index += num_words


def _option_behind_script(words: Sequence[str], index: int) -> Option | None:
    """The option of ours that stands there, if one does; the script has everything else."""
    name, has_value, value = words[index].partition("=")
    option = BY_SPELLING.get(name)
    if option is None or option.is_extra or (option.kind == "flag" and has_value):
        return None
    if option.key == "mode":
        mode = value if has_value else "".join(words[index + 1 : index + 2])
        return option if mode in option.choices else None
    return option
