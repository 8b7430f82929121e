"""Commands as functions, each with its options beside it. An error in the usage is a `ConfigError`: one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from traceml_client.protocol.errors import ConfigError


class Option(NamedTuple):
    """An option or a positional argument, as argparse takes it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Option:
    return Option(names, settings)


class Command(NamedTuple):
    perform: Callable[..., int | None]
    """Gets every option by its name; returns the exit code, null for 0. Its docstring is the help."""
    options: tuple[Option, ...]
    rest: str | None = None
    """The name of what gets all other words, also those that look like options."""
    epilog: str | None = None

    def run(self, words: Sequence[str], *, prog: str) -> int:
        """Raises ConfigError. Ends the process after printing the help."""
        parser = self._parser(prog)
        if self.rest is None:
            given = vars(parser.parse_intermixed_args(words))
        else:
            known, others = parser.parse_known_args(words)
            given = {**vars(known), self.rest: [word for word in others if word != "--"]}
        return self.perform(**given) or 0

    def _parser(self, prog: str) -> _OneLineParser:
        words = [prog, "[OPTIONS]"]
        words += [settings["metavar"] for names, settings in self.options if not names[0].startswith("-")]
        words += [f"[{self.rest.upper()}...]"] if self.rest else []
        parser = _OneLineParser(
            usage=" ".join(words), description=self.perform.__doc__, epilog=self.epilog, allow_abbrev=False
        )
        for names, settings in self.options:
            parser.add_argument(*names, **settings)
        return parser


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)
